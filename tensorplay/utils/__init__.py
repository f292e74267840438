"""Tools beside the runtime: `cpp_jit` builds and loads kernels."""

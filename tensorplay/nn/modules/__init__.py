"""The modules that come with the runtime, by family."""

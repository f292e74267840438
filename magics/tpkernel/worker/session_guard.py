"""The session, out of the reach of kernels under check.

A kernel can send a signal to the process that started its own, which is the notebook. In the worker
the system refuses such calls where it can (Linux, seccomp): they raise SIGSYS, which ends it and is
told as any other crash. Programs that a kernel starts are held to the same.
"""

from __future__ import annotations

__all__ = ["GUARD"]

#: C++ of the worker's own library.
GUARD = r"""
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <vector>

#if defined(__x86_64__)
#define TPKERNEL_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define TPKERNEL_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

// Returns 0, or the number of the error where the system does not let a process do this.
int64_t guard_session(int64_t session, int64_t group) {
#ifdef TPKERNEL_ARCHITECTURE
  struct Call {
    long number;
    int argument;
    std::vector<int64_t> refused;
  };
  const std::vector<Call> calls = {
      {SYS_kill, 0, {session, -1, -group}},
      {SYS_tkill, 0, {session}},
      {SYS_tgkill, 0, {session}},
      {SYS_rt_sigqueueinfo, 0, {session}},
      {SYS_rt_tgsigqueueinfo, 0, {session}},
      {SYS_ptrace, 1, {session}},
      {SYS_process_vm_writev, 0, {session}},
      {SYS_prlimit64, 0, {session}},
#ifdef SYS_pidfd_open
      {SYS_pidfd_open, 0, {session}},
#endif
  };
  const auto load = [](size_t offset) -> sock_filter {
    return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
  };
  const auto equals = [](uint32_t value, uint8_t yes, uint8_t no) -> sock_filter {
    return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no);
  };
  const auto answer = [](uint32_t action) -> sock_filter {
    return BPF_STMT(BPF_RET | BPF_K, action);
  };
  std::vector<sock_filter> filter = {
      load(offsetof(seccomp_data, arch)),
      equals(TPKERNEL_ARCHITECTURE, 1, 0),
      answer(SECCOMP_RET_ALLOW),
      load(offsetof(seccomp_data, nr)),
  };
  for (const Call& call : calls) {
    const auto count = static_cast<uint8_t>(call.refused.size());
    // Another call goes on behind this one's steps: a load, two for each value, an answer.
    const auto steps = static_cast<uint8_t>(2 * count + 2);
    filter.push_back(equals(static_cast<uint32_t>(call.number), 0, steps));
    // A process has 32 bits; both processors in use keep them first.
    filter.push_back(load(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(call.argument)));
    for (const int64_t value : call.refused) {
      filter.push_back(equals(static_cast<uint32_t>(value), 0, 1));
      filter.push_back(answer(SECCOMP_RET_TRAP));
    }
    filter.push_back(answer(SECCOMP_RET_ALLOW));
  }
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  // Without SPEC_ALLOW older systems would slow all code of this process down.
  const unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0) return errno;
#else
  (void)session, (void)group;
#endif
  return 0;
}
"""

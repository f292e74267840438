"""The session, out of the reach of kernels under check.

A kernel can send a signal to the process that started its own, which is the notebook. In the
worker the system refuses such calls where it can (Linux): by seccomp they raise SIGSYS, which ends
it and is told as any other crash, and by Landlock, as of Linux 6.12, they fail with EPERM, where
only the system knows which process a number belongs to. Programs that a kernel starts are held to
the same. Signals by which the worker would end itself without a word are refused, too: its handler
says so.
"""

from __future__ import annotations

__all__ = ["GUARD"]

#: C++ of the worker's own library.
GUARD = r"""
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#if defined(__x86_64__)
#define TPKERNEL_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define TPKERNEL_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#if !defined(SYS_SECCOMP)
#define SYS_SECCOMP 1  // of older C libraries' headers
#endif

namespace {
struct GuardedCall {
  long number;
  int target;  // which argument says for whom it is,
  int signal;  // and which one the signal, or -1
};

constexpr GuardedCall guarded_calls[] = {
    {SYS_kill, 0, 1},
    {SYS_tkill, 0, 1},
    {SYS_tgkill, 0, 2},
    {SYS_rt_sigqueueinfo, 0, 1},
    {SYS_rt_tgsigqueueinfo, 0, 2},
    {SYS_ptrace, 1, -1},
    {SYS_process_vm_writev, 0, -1},
    {SYS_prlimit64, 0, -1},
#ifdef SYS_pidfd_open
    {SYS_pidfd_open, 0, -1},
#endif
};

long argument_of(void* context, int which) {
  [[maybe_unused]] const auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  constexpr int places[] = {REG_RDI, REG_RSI, REG_RDX};
  return machine.gregs[places[which]];
#elif defined(__aarch64__)
  return static_cast<long>(machine.regs[which]);
#else
  return which, 0;
#endif
}

void answer_with(void* context, long result) {
  [[maybe_unused]] auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  machine.gregs[REG_RAX] = result;
#elif defined(__aarch64__)
  machine.regs[0] = static_cast<unsigned long>(result);
#endif
  (void)result;
}

// Looks at a call that was refused: sets `raised` where it would have sent a signal to this process
// itself, and returns true where the call was made in another way.
bool is_answered(const siginfo_t& info, void* context, int& raised) {
  if (info.si_code != SYS_SECCOMP) return false;
  for (const GuardedCall& call : guarded_calls) {
    if (call.number != info.si_syscall || call.signal < 0) continue;
    const int target = static_cast<int>(argument_of(context, call.target));
    const int signal = static_cast<int>(argument_of(context, call.signal));
    const bool own = target == getpid() || target == 0 || target == -getpgrp();
    if (call.number != SYS_tkill) {
      if (own) raised = signal;
      return false;
    }
    // A filter cannot tell whose thread it is.
    if (syscall(SYS_tgkill, getpid(), target, 0) != 0) return false;
    if (signal == SIGKILL || signal == SIGSTOP) {
      raised = signal;
      return false;
    }
    const int before = errno;
    const long result = syscall(SYS_tgkill, getpid(), target, signal);
    answer_with(context, result == 0 ? 0 : -errno);
    errno = before;
    return true;
  }
  return false;
}

// Processes that are not of this one, by whatever number: a system that cannot do it goes without.
void guard_all_others() {
  struct {
    uint64_t files, network, scoped;
  } rules = {0, 0, 2};  // LANDLOCK_SCOPE_SIGNAL
  const long made = syscall(444, &rules, sizeof rules, 0);  // landlock_create_ruleset
  if (made < 0) return;
  syscall(446, made, 0);  // landlock_restrict_self
  close(static_cast<int>(made));
}
}  // namespace

// Returns 0, or the number of the error where the system does not let a process do this.
int64_t guard_session(int64_t session, int64_t group) {
#ifdef TPKERNEL_ARCHITECTURE
  const auto load = [](size_t offset) -> sock_filter {
    return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
  };
  // A process has 32 bits; both processors in use keep them first.
  const auto load_argument = [&](int which) {
    return load(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(which));
  };
  const auto equals = [](int64_t value, size_t yes, size_t no) -> sock_filter {
    return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(value),
                    static_cast<uint8_t>(yes), static_cast<uint8_t>(no));
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
  for (const GuardedCall& call : guarded_calls) {
    std::vector<sock_filter> steps;
    const auto refuse_if = [&](int64_t value) {
      steps.push_back(equals(value, 0, 1));
      steps.push_back(answer(SECCOMP_RET_TRAP));
    };
    if (call.number == SYS_tkill) {
      steps.push_back(answer(SECCOMP_RET_TRAP));  // the handler knows more
    } else {
      steps.push_back(load_argument(call.target));
      refuse_if(session);
      if (call.number == SYS_kill) {
        refuse_if(-1);
        refuse_if(-group);
      }
      for (int64_t own : {int64_t{getpid()}, int64_t{0}, -int64_t{getpgrp()}}) {
        if (call.signal < 0) continue;
        steps.push_back(equals(own, 0, 6));
        steps.push_back(load_argument(call.signal));
        refuse_if(SIGKILL);
        refuse_if(SIGSTOP);
        steps.push_back(answer(SECCOMP_RET_ALLOW));
      }
      steps.push_back(answer(SECCOMP_RET_ALLOW));
    }
    filter.push_back(equals(call.number, 0, steps.size()));
    filter.insert(filter.end(), steps.begin(), steps.end());
  }
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  guard_all_others();
  // Without SPEC_ALLOW older systems would slow all code of this process down.
  const unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0) return errno;
#else
  (void)session, (void)group;
#endif
  return 0;
}
"""

// Loops on several threads whose exceptions arrive where the loop was started.
//
//   tp::parallel_for(0, n, [&](int64_t i) { out[i] = f(x[i]); });
//   tp::parallel_for(0, n, [&](int64_t begin, int64_t end) { ... }, {1024, 4});
//
// The body takes an index, or the bounds of a piece. The first exception of any thread ends the loop
// and is thrown by parallel_for; so does an interrupt of the person (KeyboardInterrupt). A loop inside
// a loop runs on its own thread, in order. Other loops call tp::check_interrupt(). The work is out of
// line, in the run-time library, and this header needs no standard header and no engine: light and full
// cells, and CUDA's host code.
#pragma once
#pragma GCC system_header
#include <stdint.h>

extern "C" {
// Runs `body(context, begin, end)` over pieces of [begin, end). Throws what a piece threw.
void tp_rt_parallel_for(int64_t begin, int64_t end, int64_t grain, int32_t threads,
                        void (*body)(void* context, int64_t begin, int64_t end), void* context);
// How many threads a loop that names no number takes.
int32_t tp_rt_thread_count();
// Throws where the person interrupts; asks the interpreter at intervals.
void tp_rt_check_interrupt();
}

namespace tp {

// How a loop is shared out: the least indices of a piece (0: as the number of threads suggests) and the
// most threads (0: the variable TP_NUM_THREADS or OMP_NUM_THREADS, else the processors there are).
struct Sharing {
  int64_t grain = 0;
  int32_t threads = 0;
};

inline int32_t thread_count() { return tp_rt_thread_count(); }

// Ends the kernel by KeyboardInterrupt where the person interrupts. For loops that are no parallel_for:
// a call takes tens of nanoseconds, so once in some microseconds of work. Other threads than the one
// that the kernel was called in hear of nothing.
inline void check_interrupt() { tp_rt_check_interrupt(); }

namespace detail {

template <class T_>
struct Plain {
  using type = T_;
};
template <class T_>
struct Plain<T_&> {
  using type = T_;
};

template <class Body_>
auto run_piece(Body_& body, int64_t begin, int64_t end, int)
    -> decltype(static_cast<void>(body(begin, end))) {
  body(begin, end);
}
template <class Body_>
auto run_piece(Body_& body, int64_t begin, int64_t end, long)
    -> decltype(static_cast<void>(body(begin))) {
  for (int64_t i = begin; i < end; ++i) body(i);
}

}  // namespace detail

template <class Body_>
inline void parallel_for(int64_t begin, int64_t end, Body_&& body, Sharing sharing = {}) {
  using Plain_ = typename detail::Plain<Body_>::type;
  struct Call {
    static void piece(void* context, int64_t from, int64_t to) {
      detail::run_piece(*static_cast<Plain_*>(context), from, to, 0);
    }
  };
  tp_rt_parallel_for(begin, end, sharing.grain, sharing.threads, &Call::piece,
                     const_cast<void*>(static_cast<const volatile void*>(&body)));
}

}  // namespace tp

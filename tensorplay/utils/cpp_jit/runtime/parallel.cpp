// Loops on several threads; see tensorplay/parallel.h. Threads live as long as one loop: none is left
// that runs code of a library that is unloaded, or that a fork would lose.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <tensorplay/parallel.h>
#include <tensorplay/runtime.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace {

// Whether this thread runs a piece of a loop: loops inside run in order.
thread_local bool inside = false;

using Clock = std::chrono::steady_clock;
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);
// What a piece should cost where the caller names no size: little beside what people notice, much
// beside taking it.
constexpr auto kShort = std::chrono::microseconds(200);
constexpr auto kLong = std::chrono::milliseconds(4);
// A loop that is done in this time is done by one thread: starting another takes about as long.
constexpr auto kAlone = std::chrono::microseconds(100);
// Most of the range for a piece, by the number of threads: enough to even out what pieces cost.
constexpr int64_t kPiecesEach = 16;
constexpr int32_t kMostThreads = 1024;

int32_t number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && value > 0 ? static_cast<int32_t>(std::min<long>(value, kMostThreads)) : 0;
}

struct Loop {
  std::atomic<int64_t> next;
  const int64_t end;
  const int64_t grain;  // 0: as long as pieces should take
  const int64_t most;
  void (*const body)(void*, int64_t, int64_t);
  void* const context;
  std::atomic<bool> stopped;
  std::mutex guard;
  std::exception_ptr first;

  // Takes pieces until there are none, or `go_on`, called between them, says so or throws.
  template <class GoOn_>
  void work(GoOn_ go_on) noexcept {
    const bool outer = inside;
    inside = true;
    try {
      int64_t wanted = grain > 0 ? grain : 1;
      auto before = Clock::now();
      while (!stopped.load(std::memory_order_relaxed)) {
        int64_t from = next.load(std::memory_order_relaxed);
        int64_t size = 0;
        do {  // the end of the range may be the last integer there is: never step over it
          if (from >= end) break;
          const uint64_t left = static_cast<uint64_t>(end) - static_cast<uint64_t>(from);
          size = left < static_cast<uint64_t>(wanted) ? static_cast<int64_t>(left) : wanted;
        } while (!next.compare_exchange_weak(from, from + size, std::memory_order_relaxed));
        if (from >= end) break;
        body(context, from, from + size);
        const auto now = Clock::now();
        if (grain == 0 && now - before < kShort) wanted = std::min(2 * wanted, most);
        if (grain == 0 && now - before > kLong) wanted = std::max<int64_t>(wanted / 2, 1);
        before = now;
        if (!go_on(now)) break;
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(guard);
      if (!first) first = std::current_exception();
      stopped.store(true, std::memory_order_relaxed);
    }
    inside = outer;
  }

  bool is_done() const {
    return stopped.load(std::memory_order_relaxed) || next.load(std::memory_order_relaxed) >= end;
  }
};

// Asks the interpreter, at intervals, whether the person interrupts; throws if so. Signals arrive on
// the interpreter's main thread only, and its lock is taken for a moment.
class Look {
 public:
  void operator()(Clock::time_point now) {
    if (now < next_) return;
    if (TVMFFIEnvCheckSignals() != 0) tp_rt_throw("EnvErrorAlreadySet", "interrupted");
    next_ = Clock::now() + kBetweenLooks;
  }

 private:
  Clock::time_point next_ = Clock::now() + kBetweenLooks;
};

}  // namespace

extern "C" {

int32_t tp_rt_thread_count() {
  int32_t count = number_of("TP_NUM_THREADS");
  if (count == 0) count = number_of("OMP_NUM_THREADS");
  if (count == 0) count = static_cast<int32_t>(std::thread::hardware_concurrency());
  return std::max(count, 1);
}

void tp_rt_check_interrupt() {
  static thread_local Look look;
  look(Clock::now());
}

void tp_rt_parallel_for(int64_t begin, int64_t end, int64_t grain, int32_t threads,
                        void (*body)(void*, int64_t, int64_t), void* context) {
  if (begin >= end) return;
  if (grain < 0 || threads < 0) {
    tp_rt_throw("ValueError",
                "[parallel_for] expected a grain and a number of threads of zero or more");
  }
  // As unsigned: from the least to the largest integer is more than a signed one counts.
  const uint64_t size = static_cast<uint64_t>(end) - static_cast<uint64_t>(begin);
  int64_t count = inside ? 1 : threads > 0 ? std::min(threads, kMostThreads) : tp_rt_thread_count();
  const auto most = static_cast<int64_t>(size / static_cast<uint64_t>(count * kPiecesEach) + 1);
  const uint64_t pieces = grain > 0 ? (size - 1) / static_cast<uint64_t>(grain) + 1 : size;
  count = static_cast<int64_t>(std::min(static_cast<uint64_t>(count), pieces));
  Loop loop{{begin}, end, grain, most, body, context, {false}, {}, {}};
  Look look;
  if (grain == 0 && count > 1) {
    const auto until = Clock::now() + kAlone;
    loop.work([&](Clock::time_point now) { return now < until; });
  }
  std::vector<std::thread> others;
  try {
    if (!loop.is_done()) others.reserve(static_cast<size_t>(count - 1));
    for (int64_t i = 1; i < count && !loop.is_done(); ++i) {
      others.emplace_back([&loop] { loop.work([](Clock::time_point) { return true; }); });
    }
  } catch (const std::system_error&) {
    // No more threads are to be had: those that are there do the work.
  } catch (const std::bad_alloc&) {
  }
  loop.work([&look](Clock::time_point now) {
    look(now);
    return true;
  });
  for (std::thread& other : others) other.join();
  if (loop.first) std::rethrow_exception(loop.first);
}

}  // extern "C"

// Threads that wait for work, started once. A thread that has just worked looks for more for a
// while before it sleeps, as OpenMP's do: kernels follow each other closely, and waking takes long.
//
// Each thread walks through a range of neighbouring tasks of its own, which memory is read ahead
// for, and then takes what is left of the others' ranges. A kernel in several threads goes the other
// way than the one before it: what that touched last is what is still in the cache, and it may well
// be of the same arrays.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

#include "launch.h"

namespace tensorplay {

namespace {

constexpr size_t kMostKept = size_t{4} << 20;  // bytes that a thread has between calls
constexpr int kSpins = 40000;  // about half a millisecond

inline void pause_briefly() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
  asm volatile("yield");
#endif
}

struct Memory {
  char* at = nullptr;
  size_t size = 0;

  void make(size_t bytes) {
    free();
    at = bytes > kMostKept ? static_cast<char*>(take_block(bytes)) : new char[bytes];
    if (at == nullptr) throw std::bad_alloc();
    size = bytes;
  }
  void free() {
    if (size > kMostKept) {
      give_block(at);
    } else {
      delete[] at;
    }
    at = nullptr;
    size = 0;
  }
  ~Memory() { free(); }
};
thread_local Memory memory;

void drop_large_memory() {
  if (memory.size > kMostKept) memory.free();
}

class Pool {
 public:
  explicit Pool(int helpers) : ranges_(static_cast<size_t>(helpers) + 1) {
    for (int i = 0; i < helpers; ++i) std::thread(&Pool::wait_and_work, this, i + 1).detach();
  }

  // Returns false if another call has the threads.
  bool run(void (*function)(void*, int64_t), void* context, int64_t tasks) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      function_ = function;
      context_ = context;
      backwards_ = !backwards_;
      const auto count = static_cast<int64_t>(ranges_.size());
      for (int64_t i = 0; i < count; ++i) {
        Range& range = ranges_[static_cast<size_t>(i)];
        range.begin = tasks * i / count;
        range.end = tasks * (i + 1) / count;
        range.next.store(range.begin, std::memory_order_relaxed);
      }
      open_ = true;
      round_.fetch_add(1, std::memory_order_release);
    }
    if (sleeping_.load(std::memory_order_acquire) > 0) wake_.notify_all();
    work(0);
    // The last pieces are in other hands. A thread that has no processor just now gets ours sooner
    // if this one sleeps.
    std::unique_lock<std::mutex> lock(mutex_);
    open_ = false;
    if (active_.load(std::memory_order_acquire) > 0) {
      lock.unlock();
      for (int i = 0; i < kSpins / 4 && active_.load(std::memory_order_acquire) > 0; ++i) {
        pause_briefly();
      }
      lock.lock();
      done_.wait(lock, [&] { return active_.load(std::memory_order_acquire) == 0; });
    }
    lock.unlock();
    busy_.store(false, std::memory_order_release);
    return true;
  }

 private:
  struct alignas(64) Range {  // a cache line each
    std::atomic<int64_t> next{0};
    int64_t begin = 0;
    int64_t end = 0;
  };

  void work(size_t own) {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      Range& range = ranges_[(own + i) % ranges_.size()];
      while (range.next.load(std::memory_order_relaxed) < range.end) {
        const int64_t task = range.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= range.end) break;
        function_(context_, backwards_ ? range.begin + range.end - 1 - task : task);
      }
    }
    drop_large_memory();
  }

  void wait_and_work(size_t own) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (round_.load(std::memory_order_acquire) == seen && spins < kSpins) {
        ++spins;
        pause_briefly();
      }
      std::unique_lock<std::mutex> lock(mutex_);
      if (round_.load(std::memory_order_relaxed) == seen) {
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
        sleeping_.fetch_sub(1);
      }
      seen = round_.load(std::memory_order_relaxed);
      if (!open_) continue;  // the others have done it all
      active_.fetch_add(1);
      lock.unlock();
      work(own);
      lock.lock();
      if (active_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> round_{0};
  std::atomic<int> active_{0};
  std::atomic<int> sleeping_{0};
  bool open_ = false;
  bool backwards_ = false;
  void (*function_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  std::vector<Range> ranges_;
};

// Never destroyed: its threads wait in it until the process ends. A forked child has none of them
// and makes a pool of its own.
std::atomic<Pool*> pool{nullptr};
std::mutex* pool_mutex = new std::mutex;
std::atomic<int> wanted{0};

void forget_pool() {
  pool.store(nullptr);
  pool_mutex = new std::mutex;
}

int processors() {
  for (const char* name : {"TENSORPLAY_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    int count = text != nullptr ? std::atoi(text) : 0;
    if (count > 0) return count;
  }
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  int count = static_cast<int>(std::thread::hardware_concurrency());
  return count > 0 ? count : 1;
}

Pool* the_pool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  std::lock_guard<std::mutex> guard(*pool_mutex);
  found = pool.load();
  if (found == nullptr) {
#ifndef _WIN32
    static bool watching = pthread_atfork(nullptr, nullptr, forget_pool) == 0;
    (void)watching;
#endif
    found = new Pool(thread_count() - 1);
    pool.store(found, std::memory_order_release);
  }
  return found;
}

}  // namespace

int thread_count() {
  int count = wanted.load();
  if (count == 0) {
    count = processors();
    wanted.store(count);
  }
  return count;
}

void set_thread_count(int count) {
  std::lock_guard<std::mutex> guard(*pool_mutex);
  wanted.store(count);
  pool.store(nullptr);  // threads of the old one sleep on
}

void run_in_threads(void (*run)(void*, int64_t), void* context, int64_t tasks, bool helpers) {
  if (helpers && tasks > 1 && thread_count() > 1 && the_pool()->run(run, context, tasks)) return;
  for (int64_t i = 0; i < tasks; ++i) run(context, i);
  drop_large_memory();
}

void* thread_memory(size_t bytes) {
  if (memory.size < bytes + 64) {
    memory.make(bytes + 64);
  }
  auto address = reinterpret_cast<uintptr_t>(memory.at);
  return memory.at + (64 - address % 64) % 64;
}

}  // namespace tensorplay

// Memory of large arrays. A fresh block of 16 MiB costs thousands of page faults when it is first
// written, longer than many a kernel runs; blocks that were freed are kept, up to a limit, and blocks
// are of huge pages where the system has them.
//
// Arrays that are given one after another begin at different places of a page. Processors tell what
// is under way to memory apart by its place within 4 KiB first: a loop that writes two results past
// the caches takes twice as long where both begin at the same one.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "launch.h"

#include <numpy/arrayobject.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tensorplay {

namespace {

constexpr size_t kLarge = size_t{1} << 16;
constexpr size_t kHuge = size_t{1} << 21;
constexpr size_t kMostKept = size_t{1} << 28;
constexpr size_t kPage = size_t{1} << 12;
constexpr size_t kShift = 512;  // so far that what is read just behind a result is none of it

struct Block {
  void* at;     // where it begins
  size_t size;  // of what is given of it; one page more is there, for the shift
};

std::vector<Block>* blocks = new std::vector<Block>;  // the last one freed at the end
std::mutex* blocks_mutex = new std::mutex;
std::unordered_map<void*, Block>* live = new std::unordered_map<void*, Block>;  // by what was given
size_t kept = 0;
size_t given_shift = 0;

size_t rounded(size_t bytes) {
  size_t unit = bytes >= kHuge ? kHuge : kPage;
  bytes = bytes > 0 ? bytes : 1;
  return (bytes + unit - 1) / unit * unit;
}

void* fresh(size_t size) {
#ifdef __linux__
  // Aligned to the size of huge pages: more is mapped, and what is over is given back.
  size_t over = size >= kHuge ? kHuge : 0;
  size_t whole = size + kPage;
  void* found = mmap(nullptr, whole + over, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  if (over == 0) return found;
  auto at = reinterpret_cast<uintptr_t>(found);
  uintptr_t start = (at + kHuge - 1) / kHuge * kHuge;
  if (start > at) munmap(found, start - at);
  if (at + over > start) munmap(reinterpret_cast<void*>(start + whole), at + over - start);
  madvise(reinterpret_cast<void*>(start), size, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(start);
#else
  return std::malloc(size + kPage);
#endif
}

void give_back(void* at, size_t size) {
#ifdef __linux__
  munmap(at, size + kPage);
#else
  (void)size;
  std::free(at);
#endif
}

// Where in a block the next array begins; the mutex is held.
void* place_in(const Block& block) {
  given_shift = (given_shift + kShift) % kPage;
  void* at = static_cast<char*>(block.at) + given_shift;
  (*live)[at] = block;
  return at;
}

void* take(void*, size_t bytes) {
  if (bytes < kLarge) return std::malloc(bytes > 0 ? bytes : 1);
  size_t size = rounded(bytes);
  {
    std::lock_guard<std::mutex> guard(*blocks_mutex);
    for (size_t i = blocks->size(); i-- > 0;) {
      if ((*blocks)[i].size != size) continue;
      Block block = (*blocks)[i];
      blocks->erase(blocks->begin() + static_cast<std::ptrdiff_t>(i));
      kept -= size;
      return place_in(block);
    }
  }
  void* at = fresh(size);
  if (at == nullptr) return nullptr;
  std::lock_guard<std::mutex> guard(*blocks_mutex);
  return place_in({at, size});
}

void release(void*, void* at, size_t) {
  if (at == nullptr) return;
  std::vector<Block> old;
  {
    std::lock_guard<std::mutex> guard(*blocks_mutex);
    auto found = live->find(at);
    if (found == live->end()) {
      std::free(at);
      return;
    }
    Block block = found->second;
    live->erase(found);
    blocks->push_back(block);
    kept += block.size;
    size_t drop = 0;
    while (kept > kMostKept && drop < blocks->size()) kept -= (*blocks)[drop++].size;
    old.assign(blocks->begin(), blocks->begin() + static_cast<std::ptrdiff_t>(drop));
    blocks->erase(blocks->begin(), blocks->begin() + static_cast<std::ptrdiff_t>(drop));
  }
  for (const Block& block : old) give_back(block.at, block.size);
}

void* take_zeroed(void* context, size_t count, size_t each) {
  if (count * each < kLarge) return std::calloc(count * each > 0 ? count * each : 1, 1);
  void* at = take(context, count * each);
  if (at != nullptr) std::memset(at, 0, count * each);
  return at;
}

void* take_again(void* context, void* at, size_t bytes) {
  size_t before = 0;
  {
    std::lock_guard<std::mutex> guard(*blocks_mutex);
    auto found = live->find(at);
    if (found != live->end()) before = found->second.size;
  }
  if (before == 0) return std::realloc(at, bytes > 0 ? bytes : 1);  // stays with `malloc`
  if (rounded(bytes) == before) return at;
  void* other = take(context, bytes);
  if (other != nullptr && at != nullptr) {
    std::memcpy(other, at, before < bytes ? before : bytes);
    release(context, at, before);
  }
  return other;
}

PyDataMem_Handler handler = {
    "tensorplay_kept", 1, {nullptr, take, take_zeroed, take_again, release}};
PyObject* handler_capsule = nullptr;

// Give the handler back that was there; an exception stays.
void restore(PyObject* before) {
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  PyObject* ours = PyDataMem_SetHandler(before);
  Py_DECREF(before);
  Py_XDECREF(ours);
  PyErr_Restore(kind, error, traceback);
}

// A fork takes no block along that another thread is about to give or take.
void before_fork() { blocks_mutex->lock(); }
void after_fork() { blocks_mutex->unlock(); }

}  // namespace

PyObject* new_array(int dims, const Py_ssize_t* sizes, PyArray_Descr* type) {
  size_t bytes = static_cast<size_t>(PyDataType_ELSIZE(type));
  for (int d = 0; d < dims; ++d) bytes *= static_cast<size_t>(sizes[d]);
  if (bytes < kLarge) return PyArray_Empty(dims, sizes, type, 0);
  PyObject* before = PyDataMem_SetHandler(handler_capsule);
  if (before == nullptr) {
    Py_DECREF(type);
    return nullptr;
  }
  PyObject* array = PyArray_Empty(dims, sizes, type, 0);
  restore(before);
  return array;
}

void* take_block(size_t bytes) { return take(nullptr, bytes); }

void give_block(void* at) { release(nullptr, at, 0); }

PyObject* call_keeping(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given < 1) {
    PyErr_SetString(PyExc_TypeError, "expected a function");
    return nullptr;
  }
  PyObject* before = PyDataMem_SetHandler(handler_capsule);
  if (before == nullptr) return nullptr;
  PyObject* result =
      PyObject_Vectorcall(args[0], args + 1, static_cast<size_t>(given - 1), nullptr);
  restore(before);
  return result;
}

size_t kept_bytes() {
  std::lock_guard<std::mutex> guard(*blocks_mutex);
  return kept;
}

void drop_kept() {
  std::vector<Block> old;
  {
    std::lock_guard<std::mutex> guard(*blocks_mutex);
    old.swap(*blocks);
    kept = 0;
  }
  for (const Block& block : old) give_back(block.at, block.size);
}

bool prepare_memory() {
  if (PyArray_ImportNumPyAPI() < 0) return false;
#ifndef _WIN32
  static bool watching = pthread_atfork(before_fork, after_fork, after_fork) == 0;
  (void)watching;
#endif
  handler_capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  return handler_capsule != nullptr;
}

}  // namespace tensorplay

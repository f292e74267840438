// Memory for tensors that kernels return: one block for the structure, its shape and strides, and
// the elements. Neither allocating nor freeing needs the interpreter, so any thread may do either.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "native.h"

namespace tensorplay {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register
// Largest product of sizes that is a stride: in bytes of the widest element it is no overflow.
constexpr int64_t kMostElements = INT64_MAX / 16;

constexpr char kTooLarge[] =
    "cannot allocate a kernel's result: its sizes multiply to more than memory has";

std::atomic<int64_t> live{0};

void free_block(DLManagedTensorVersioned* self) {
  if (self->manager_ctx != nullptr) release_guarded(self);
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(self);
}

int fail(DLSetError set_error, void* context, const char* kind, const char* text) {
  if (set_error != nullptr) set_error(context, kind, text);
  return -1;
}

}  // namespace

int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
             DLSetError set_error) {
  char text[160];
  *out = nullptr;
  if (prototype->device.device_type != kDLCPU) {
    std::snprintf(text, sizeof text,
                  "cannot allocate a kernel's result: expected device cpu, got DLPack device type %d",
                  static_cast<int>(prototype->device.device_type));
    return fail(set_error, context, "ValueError", text);
  }
  if (!is_known(prototype->dtype)) {
    std::snprintf(text, sizeof text, "unsupported dlpack dtype: code %d, bits %d, lanes %d",
                  prototype->dtype.code, prototype->dtype.bits, prototype->dtype.lanes);
    return fail(set_error, context, "ValueError", text);
  }
  const int ndim = prototype->ndim;
  if (ndim < 0 || ndim > kMaxDims) {
    std::snprintf(text, sizeof text, "cannot allocate a kernel's result of %d dimensions: expected 0 to %d", ndim,
                  kMaxDims);
    return fail(set_error, context, "ValueError", text);
  }
  size_t bytes = prototype->dtype.bits / 8;
  bool empty = false;
  for (int i = 0; i < ndim; ++i) {
    const int64_t size = prototype->shape[i];
    if (size < 0) {
      int used = std::snprintf(text, sizeof text, "cannot allocate a kernel's result of shape (");
      for (int k = 0; k < ndim && used < static_cast<int>(sizeof text) - 24; ++k) {
        used += std::snprintf(text + used, sizeof text - static_cast<size_t>(used), "%s%lld",
                              k ? ", " : "", static_cast<long long>(prototype->shape[k]));
      }
      std::snprintf(text + used, sizeof text - static_cast<size_t>(used), ndim == 1 ? ",)" : ")");
      return fail(set_error, context, "ValueError", text);
    }
    empty = empty || size == 0;
  }
  if (empty) bytes = 0;  // whatever the other sizes are
  for (int i = 0; i < ndim && !empty; ++i) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(prototype->shape[i]), &bytes)) {
      return fail(set_error, context, "MemoryError", kTooLarge);
    }
  }
  size_t head = sizeof(DLManagedTensorVersioned) + 2 * sizeof(int64_t) * static_cast<size_t>(ndim);
  head = (head + kAlignment - 1) / kAlignment * kAlignment;
  const size_t zone = zone_around(bytes);
  size_t total = 0;
  if (__builtin_add_overflow(head + 2 * zone, bytes, &total)) {
    return fail(set_error, context, "MemoryError", kTooLarge);
  }
  // Not a byte more than asked for: AddressSanitizer sees a write past the last element.
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, total) != 0) {
    std::snprintf(text, sizeof text, "cannot allocate a kernel's result of %zu bytes", bytes);
    return fail(set_error, context, "MemoryError", text);
  }
  auto* block = static_cast<char*>(memory);
  auto* made = new (block) DLManagedTensorVersioned{};
  auto* shape = reinterpret_cast<int64_t*>(block + sizeof(DLManagedTensorVersioned));
  int64_t* strides = shape + ndim;
  int64_t step = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    shape[i] = prototype->shape[i];
    strides[i] = step;
    const int64_t size = shape[i] > 0 ? shape[i] : 1;
    if (size <= kMostElements / step) step *= size;  // always, unless another size is zero
  }
  made->version = {kMajor, kMinor};
  made->manager_ctx = zone != 0 ? made : nullptr;
  made->deleter = free_block;
  made->flags = 0;
  made->dl_tensor = {block + head + zone, {kDLCPU, 0}, ndim, prototype->dtype, shape, strides, 0};
  if (zone != 0) guard(made, bytes, zone);
  live.fetch_add(1, std::memory_order_relaxed);
  *out = made;
  return 0;
}

int64_t live_allocations() { return live.load(std::memory_order_relaxed); }

}  // namespace tensorplay

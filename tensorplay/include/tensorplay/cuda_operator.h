// What the generated part of an operator with a CUDA kernel uses, on the host: views as kernels take
// them, the sizes of a launch, and the launch itself, of kernels that the library carries as
// binaries. It is compiled by the C++ compiler only.
#pragma once
#pragma GCC system_header
#include <stdio.h>
#include <tensorplay/cuda_launch.h>
#include <tensorplay/cuda_views.h>
#include <tensorplay/guard.h>

namespace tensorplay {
namespace jit {

// The device of the first tensor among the arguments of a call that its guard has passed, or 0.
inline int32_t cuda_device_of(const TVMFFIAny* args, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    if (args[i].type_index == kTVMFFIDLTensorPtr)
      return static_cast<const DLTensor*>(args[i].v_ptr)->device.device_id;
    if (args[i].type_index == kTVMFFITensor)
      return TVMFFITensorGetDLTensorPtr(args[i].v_obj)->device.device_id;
  }
  return 0;
}

// A view for device code. Returns 0, or -1 with the engine's error set.
inline int cuda_view_of(const tp_view& view, tp_cuda_view* made) {
  if (view.ndim > 8) {
    char message[320];
    snprintf(message, sizeof message,
             "[%s] argument '%s': expected at most 8 dimensions, which a view in CUDA text has, got "
             "%d. Write %s.reshape(...).",
             view.guard->name, view.arg->name, static_cast<int>(view.ndim), view.arg->name);
    return tp_rt_raise("ValueError", message);
  }
  made->data = view.data;
  made->numel = view.numel;
  made->ndim = view.ndim;
  int64_t step = 1;
  for (int32_t d = view.ndim - 1; d >= 0; --d) {
    made->shape[d] = view.shape[d];
    made->strides[d] = view.strides ? view.strides[d] : step;
    step *= view.shape[d];
  }
  for (int32_t d = view.ndim; d < 8; ++d) made->shape[d] = made->strides[d] = 1;
  return 0;
}

// Division and remainder as in Python; what has no result gives -1, which no size is: a divisor of 0,
// and the one quotient that int64_t does not hold.
inline int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return -1;
  const int64_t q = a / b;
  return q - (a % b != 0 && (a % b < 0) != (b < 0));
}
inline int64_t floor_mod(int64_t a, int64_t b) {
  if (b == 0) return -1;
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
inline int64_t ceil_div(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return -1;
  const int64_t q = a / b;
  return q + (a % b != 0 && (a % b < 0) == (b < 0));
}
inline int64_t least(int64_t a, int64_t b) { return b < a ? b : a; }
inline int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }

// Sees that a size that the launch rule gives to a kernel fits its parameter. Returns 0, or -1 with
// the engine's error set.
inline int cuda_size_fits(const char* title, const char* type, int64_t value, int64_t low,
                          int64_t high) {
  if (value >= low && value <= high) return 0;
  char message[320];
  snprintf(message, sizeof message,
           "[%s] launch: expected a size that %s holds, got %lld. Declare the kernel's parameter "
           "int64_t.",
           title, type, static_cast<long long>(value));
  return tp_rt_raise("ValueError", message);
}

// Grid, block and dynamic shared memory as the launch rule gives them.
struct CudaSizes {
  int64_t grid[3];
  int64_t block[3];
  int64_t shared;
};

// Checks the sizes of a launch; `elements` is what the outputs hold. Returns 0 to launch, 1 where
// there is nothing to do, or -1 with the engine's error set.
inline int cuda_sizes(const char* title, const CudaSizes& sizes, int64_t elements) {
  static const int64_t grids[3] = {2147483647, 65535, 65535};
  static const int64_t blocks[3] = {1024, 1024, 64};
  char message[400];
  bool empty = false;
  for (int d = 0; d < 3; ++d) {
    const int64_t grid = sizes.grid[d], block = sizes.block[d];
    if (grid < 0 || grid > grids[d]) {
      snprintf(message, sizeof message,
               "[%s] launch: expected a grid of 0 to %lld blocks in dimension %d, got %lld. Write "
               "min(…, %lld) under launch: in the front matter, and let each thread of the kernel "
               "loop over elements.",
               title, static_cast<long long>(grids[d]), d, static_cast<long long>(grid),
               static_cast<long long>(grids[d]));
      return tp_rt_raise("ValueError", message);
    }
    if (block < 1 || block > blocks[d]) {
      snprintf(message, sizeof message,
               "[%s] launch: expected a block of 1 to %lld threads in dimension %d, got %lld. "
               "Change launch: in the front matter.",
               title, static_cast<long long>(blocks[d]), d, static_cast<long long>(block));
      return tp_rt_raise("ValueError", message);
    }
    empty = empty || grid == 0;
  }
  if (sizes.block[0] * sizes.block[1] * sizes.block[2] > 1024) {
    snprintf(message, sizeof message,
             "[%s] launch: expected a block of at most 1024 threads, got (%lld, %lld, %lld). Change "
             "launch: in the front matter.",
             title, static_cast<long long>(sizes.block[0]), static_cast<long long>(sizes.block[1]),
             static_cast<long long>(sizes.block[2]));
    return tp_rt_raise("ValueError", message);
  }
  if (sizes.shared < 0 || sizes.shared > 2147483647) {
    snprintf(message, sizeof message,
             "[%s] launch: expected 0 or more bytes of shared memory, got %lld. Change launch: in "
             "the front matter.",
             title, static_cast<long long>(sizes.shared));
    return tp_rt_raise("ValueError", message);
  }
  if (empty && elements > 0) {
    snprintf(message, sizeof message,
             "[%s] launch: the grid is (%lld, %lld, %lld), so that nothing would write the %lld "
             "elements of the result. Change launch: in the front matter.",
             title, static_cast<long long>(sizes.grid[0]), static_cast<long long>(sizes.grid[1]),
             static_cast<long long>(sizes.grid[2]), static_cast<long long>(elements));
    return tp_rt_raise("ValueError", message);
  }
  return empty ? 1 : 0;
}

// Launches a kernel of the library's binaries by the name that it has there.
inline int cuda_launch(const char* title, const char* kernel, const CudaSizes& sizes,
                       int32_t device, void** values) {
  tp_cuda_config config{};
  for (int d = 0; d < 3; ++d) {
    config.grid[d] = static_cast<uint32_t>(sizes.grid[d]);
    config.block[d] = static_cast<uint32_t>(sizes.block[d]);
  }
  config.shared = static_cast<uint32_t>(sizes.shared);
  config.device = device;
  return tp_cuda_run(&tp_cuda_own_program, title, kernel, &config, values);
}

}  // namespace jit
}  // namespace tensorplay

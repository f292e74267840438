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

// A number of a launch rule, or why there is none.
enum CudaFault : int { TP_CUDA_FINE, TP_CUDA_OVERFLOWS, TP_CUDA_DIVIDES_BY_ZERO };
struct CudaNumber {
  CudaNumber(int64_t value, CudaFault fault = TP_CUDA_FINE) : value(value), fault(fault) {}
  int64_t value;
  CudaFault fault;
};

// Arithmetic as in Python; what is wrong with a part is wrong with the whole.
inline CudaNumber cuda_result(CudaNumber a, CudaNumber b, int64_t value, bool overflows) {
  const CudaFault own = overflows ? TP_CUDA_OVERFLOWS : TP_CUDA_FINE;
  return {value, a.fault ? a.fault : b.fault ? b.fault : own};
}
inline CudaNumber sum(CudaNumber a, CudaNumber b) {
  int64_t value;
  const bool overflows = __builtin_add_overflow(a.value, b.value, &value);
  return cuda_result(a, b, value, overflows);
}
inline CudaNumber difference(CudaNumber a, CudaNumber b) {
  int64_t value;
  const bool overflows = __builtin_sub_overflow(a.value, b.value, &value);
  return cuda_result(a, b, value, overflows);
}
inline CudaNumber product(CudaNumber a, CudaNumber b) {
  int64_t value;
  const bool overflows = __builtin_mul_overflow(a.value, b.value, &value);
  return cuda_result(a, b, value, overflows);
}
// Quotient towards zero; the remainder says how to round it.
inline CudaNumber cuda_divided(CudaNumber a, CudaNumber b, int64_t* remainder) {
  *remainder = 0;
  if (a.fault || b.fault) return cuda_result(a, b, 0, false);
  if (b.value == 0) return {0, TP_CUDA_DIVIDES_BY_ZERO};
  if (b.value == -1) return difference(0, a);
  *remainder = a.value % b.value;
  return a.value / b.value;
}
inline CudaNumber floor_div(CudaNumber a, CudaNumber b) {
  int64_t rest;
  CudaNumber made = cuda_divided(a, b, &rest);
  made.value -= rest != 0 && (rest < 0) != (b.value < 0);
  return made;
}
inline CudaNumber floor_mod(CudaNumber a, CudaNumber b) {
  int64_t rest;
  const CudaNumber made = cuda_divided(a, b, &rest);
  if (made.fault == TP_CUDA_OVERFLOWS && !a.fault && !b.fault) return 0;  // INT64_MIN % -1
  return {rest != 0 && (rest < 0) != (b.value < 0) ? rest + b.value : rest, made.fault};
}
inline CudaNumber ceil_div(CudaNumber a, CudaNumber b) {
  int64_t rest;
  CudaNumber made = cuda_divided(a, b, &rest);
  made.value += rest != 0 && (rest < 0) == (b.value < 0);
  return made;
}
inline CudaNumber least(CudaNumber a, CudaNumber b) {
  return cuda_result(a, b, b.value < a.value ? b.value : a.value, false);
}
inline CudaNumber most(CudaNumber a, CudaNumber b) {
  return cuda_result(a, b, a.value < b.value ? b.value : a.value, false);
}

// A size of a launch with its text in the rule, none where it is a number, and what it is computed
// from, up to the first without a name.
struct CudaAtom {
  const char* name;
  int64_t value;
};
struct CudaSize {
  CudaNumber number;
  const char* text;
  CudaAtom atoms[4];
};

// Raises `problem` about a size: what it is in the rule, from which numbers, and what to do.
inline int cuda_refuse(const char* title, const CudaSize& size, const char* problem,
                       const char* remedy) {
  char of[320] = "", message[1000];
  int used = 0;
  for (int i = 0; i < 4 && size.atoms[i].name && used < int(sizeof of); ++i)
    used += snprintf(of + used, sizeof of - used, "%s%.60s = %lld", i ? ", " : ", where ",
                     size.atoms[i].name, static_cast<long long>(size.atoms[i].value));
  snprintf(message, sizeof message, "[%s] launch: %s%s%.120s%s%s. %s", title, problem,
           size.text ? ", which is '" : "", size.text ? size.text : "", size.text ? "'" : "", of,
           remedy);
  return tp_rt_raise("ValueError", message);
}

// Refuses a size that cannot be computed. Returns 0, or -1 with the engine's error set.
inline int cuda_computed(const char* title, const char* name, const CudaSize& size) {
  if (size.number.fault == TP_CUDA_FINE) return 0;
  char problem[160];
  snprintf(problem, sizeof problem, "%.80s %s", name,
           size.number.fault == TP_CUDA_OVERFLOWS ? "needs a number of more than 64 bits"
                                                  : "divides by zero");
  return cuda_refuse(title, size, problem,
                     "Pass other values, or change launch: in the front matter.");
}

// Sees that a size that the launch rule gives to a kernel fits its parameter. Returns 0, or -1 with
// the engine's error set.
inline int cuda_size_fits(const char* title, const char* name, const char* type,
                          const CudaSize& size, int64_t low, int64_t high) {
  if (cuda_computed(title, name, size) != 0) return -1;
  const int64_t value = size.number.value;
  if (value >= low && value <= high) return 0;
  char problem[320];
  snprintf(problem, sizeof problem, "expected a size that %s holds for %.80s, got %lld", type, name,
           static_cast<long long>(value));
  return cuda_refuse(title, size, problem, "Declare the kernel's parameter int64_t.");
}

// Grid, block and dynamic shared memory as the launch rule gives them.
struct CudaSizes {
  CudaSize grid[3];
  CudaSize block[3];
  CudaSize shared;
};

// Checks the sizes of a launch; `elements` is what the outputs hold. Returns 0 to launch, 1 where
// there is nothing to do, or -1 with the engine's error set.
inline int cuda_sizes(const char* title, const CudaSizes& sizes, int64_t elements) {
  static const int64_t grids[3] = {2147483647, 65535, 65535};
  static const int64_t blocks[3] = {1024, 1024, 64};
  const char* change = "Change launch: in the front matter.";
  char problem[320];
  int empty = -1;
  for (int d = 0; d < 3; ++d) {
    if (cuda_computed(title, "grid", sizes.grid[d]) != 0) return -1;
    const int64_t grid = sizes.grid[d].number.value;
    if (grid < 0 || grid > grids[d]) {
      char remedy[200];
      snprintf(remedy, sizeof remedy,
               "Write min(…, %lld) under launch: in the front matter, and let each thread of the "
               "kernel loop over elements.",
               static_cast<long long>(grids[d]));
      snprintf(problem, sizeof problem,
               "expected a grid of 0 to %lld blocks in dimension %d, got %lld",
               static_cast<long long>(grids[d]), d, static_cast<long long>(grid));
      return cuda_refuse(title, sizes.grid[d], problem, grid < 0 ? change : remedy);
    }
    if (grid == 0) empty = d;
  }
  if (empty >= 0 && elements == 0) return 1;
  int64_t threads = 1;
  for (int d = 0; d < 3; ++d) {
    if (cuda_computed(title, "block", sizes.block[d]) != 0) return -1;
    const int64_t block = sizes.block[d].number.value;
    // Nothing is written by a block without threads, which is right where there is nothing to write.
    if (block == 0 && elements == 0) return 1;
    if (block < 1 || block > blocks[d]) {
      snprintf(problem, sizeof problem,
               "expected a block of 1 to %lld threads in dimension %d, got %lld",
               static_cast<long long>(blocks[d]), d, static_cast<long long>(block));
      return cuda_refuse(title, sizes.block[d], problem, change);
    }
    threads *= block;
  }
  if (threads > 1024) {
    int last = 2;
    while (last > 0 && !sizes.block[last].text) --last;
    snprintf(problem, sizeof problem,
             "expected a block of at most 1024 threads, got %lld x %lld x %lld; dimension %d has %lld",
             static_cast<long long>(sizes.block[0].number.value),
             static_cast<long long>(sizes.block[1].number.value),
             static_cast<long long>(sizes.block[2].number.value), last,
             static_cast<long long>(sizes.block[last].number.value));
    return cuda_refuse(title, sizes.block[last], problem, change);
  }
  if (cuda_computed(title, "shared", sizes.shared) != 0) return -1;
  const int64_t shared = sizes.shared.number.value;
  if (shared < 0 || shared > 2147483647) {
    snprintf(problem, sizeof problem, "expected 0 to 2147483647 bytes of shared memory, got %lld",
             static_cast<long long>(shared));
    return cuda_refuse(title, sizes.shared, problem, change);
  }
  if (empty >= 0) {
    snprintf(problem, sizeof problem,
             "expected a grid that writes the %lld elements of the result, got 0 blocks in "
             "dimension %d",
             static_cast<long long>(elements), empty);
    return cuda_refuse(title, sizes.grid[empty], problem, change);
  }
  return 0;
}

// Launches a kernel of the library's binaries by the name that it has there.
inline int cuda_launch(const char* title, const char* kernel, const CudaSizes& sizes,
                       int32_t device, void** values) {
  tp_cuda_config config{};
  for (int d = 0; d < 3; ++d) {
    config.grid[d] = static_cast<uint32_t>(sizes.grid[d].number.value);
    config.block[d] = static_cast<uint32_t>(sizes.block[d].number.value);
  }
  config.shared = static_cast<uint32_t>(sizes.shared.number.value);
  config.device = device;
  return tp_cuda_run(&tp_cuda_own_program, title, kernel, &config, values);
}

}  // namespace jit
}  // namespace tensorplay

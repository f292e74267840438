// The wrapper around functions of a CUDA or HIP source: no host array reaches a launcher, a launcher
// runs on the device of its tensors, and no launch fails unseen. Included by nvcc and hipcc only,
// after one of the two sets of headers.
#pragma once
#pragma GCC system_header
#include <stdio.h>
#include <tensorplay/ffi_export.h>

#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
#define TP_GPU(Name) hip##Name
#define TP_GPU_SHOWN "rocm"
#define TP_GPU_PLATFORM "ROCm"
#define TP_GPU_ARCHITECTURE "gfx%d%dx"
#define TP_GPU_VERSION_MAJOR 10000000
#define TP_GPU_VERSION_MINOR 100000
#define TP_GPU_MAJOR hipDeviceAttributeComputeCapabilityMajor
#define TP_GPU_MINOR hipDeviceAttributeComputeCapabilityMinor
#else
#include <cuda_runtime_api.h>
#define TP_GPU(Name) cuda##Name
#define TP_GPU_SHOWN "cuda"
#define TP_GPU_PLATFORM "CUDA"
#define TP_GPU_ARCHITECTURE "sm_%d%d"
#define TP_GPU_VERSION_MAJOR 1000
#define TP_GPU_VERSION_MINOR 10
#define TP_GPU_MAJOR cudaDevAttrComputeCapabilityMajor
#define TP_GPU_MINOR cudaDevAttrComputeCapabilityMinor
#endif

namespace tensorplay {
namespace jit {

// The last launch of this thread that failed.
struct FailedLaunch {
  TP_GPU(Error_t) status;
  unsigned grid[3], block[3];
  size_t shared;
};

inline bool is_gpu(int32_t type) {
#ifdef __HIP_PLATFORM_AMD__
  return type == kDLROCM;
#else
  return type == kDLCUDA || type == kDLCUDAManaged;
#endif
}

inline const char* device_name(int32_t type) {
  switch (type) {
    case kDLCPU: return "cpu";
    case kDLCUDA:
    case kDLCUDAManaged: return "cuda";
    case kDLCUDAHost:
    case kDLROCMHost: return "pinned cpu memory";
    case kDLROCM: return "rocm";
    default: return "another device";
  }
}

// Checks that all tensors are on one GPU and that it is there, and makes it the current one for the
// call; `parameters` are separated by commas and may be fewer than the arguments. `previous` is the
// device to return to afterwards, or -1. Returns 0, or -1 with the engine's error set.
inline int before_launch(const char* function, const char* parameters, const char* built_for,
                         const TVMFFIAny* args, int32_t count, int* previous) {
  char message[640];
  char shown[96] = "";
  int32_t device = -1;
  *previous = -1;
  for (int32_t i = 0; i < count; ++i) {
    int length = 0;
    while (parameters[length] && parameters[length] != ',') ++length;
    const char* name = parameters;
    parameters += length + (parameters[length] == ',');
    int32_t type = args[i].type_index;
    if (type != kTVMFFITensor && type != kTVMFFIDLTensorPtr) continue;
    const DLTensor* tensor = DLTensorValue::get(args[i]);
    if (length) {
      snprintf(shown, sizeof(shown), "'%.*s'", length < 90 ? length : 90, name);
    } else {
      snprintf(shown, sizeof(shown), "#%d", static_cast<int>(i));
    }
    int32_t kind = tensor->device.device_type;
    int32_t index = tensor->device.device_id;
    if (!is_gpu(kind)) {
      snprintf(message, sizeof(message),
               "[%s] argument %s: expected a tensor on " TP_GPU_SHOWN ", got one on %s. "
               "Move it to the GPU.",
               function, shown, device_name(kind));
      return tp_rt_raise("ValueError", message);
    }
    if (device >= 0 && index != device) {
      snprintf(message, sizeof(message),
               "[%s] argument %s: expected a tensor on " TP_GPU_SHOWN ":%d as the ones before, "
               "got one on " TP_GPU_SHOWN ":%d. Move it there.",
               function, shown, static_cast<int>(device), static_cast<int>(index));
      return tp_rt_raise("ValueError", message);
    }
    device = index;
  }
  int devices = 0;
  TP_GPU(Error_t) status = TP_GPU(GetDeviceCount)(&devices);
  if (status != TP_GPU(Success) || devices == 0) {
    (void)TP_GPU(GetLastError)();
    int driver = 0;
    (void)TP_GPU(DriverGetVersion)(&driver);
    char found[96] = "no driver was found";
    if (driver) {
      snprintf(found, sizeof(found), "the driver supports " TP_GPU_PLATFORM " %d.%d",
               driver / TP_GPU_VERSION_MAJOR,
               driver % TP_GPU_VERSION_MAJOR / TP_GPU_VERSION_MINOR);
    }
    snprintf(message, sizeof(message),
             "[%s] cannot run here: no GPU that " TP_GPU_PLATFORM
             " can use (%s; %s). It was built for %s.",
             function, TP_GPU(GetErrorString)(status), found, built_for);
    return tp_rt_raise("RuntimeError", message);
  }
  if (device >= devices) {
    snprintf(message, sizeof(message),
             "[%s] argument %s: expected a tensor on one of the %d GPUs of this machine, got one on "
             TP_GPU_SHOWN ":%d.",
             function, shown, devices, static_cast<int>(device));
    return tp_rt_raise("ValueError", message);
  }
  int current = 0;
  if (device >= 0 && TP_GPU(GetDevice)(&current) == TP_GPU(Success) && current != device &&
      TP_GPU(SetDevice)(device) == TP_GPU(Success)) {
    *previous = current;
  }
  (void)TP_GPU(GetLastError)();  // what an earlier call left behind is not this one's
  return 0;
}

// Sets the engine's error for a launch that failed; `result` is let go of. Returns -1.
inline int launch_failed(const char* function, const char* built_for, TVMFFIAny* result,
                         const FailedLaunch& failed) {
  if (result->type_index >= kTVMFFIStaticObjectBegin) {
    TVMFFIObjectDecRef(result->v_obj);
    result->type_index = kTVMFFINone;
    result->v_int64 = 0;
  }
  int device = 0, major = 0, minor = 0;
  (void)TP_GPU(GetDevice)(&device);
  (void)TP_GPU(DeviceGetAttribute)(&major, TP_GPU_MAJOR, device);
  (void)TP_GPU(DeviceGetAttribute)(&minor, TP_GPU_MINOR, device);
  char message[768], present[32] = "there is none", where[160] = "";
  if (major) snprintf(present, sizeof(present), "this one is " TP_GPU_ARCHITECTURE, major, minor);
  if (failed.block[0]) {
    snprintf(where, sizeof(where),
             " Grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of dynamic shared memory.",
             failed.grid[0], failed.grid[1], failed.grid[2], failed.block[0], failed.block[1],
             failed.block[2], failed.shared);
  }
  snprintf(message, sizeof(message), "[%s] the launch failed: %s %d: %s.%s It was built for %s. GPU: %s.",
           function, TP_GPU(GetErrorName)(failed.status), static_cast<int>(failed.status),
           TP_GPU(GetErrorString)(failed.status), where, built_for, present);
  return tp_rt_raise("RuntimeError", message);
}

}  // namespace jit
}  // namespace tensorplay

// The library is linked with --wrap, so that each launch is looked at where it happens: a function
// may launch nothing, and without a driver the last error is set all the same. Toolkits before 13
// call the second function for `<<<>>>`, newer ones the first.
#define TP_GPU_WRAP(Launch)                                                                       \
  extern "C" __attribute__((weak)) TP_GPU(Error_t)                                                \
      __real_##Launch(const void*, dim3, dim3, void**, size_t, TP_GPU(Stream_t));                 \
  extern "C" __attribute__((visibility("hidden"))) TP_GPU(Error_t) __wrap_##Launch(               \
      const void* kernel, dim3 grid, dim3 block, void** args, size_t shared,                      \
      TP_GPU(Stream_t) stream) {                                                                  \
    TP_GPU(Error_t) status = __real_##Launch(kernel, grid, block, args, shared, stream);          \
    if (status != TP_GPU(Success)) {                                                              \
      tp_gpu_failed = {status, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};    \
    }                                                                                             \
    return status;                                                                                \
  }
#ifdef __HIP_PLATFORM_AMD__
// Where this fails, `<<<>>>` leaves the launch out without a word.
#define TP_GPU_WRAPS                                                                              \
  TP_GPU_WRAP(hipLaunchKernel)                                                                    \
  extern "C" hipError_t __real___hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t);       \
  extern "C" __attribute__((visibility("hidden"))) hipError_t __wrap___hipPushCallConfiguration(  \
      dim3 grid, dim3 block, size_t shared, hipStream_t stream) {                                 \
    hipError_t status = __real___hipPushCallConfiguration(grid, block, shared, stream);           \
    if (status != hipSuccess) {                                                                   \
      tp_gpu_failed = {status, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};    \
    }                                                                                             \
    return status;                                                                                \
  }
#else
#define TP_GPU_WRAPS                \
  TP_GPU_WRAP(__cudaLaunchKernel)   \
  TP_GPU_WRAP(cudaLaunchKernel)
#endif

// `tp_cuda_after_launch` is called by TP_EXPORT_LAUNCHING in the C++ part of the library.
#define TP_CUDA_LAUNCHES(BuiltFor)                                                                \
  static thread_local ::tensorplay::jit::FailedLaunch tp_gpu_failed = {};                         \
  TP_GPU_WRAPS                                                                                    \
  extern "C" __attribute__((visibility("hidden"))) int tp_cuda_after_launch(const char* function, \
                                                                            TVMFFIAny* result) {  \
    ::tensorplay::jit::FailedLaunch failed = tp_gpu_failed;                                       \
    tp_gpu_failed = {};                                                                           \
    if (failed.status == TP_GPU(Success)) return 0;                                               \
    (void)TP_GPU(GetLastError)();                                                                 \
    return ::tensorplay::jit::launch_failed(function, BuiltFor, result, failed);                  \
  }

#define TP_EXPORT_CUDA(Name, Function, Parameters, BuiltFor)                                      \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##Name(                         \
      void*, const TVMFFIAny* tp_args_, int32_t tp_count_, TVMFFIAny* tp_result_) {               \
    int tp_previous_;                                                                             \
    int tp_status_ = ::tensorplay::jit::before_launch(#Name, Parameters, BuiltFor, tp_args_,      \
                                                      tp_count_, &tp_previous_);                  \
    if (tp_status_) return tp_status_;                                                            \
    tp_gpu_failed = {};                                                                           \
    tp_status_ = ::tensorplay::jit::call(Function, #Name, tp_args_, tp_count_, tp_result_);       \
    ::tensorplay::jit::FailedLaunch tp_last_ = {TP_GPU(GetLastError)(), {}, {}, 0};               \
    if (!tp_status_) tp_status_ = tp_cuda_after_launch(#Name, tp_result_);                        \
    if (!tp_status_ && tp_last_.status != TP_GPU(Success)) {                                      \
      tp_status_ = ::tensorplay::jit::launch_failed(#Name, BuiltFor, tp_result_, tp_last_);       \
    }                                                                                             \
    if (tp_previous_ >= 0) (void)TP_GPU(SetDevice)(tp_previous_);                                 \
    return tp_status_;                                                                            \
  }

// The wrapper around functions of a CUDA source: no host array reaches a launcher, and no launch
// fails unseen. Included by nvcc only, after one of the two sets of headers.
#pragma once
#pragma GCC system_header
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <tensorplay/ffi_export.h>

namespace tensorplay {
namespace jit {

inline const char* device_name(int32_t type) {
  switch (type) {
    case kDLCPU: return "cpu";
    case kDLCUDA: return "cuda";
    case kDLCUDAHost: return "pinned cpu memory";
    case kDLCUDAManaged: return "cuda";
    case kDLROCM: return "rocm";
    default: return "another device";
  }
}

// Checks that all tensors are on one GPU and that there is one; `parameters` are separated by
// commas and may be fewer than the arguments. Returns 0, or -1 with the engine's error set.
inline int before_launch(const char* function, const char* parameters, const char* built_for,
                         const TVMFFIAny* args, int32_t count) {
  char message[640];
  int32_t device = -1;
  for (int32_t i = 0; i < count; ++i) {
    int length = 0;
    while (parameters[length] && parameters[length] != ',') ++length;
    const char* name = parameters;
    parameters += length + (parameters[length] == ',');
    int32_t type = args[i].type_index;
    if (type != kTVMFFITensor && type != kTVMFFIDLTensorPtr) continue;
    const DLTensor* tensor = DLTensorValue::get(args[i]);
    char shown[96];
    if (length) {
      snprintf(shown, sizeof(shown), "'%.*s'", length < 90 ? length : 90, name);
    } else {
      snprintf(shown, sizeof(shown), "#%d", static_cast<int>(i));
    }
    int32_t kind = tensor->device.device_type;
    if (kind != kDLCUDA && kind != kDLCUDAManaged) {
      snprintf(message, sizeof(message),
               "[%s] argument %s: expected a tensor on cuda, got one on %s. Move it to the GPU.",
               function, shown, device_name(kind));
      return tp_rt_raise("ValueError", message);
    }
    if (device >= 0 && tensor->device.device_id != device) {
      snprintf(message, sizeof(message),
               "[%s] argument %s: expected a tensor on cuda:%d as the first one, got one on cuda:%d",
               function, shown, static_cast<int>(device),
               static_cast<int>(tensor->device.device_id));
      return tp_rt_raise("ValueError", message);
    }
    device = tensor->device.device_id;
  }
  int devices = 0;
  cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    cudaGetLastError();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    char found[96] = "no driver was found";
    if (driver) {
      snprintf(found, sizeof(found), "the driver supports CUDA %d.%d", driver / 1000,
               driver % 1000 / 10);
    }
    snprintf(message, sizeof(message),
             "[%s] cannot run here: no GPU that CUDA can use (%s; %s). It was built for %s.",
             function, cudaGetErrorString(status), found, built_for);
    return tp_rt_raise("RuntimeError", message);
  }
  cudaGetLastError();  // what an earlier call left behind is not this one's
  return 0;
}

// Sets the engine's error for a launch that failed; `result` is let go of. Returns -1.
inline int launch_failed(const char* function, const char* built_for, TVMFFIAny* result,
                         cudaError_t status) {
  if (result->type_index >= kTVMFFIStaticObjectBegin) {
    TVMFFIObjectDecRef(result->v_obj);
    result->type_index = kTVMFFINone;
    result->v_int64 = 0;
  }
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  char message[640], present[32] = "there is none";
  if (major) snprintf(present, sizeof(present), "this one is sm_%d%d", major, minor);
  snprintf(message, sizeof(message),
           "[%s] the launch failed: %s (%s). It was built for %s. GPU: %s.", function,
           cudaGetErrorString(status), cudaGetErrorName(status), built_for, present);
  return tp_rt_raise("RuntimeError", message);
}

inline int after_launch(const char* function, const char* built_for, TVMFFIAny* result) {
  cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? 0 : launch_failed(function, built_for, result, status);
}

}  // namespace jit
}  // namespace tensorplay

#define TP_EXPORT_CUDA(Name, Function, Parameters, BuiltFor)                                      \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##Name(                         \
      void*, const TVMFFIAny* tp_args_, int32_t tp_count_, TVMFFIAny* tp_result_) {               \
    int tp_status_ = ::tensorplay::jit::before_launch(#Name, Parameters, BuiltFor, tp_args_,      \
                                                      tp_count_);                                 \
    if (tp_status_) return tp_status_;                                                            \
    tp_status_ = ::tensorplay::jit::call(Function, #Name, tp_args_, tp_count_, tp_result_);       \
    return tp_status_ ? tp_status_                                                                \
                      : ::tensorplay::jit::after_launch(#Name, BuiltFor, tp_result_);             \
  }

// What TP_EXPORT_LAUNCHING in the C++ part of the library calls. Its functions may as well launch
// nothing, and without a driver `cudaGetLastError` fails for those too; so the library is linked with
// --wrap, and each launch is looked at where it happens. Toolkits before 13 call the second function.
#define TP_CUDA_WRAP(Launch)                                                                      \
  extern "C" __attribute__((weak)) cudaError_t __real_##Launch(const void*, dim3, dim3, void**,   \
                                                               size_t, cudaStream_t);             \
  extern "C" __attribute__((visibility("hidden"))) cudaError_t __wrap_##Launch(                   \
      const void* kernel, dim3 grid, dim3 block, void** args, size_t shared,                      \
      cudaStream_t stream) {                                                                      \
    cudaError_t status = __real_##Launch(kernel, grid, block, args, shared, stream);              \
    if (status != cudaSuccess) tp_cuda_launch_status = status;                                    \
    return status;                                                                                \
  }
#define TP_CUDA_AFTER_LAUNCH(BuiltFor)                                                            \
  static thread_local cudaError_t tp_cuda_launch_status = cudaSuccess;                            \
  TP_CUDA_WRAP(__cudaLaunchKernel)                                                                \
  TP_CUDA_WRAP(cudaLaunchKernel)                                                                  \
  extern "C" __attribute__((visibility("hidden"))) int tp_cuda_after_launch(const char* function, \
                                                                            TVMFFIAny* result) {  \
    cudaError_t status = tp_cuda_launch_status;                                                   \
    tp_cuda_launch_status = cudaSuccess;                                                          \
    if (status == cudaSuccess) return 0;                                                          \
    cudaGetLastError();                                                                           \
    return ::tensorplay::jit::launch_failed(function, BuiltFor, result, status);                  \
  }

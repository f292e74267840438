// Kernels that a library carries as binaries, launched through the driver.
//
// Nothing of a CUDA toolkit is needed, neither to compile nor to load: the driver is looked for when
// the first kernel is launched. C++ text of a library whose CUDA text holds only kernels includes
// this and writes `tp::cuda::launch("scale", {blocks, threads}, x, out, n)`.
#pragma once
#pragma GCC system_header
#include <tensorplay/runtime.h>

enum tp_cuda_image_kind : int32_t { TP_CUDA_CUBIN, TP_CUDA_PTX, TP_CUDA_FATBIN };

// Code for one architecture such as 90; `variant` is 'a' or 'f' for code that is bound to its
// architecture or family, and 0 for others. A fat binary holds several and has no architecture.
struct tp_cuda_image {
  int32_t kind;
  int32_t architecture;
  int32_t variant;
  const char* data;
};

enum tp_cuda_parameter_kind : uint8_t {
  TP_CUDA_TENSOR,
  TP_CUDA_BOOL,
  TP_CUDA_INT,
  TP_CUDA_UINT,
  TP_CUDA_FLOAT
};

// `bits` of the scalar, or of the tensor's elements, whose DLPack code is `code`; 0 takes any.
struct tp_cuda_parameter {
  const char* name;
  const char* type;
  uint8_t kind;
  uint8_t bits;
  uint8_t code;
};

struct tp_cuda_kernel {
  const char* name;
  const char* symbol;
  const tp_cuda_parameter* parameters;
  int32_t count;
};

struct tp_cuda_program {
  const tp_cuda_image* images;
  int32_t image_count;
  const tp_cuda_kernel* kernels;
  int32_t kernel_count;
  const char* built_for;
  int32_t toolkit;  // such as 13050, or 0
  void* state;      // of the process: modules and functions by device
};

struct tp_cuda_config {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared;     // bytes
  int32_t has_stream;  // else the engine's current stream of the device
  void* stream;
  int32_t device;  // -1: that of the first tensor
};

// One argument as C++ passes it to the kernel; `device_type` is 0 for what is no tensor.
struct tp_cuda_argument {
  alignas(16) char value[16];
  uint32_t size;
  uint8_t kind;
  int32_t device_type;
  int32_t device_id;
};

extern "C" {
// Launches kernel number `kernel` for a call from Python: grid, block, bytes of shared memory and
// stream (None for the current one) come before the kernel's own arguments. Both return 0, or -1
// with the engine's error set.
int tp_cuda_call(tp_cuda_program* program, int32_t kernel, const TVMFFIAny* args, int32_t count);
int tp_cuda_launch(tp_cuda_program* program, const char* kernel, const tp_cuda_config* config,
                   const tp_cuda_argument* args, int32_t count);
// Launches a kernel for `title`, which messages name, with the addresses of its parameters; whoever
// calls has checked them.
int tp_cuda_run(tp_cuda_program* program, const char* title, const char* kernel,
                const tp_cuda_config* config, void** values);
extern __attribute__((visibility("hidden"))) tp_cuda_program tp_cuda_own_program;
}

#define TP_CUDA_EXPORT(Name, Kernel)                                                  \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##Name(             \
      void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {                      \
    return tp_cuda_call(&tp_cuda_own_program, Kernel, args, count);                   \
  }
#define TP_CUDA_EXPORT_DOC(Name, Text)                                                \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi__doc_##Name(        \
      void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {                          \
    TVMFFIByteArray bytes{Text, sizeof(Text) - 1};                                    \
    return TVMFFIStringFromByteArray(&bytes, result);                                 \
  }

namespace tp {
namespace cuda {

struct Dim3 {
  constexpr Dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
  uint32_t x, y, z;
};

// Where a kernel runs: on the engine's current stream of the first tensor's device unless set.
struct Config {
  Config(Dim3 grid, Dim3 block, uint32_t shared = 0) : grid(grid), block(block), shared(shared) {}
  Config& on_stream(void* value) {
    stream = value;
    has_stream = true;
    return *this;
  }
  Config& on_device(int32_t id) {
    device = id;
    return *this;
  }
  Dim3 grid, block;
  uint32_t shared;
  bool has_stream = false;
  void* stream = nullptr;
  int32_t device = -1;
};

namespace detail {

template <typename T_>
struct Kind {
  static constexpr uint8_t value = __is_enum(T_) ? TP_CUDA_INT : 0xff;
};
template <typename T_>
struct Kind<T_*> {
  static constexpr uint8_t value = TP_CUDA_TENSOR;
};
#define TP_CUDA_KIND(Type, Value)          \
  template <>                              \
  struct Kind<Type> {                      \
    static constexpr uint8_t value = Value; \
  };
TP_CUDA_KIND(bool, TP_CUDA_BOOL)
TP_CUDA_KIND(char, TP_CUDA_INT)
TP_CUDA_KIND(signed char, TP_CUDA_INT)
TP_CUDA_KIND(unsigned char, TP_CUDA_UINT)
TP_CUDA_KIND(short, TP_CUDA_INT)
TP_CUDA_KIND(unsigned short, TP_CUDA_UINT)
TP_CUDA_KIND(int, TP_CUDA_INT)
TP_CUDA_KIND(unsigned, TP_CUDA_UINT)
TP_CUDA_KIND(long, TP_CUDA_INT)
TP_CUDA_KIND(unsigned long, TP_CUDA_UINT)
TP_CUDA_KIND(long long, TP_CUDA_INT)
TP_CUDA_KIND(unsigned long long, TP_CUDA_UINT)
TP_CUDA_KIND(float, TP_CUDA_FLOAT)
TP_CUDA_KIND(double, TP_CUDA_FLOAT)
#undef TP_CUDA_KIND

// Tensors and views of them are passed as the address of their first element.
template <typename T_>
auto argument(const T_& tensor, int) -> decltype(tensor.dtype(), tp_cuda_argument()) {
  tp_cuda_argument made{};
  void* data = static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
  __builtin_memcpy(made.value, &data, sizeof(data));
  made.size = sizeof(data);
  made.kind = TP_CUDA_TENSOR;
  made.device_type = tensor.device().device_type;
  made.device_id = tensor.device().device_id;
  return made;
}
template <typename T_>
tp_cuda_argument argument(const T_& value, long) {
  static_assert(Kind<T_>::value != 0xff && sizeof(T_) <= 16,
                "a kernel takes tensors, pointers, integers, bool, float and double");
  tp_cuda_argument made{};
  __builtin_memcpy(made.value, &value, sizeof(T_));
  made.size = sizeof(T_);
  made.kind = Kind<T_>::value;
  return made;
}

}  // namespace detail

// Launches a kernel of the library's CUDA text by its name; sizes and kinds of the arguments must be
// those of its parameters. Throws ValueError, TypeError or RuntimeError.
template <typename... A_>
void launch(const char* kernel, const Config& config, const A_&... arguments) {
  const tp_cuda_config raw{{config.grid.x, config.grid.y, config.grid.z},
                           {config.block.x, config.block.y, config.block.z},
                           config.shared,
                           config.has_stream,
                           config.stream,
                           config.device};
  const tp_cuda_argument list[] = {detail::argument(arguments, 0)..., tp_cuda_argument{}};
  if (tp_cuda_launch(&tp_cuda_own_program, kernel, &raw, list, sizeof...(A_)) != 0) {
    tp_rt_throw_raised();
  }
}

}  // namespace cuda
}  // namespace tp

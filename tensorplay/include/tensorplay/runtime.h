// Entry points of the run-time library: what every kernel library shares and nobody wants compiled
// again in each cell. It is built once per compiler and engine version and linked in as an archive,
// so a finished kernel library needs nothing of TensorPlay to be loaded. Plain C linkage: the light
// and the full set of headers, and code that only knows the engine's C ABI, call the same functions.
#pragma once
#pragma GCC system_header
#include <stddef.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

#define TP_RT_COLD __attribute__((cold))

// An error that is being written: its kind, its place and the message so far.
namespace tensorplay {
namespace jit {
struct Error;
}  // namespace jit
}  // namespace tensorplay

// What a C++ parameter takes from the engine.
enum tp_rt_kind : uint8_t {
  TP_RT_KIND_NONE,
  TP_RT_KIND_BOOL,
  TP_RT_KIND_INT,
  TP_RT_KIND_REAL,
  TP_RT_KIND_VIEW,
  TP_RT_KIND_TENSOR,
  TP_RT_KIND_POINTER,
  TP_RT_KIND_STRING,
  TP_RT_KIND_ENGINE
};

// One type of a signature; the width matters for integers. A container has its elements' types in
// `inner`, which its full name is made of; a type that only the engine can name has no `name`, and
// `describe` assigns it to a `std::string`.
struct tp_rt_type {
  const char* name;
  uint8_t kind;
  uint8_t bits;
  bool is_signed;
  uint8_t inner_count;
  const tp_rt_type* inner;
  void (*describe)(void* string);
};

extern "C" {
// Turns the C++ exception in flight into the engine's raised error. Call it in a catch block.
TP_RT_COLD int tp_rt_raise_current();
// Sets the engine's raised error; `kind` is the name of a Python exception. Returns -1.
TP_RT_COLD int tp_rt_raise(const char* kind, const char* message);
// Throws the engine's C++ error.
[[noreturn]] TP_RT_COLD void tp_rt_throw(const char* kind, const char* message);
// Throws the error that a C function of the engine left behind.
[[noreturn]] TP_RT_COLD void tp_rt_throw_raised();
// Starts an error; `kind` is the name of a Python exception. Throws without memory for it.
TP_RT_COLD tensorplay::jit::Error* tp_rt_error_new(const char* kind, const char* file, int line,
                                        const char* function);
// Starts the text of the two sides of a comparison, "(" first.
TP_RT_COLD tensorplay::jit::Error* tp_rt_error_sides();
TP_RT_COLD tensorplay::jit::Error* tp_rt_error_sides_int64(int64_t x, int64_t y);
// The same for a check: the message is "Check failed: ", the condition, and the text of `sides`,
// which is freed and may be null.
TP_RT_COLD tensorplay::jit::Error* tp_rt_error_check(const char* kind, const char* file, int line,
                                          const char* function, const char* condition,
                                          tensorplay::jit::Error* sides);
// Append one value as `std::ostream` would; without memory the message stays as it is.
TP_RT_COLD void tp_rt_error_char(tensorplay::jit::Error* error, char value) noexcept;
TP_RT_COLD void tp_rt_error_int64(tensorplay::jit::Error* error, int64_t value) noexcept;
TP_RT_COLD void tp_rt_error_uint64(tensorplay::jit::Error* error, uint64_t value) noexcept;
TP_RT_COLD void tp_rt_error_float(tensorplay::jit::Error* error, float value) noexcept;
TP_RT_COLD void tp_rt_error_double(tensorplay::jit::Error* error, double value) noexcept;
TP_RT_COLD void tp_rt_error_string(tensorplay::jit::Error* error, const char* value) noexcept;
TP_RT_COLD void tp_rt_error_pointer(tensorplay::jit::Error* error, const void* value) noexcept;
TP_RT_COLD void tp_rt_error_dtype(tensorplay::jit::Error* error, DLDataType value) noexcept;
// Throws it, with one line of back trace, and frees it.
[[noreturn]] TP_RT_COLD void tp_rt_error_throw(tensorplay::jit::Error* error);

[[noreturn]] TP_RT_COLD void tp_rt_bad_dimension(int64_t index, int64_t ndim);
[[noreturn]] TP_RT_COLD void tp_rt_bad_shape_index(int64_t index, int64_t size);
[[noreturn]] TP_RT_COLD void tp_rt_no_strides();
[[noreturn]] TP_RT_COLD void tp_rt_no_tensor(const char* condition);

// Checks the arguments of a call against its signature: `count` parameters, then the result.
// Returns 0, or -1 with the engine's error set. What only the engine can convert is not checked:
// see `tp_rt_throw_mismatch`.
int tp_rt_check_call(const char* function, const tp_rt_type* signature, int32_t count,
                     const TVMFFIAny* args, int32_t got);
// Checks the arguments and has `body` convert them, call `target` and store the result. Every
// exception ends here, compiled once and not per export; returns 0, or -1 with the engine's error set.
int tp_rt_call(const char* function, const tp_rt_type* signature, int32_t count,
               const TVMFFIAny* args, int32_t got, TVMFFIAny* result,
               void (*body)(void (*target)(), const char* function, const TVMFFIAny* args,
                            TVMFFIAny* result),
               void (*target)());
// Has the engine's or a caller's allocator make a tensor; throws the error that it leaves behind.
TVMFFIObject* tp_rt_allocate(int (*allocate)(DLTensor*, TVMFFIObjectHandle*), const int64_t* shape,
                             size_t ndim, DLDataType dtype, DLDevice device);
// Whether the elements lie in memory in the order of their indices, without gaps.
bool tp_rt_is_contiguous(const DLTensor* tensor) noexcept;
// What an argument of kind view shows.
DLTensor* tp_rt_dl_tensor(const TVMFFIAny* value);
// The characters of an argument of kind string, which live as long as the argument.
TVMFFIByteArray tp_rt_string(const TVMFFIAny* value);
// Throws the error for an argument that the engine cannot convert. `describe` assigns what was
// passed, in the engine's words, to a `std::string`.
[[noreturn]] TP_RT_COLD void tp_rt_throw_mismatch(const char* function, const tp_rt_type* signature,
                                                  int32_t count, int32_t index,
                                                  const TVMFFIAny* value,
                                                  void (*describe)(const TVMFFIAny*, void*));
}

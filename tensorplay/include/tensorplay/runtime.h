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

// A growing text owned by the caller until `tp_rt_text_free` or `tp_rt_throw_text`.
struct tp_rt_text {
  char* data;
  size_t size;
  size_t capacity;
};

// What `tp_rt_text_append` finds behind its pointer.
enum tp_rt_format : int32_t {
  TP_RT_BOOL,
  TP_RT_CHAR,
  TP_RT_INT64,
  TP_RT_UINT64,
  TP_RT_FLOAT,
  TP_RT_DOUBLE,
  TP_RT_C_STRING,
  TP_RT_POINTER,
  TP_RT_DTYPE
};

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
// Throws with `text` as message (taken over and freed) and one line of back trace.
[[noreturn]] TP_RT_COLD void tp_rt_throw_text(const char* kind, tp_rt_text* text, const char* file,
                                              int line, const char* function);
// Formats one value as `std::ostream` would; without memory the text stays as it is.
TP_RT_COLD void tp_rt_text_append(tp_rt_text* text, int32_t format, const void* value) noexcept;
// Moves a text to the heap, for `tp_rt_text_move`, which appends it to another and frees it.
TP_RT_COLD tp_rt_text* tp_rt_text_keep(tp_rt_text* text) noexcept;
TP_RT_COLD void tp_rt_text_move(tp_rt_text* text, tp_rt_text* kept) noexcept;
TP_RT_COLD void tp_rt_text_free(tp_rt_text* text) noexcept;

[[noreturn]] TP_RT_COLD void tp_rt_bad_dimension(int64_t index, int64_t ndim);
[[noreturn]] TP_RT_COLD void tp_rt_bad_shape_index(int64_t index, int64_t size);
[[noreturn]] TP_RT_COLD void tp_rt_no_strides();
[[noreturn]] TP_RT_COLD void tp_rt_no_tensor(const char* condition);

// Checks the arguments of a call against its signature: `count` parameters, then the result.
// Returns 0, or -1 with the engine's error set. What only the engine can convert is not checked:
// see `tp_rt_throw_mismatch`.
int tp_rt_check_call(const char* function, const tp_rt_type* signature, int32_t count,
                     const TVMFFIAny* args, int32_t got);
// Throws the error for an argument that the engine cannot convert. `describe` assigns what was
// passed, in the engine's words, to a `std::string`.
[[noreturn]] TP_RT_COLD void tp_rt_throw_mismatch(const char* function, const tp_rt_type* signature,
                                                  int32_t count, int32_t index,
                                                  const TVMFFIAny* value,
                                                  void (*describe)(const TVMFFIAny*, void*));
}

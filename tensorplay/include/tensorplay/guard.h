// The contract between a generated export wrapper and the run-time guard.
//
// A wrapper holds one static table per exported function and makes one call to tp_rt_guard before
// the kernel runs. Everything that can be said about an argument without knowing the kernel's
// body (kind, dtype, device, rank, shape relations, layout, aliasing, integer range) is checked
// there, out of line, so that a guarded call costs a few tens of nanoseconds and a cell's own
// translation unit stays small. This file relies on the engine's C ABI alone and therefore works
// with the light and the full headers.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

extern "C" {

// What an argument may be.
enum tp_kind : int32_t {
  TP_KIND_ANY = 0,  // not examined here: the engine's own conversion judges it
  TP_KIND_TENSOR = 1,
  TP_KIND_INT = 2,
  TP_KIND_FLOAT = 3,
  TP_KIND_BOOL = 4,
};

// Element types, as bit numbers of tp_guard_arg::dtypes and as values of the dispatch codes.
enum tp_dtype : int32_t {
  TP_DTYPE_BOOL = 0,
  TP_DTYPE_UINT8,
  TP_DTYPE_INT8,
  TP_DTYPE_UINT16,
  TP_DTYPE_INT16,
  TP_DTYPE_UINT32,
  TP_DTYPE_INT32,
  TP_DTYPE_UINT64,
  TP_DTYPE_INT64,
  TP_DTYPE_FLOAT16,
  TP_DTYPE_BFLOAT16,
  TP_DTYPE_FLOAT32,
  TP_DTYPE_FLOAT64,
  TP_DTYPE_COMPLEX64,
  TP_DTYPE_COMPLEX128,
  TP_DTYPE_COUNT,
};

enum tp_flag : uint32_t {
  TP_FLAG_WRITES = 1u << 0,      // the kernel writes through this argument
  TP_FLAG_CONTIGUOUS = 1u << 1,  // the kernel indexes flat, so data must be contiguous
  TP_FLAG_ALIAS_OK = 1u << 2,    // may share memory with other arguments
  TP_FLAG_OPTIONAL = 1u << 3,    // None is admitted
  TP_FLAG_LIST = 1u << 4,        // a list of tensors, each guarded as one is
  TP_FLAG_ABSENT_MEMBERS = 1u << 5,  // members of the list may be None
  TP_FLAG_ALIKE = 1u << 6,       // the members of the list have one shape
};

enum tp_dim_kind : int32_t {
  TP_DIM_FREE = -1,     // any size
  TP_DIM_LITERAL = -2,  // exactly `value`
};

// One dimension of a declared shape: a symbol (index >= 0) that must have one size everywhere, a
// literal, or free.
struct tp_dim {
  int32_t symbol;
  int32_t reserved;
  int64_t value;
};

struct tp_guard_arg {
  const char* name;
  const char* type;     // the C++ parameter type, for messages about integer range
  int32_t kind;         // tp_kind
  int32_t rank;         // -1: any
  uint32_t dtypes;      // bit set of tp_dtype; 0: any. A number must fit the one that is set
  uint32_t flags;       // tp_flag
  int32_t variable;     // which dtype variable (template parameter) it binds; -1: none. A number
                        // must fit the dtype that the tensors have bound
  int32_t like;         // index of an earlier argument whose shape it must have; -1: none
  int64_t low;          // admitted integers, both ends included
  int64_t high;
  const tp_dim* dims;   // `rank` entries, or null
};

struct tp_guard {
  const char* name;  // the operator or function as the person wrote it
  const tp_guard_arg* args;
  int32_t num_args;
  int32_t num_variables;
  const char* const* symbols;  // names of the shape symbols, for messages
  int32_t num_symbols;
  int32_t device;  // DLPack's type of the device that the tensors lie on; 0 stands for the CPU
};

enum { TP_MAX_SYMBOLS = 32, TP_MAX_RESULTS = 16, TP_VIEW_INLINE_STRIDES = 8 };

// What the guard hands to the typed views: the tensor's memory with byte offset applied, and
// strides that are never null for up to TP_VIEW_INLINE_STRIDES dimensions. An argument that is
// absent has TP_ABSENT dimensions. That of a list has `numel` members, an array of their own views
// as data, and TP_MEMBERS dimensions.
enum { TP_ABSENT = -1, TP_MEMBERS = -2 };
struct tp_view {
  void* data;
  const int64_t* shape;
  const int64_t* strides;
  int64_t numel;
  int32_t ndim;
  int32_t dtype;  // tp_dtype
  const tp_guard* guard;
  const tp_guard_arg* arg;
  int64_t inline_strides[TP_VIEW_INLINE_STRIDES];
};

// Checks all arguments against the table. On success fills one view per tensor argument (in
// order; `views` may be null) and one tp_dtype per variable (`codes` may be null when there are
// none) and returns 0. Otherwise sets the engine's error and returns -1.
int tp_rt_guard(const tp_guard* guard, const TVMFFIAny* args, int32_t num_args, tp_view* views,
                int32_t* codes);

// Frees what the views of lists hold, `count` views being all those of a call.
void tp_rt_free_members(tp_view* views, int32_t count);

// Errors of views that may be absent, and of lists of views.
[[noreturn]] void tp_rt_no_value(const tp_view* view);
[[noreturn]] void tp_rt_no_member(const tp_view* view, int64_t index);

// Bounds errors of the typed views under --debug.
[[noreturn]] void tp_rt_bad_index(const tp_view* view, int64_t index, int64_t bound, int32_t dim);
[[noreturn]] void tp_rt_bad_rank(const tp_view* view, int32_t given);

// An output that the kernel allocates, and the tensor once there is one. Of `arg`, name and rank count.
struct tp_result {
  const tp_guard* guard;
  const tp_guard_arg* arg;
  DLDataType dtype;
  TVMFFIObjectHandle tensor;
  tp_view view;
};
// Allocates the tensor and returns the view of it; throws where it has one, or a size is negative.
const tp_view* tp_rt_allocate_result(tp_result* result, const int64_t* shape, int32_t ndim);
// Hands the tensors over, as one or as the engine's array of several, and forgets them. Returns 0,
// or -1 with the engine's error set where one was not allocated.
int tp_rt_take_results(tp_result* results, int32_t count, TVMFFIAny* result);
// Lets go of tensors that were not handed over.
void tp_rt_drop_results(tp_result* results, int32_t count);

// Provided by the engine part of the run-time library.
int tp_rt_raise_current();
int tp_rt_raise(const char* kind, const char* message);
[[noreturn]] void tp_rt_throw(const char* kind, const char* message);

}  // extern "C"

// What a call holds besides its arguments, freed on whatever way it ends.
struct tp_members_of {
  tp_view* views;
  int32_t count;
  ~tp_members_of() { tp_rt_free_members(views, count); }
};
struct tp_results_of {
  tp_result* results;
  int32_t count;
  ~tp_results_of() { tp_rt_drop_results(results, count); }
};

// Scalars as the dispatch reads them, once the guard has said yes.
inline double tp_arg_float(const TVMFFIAny& value) {
  return value.type_index == kTVMFFIFloat ? value.v_float64 : static_cast<double>(value.v_int64);
}
inline int64_t tp_arg_int(const TVMFFIAny& value) { return value.v_int64; }
inline bool tp_arg_bool(const TVMFFIAny& value) { return value.v_int64 != 0; }

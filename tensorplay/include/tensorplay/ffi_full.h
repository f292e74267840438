// The engine's own C++ headers, with our export wrapper over them.
//
// Signatures of scalars and tensors use the same small wrapper as the light headers (the engine's
// takes several times as long to compile); everything else goes through the engine's conversions.
// Either way every exception ends at the boundary with the same mapping.
#pragma once
#pragma GCC system_header
#include <tvm/ffi/error.h>
// What the other headers and the cell throw goes through the run-time library from here on.
#include <tensorplay/error_stream.h>
#undef TVM_FFI_THROW
#define TVM_FFI_THROW(ErrorKind) \
  ::tensorplay::jit::ErrorStream(#ErrorKind, __FILE__, __LINE__, TVM_FFI_FUNC_SIG).stream()

// Hashing and comparing of any value: long functions, inline in the engine's header, that would be
// compiled again in each cell with a map. Theirs gets another name, the run-time library has both.
#define AnyHash InlineAnyHash
#define AnyEqual InlineAnyEqual
#include <tvm/ffi/any.h>
#undef AnyHash
#undef AnyEqual
namespace tvm {
namespace ffi {
struct AnyHash {
  uint64_t operator()(const Any& value) const;
};
struct AnyEqual {
  bool operator()(const Any& a, const Any& b) const;
};
}  // namespace ffi
}  // namespace tvm

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#define TENSORPLAY_FFI_FULL 1

#include <tensorplay/registration.h>

#include <tensorplay/ffi_export.h>

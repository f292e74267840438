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

// What a cell registers, functions and methods, is called through conversions to which None is any
// object, so that C++ would read through it. Theirs gets another name, behind a look for None.
#define unpack_call unpack_call_unchecked
#include <tvm/ffi/function_detail.h>
#undef unpack_call
namespace tensorplay {
namespace jit {
template <typename T_>
void refuse_null(const ::tvm::ffi::AnyView* args, int32_t index, const std::string* name,
                 ::tvm::ffi::detail::FGetFuncSignature signature);
}  // namespace jit
}  // namespace tensorplay
namespace tvm {
namespace ffi {
namespace detail {
template <typename R, std::size_t... Is, typename F>
TVM_FFI_INLINE void unpack_call(std::index_sequence<Is...> indices, const std::string* name,
                                const F& f, const AnyView* args, int32_t num_args, Any* rv) {
  using Arguments = typename FunctionInfo<F>::ArgType;
  if (num_args == static_cast<int32_t>(sizeof...(Is))) {
    (::tensorplay::jit::refuse_null<std::tuple_element_t<Is, Arguments>>(
         args, static_cast<int32_t>(Is), name, FunctionInfo<F>::Sig),
     ...);
  }
  unpack_call_unchecked<R>(indices, name, f, args, num_args, rv);
}
}  // namespace detail
}  // namespace ffi
}  // namespace tvm

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#define TENSORPLAY_FFI_FULL 1

#include <tensorplay/registration.h>

#include <tensorplay/ffi_export.h>

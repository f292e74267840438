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

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <tensorplay/runtime.h>

#define TENSORPLAY_FFI_FULL 1

namespace tensorplay {
namespace jit {

template <typename R_, typename... A_>
inline int call_through_engine(R_ (*function)(A_...), const char* name, const TVMFFIAny* args,
                               int32_t count, TVMFFIAny* result) {
  try {
    std::string text(name);
    ::tvm::ffi::detail::unpack_call<R_>(
        std::make_index_sequence<sizeof...(A_)>{}, &text, function,
        reinterpret_cast<const ::tvm::ffi::AnyView*>(args), count,
        reinterpret_cast<::tvm::ffi::Any*>(result));
    return 0;
  } catch (...) {
    return tp_rt_raise_current();
  }
}

}  // namespace jit
}  // namespace tensorplay

#include <tensorplay/ffi_export.h>

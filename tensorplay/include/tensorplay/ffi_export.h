// The wrapper between the engine's packed calls and an ordinary typed C++ function.
//
// The compiler deduces the signature from the function itself. Argument kinds and integer ranges
// are checked in order before the function runs; every exception ends at the boundary. Error paths
// are out of line, in the run-time library. Both sets of headers share this file: it needs
// `tvm::ffi::Tensor` and `tvm::ffi::TensorView` declared, and no standard header.
#pragma once
#pragma GCC system_header
#include <tensorplay/runtime.h>

namespace tensorplay {
namespace jit {

template <typename T_>
struct Bare {
  using type = T_;
};
template <typename T_>
struct Bare<const T_> {
  using type = T_;
};
template <typename T_>
struct Bare<T_&> {
  using type = typename Bare<T_>::type;
};
template <typename T_>
struct Bare<T_&&> {
  using type = typename Bare<T_>::type;
};
template <typename T_>
using bare_t = typename Bare<T_>::type;

enum class Kind { kUnsupported, kBool, kInt, kFloat, kOther };
enum class Fit { kYes, kWrongType, kOutOfRange };

template <typename T_, bool IsEnum = __is_enum(T_)>
struct KindOf {
  static constexpr Kind value = IsEnum ? Kind::kInt : Kind::kUnsupported;
};
#define TP_KIND(Type, Value)                   \
  template <>                                  \
  struct KindOf<Type, false> {                 \
    static constexpr Kind value = Kind::Value; \
  };
TP_KIND(bool, kBool)
TP_KIND(char, kInt)
TP_KIND(signed char, kInt)
TP_KIND(unsigned char, kInt)
TP_KIND(short, kInt)
TP_KIND(unsigned short, kInt)
TP_KIND(int, kInt)
TP_KIND(unsigned, kInt)
TP_KIND(long, kInt)
TP_KIND(unsigned long, kInt)
TP_KIND(long long, kInt)
TP_KIND(unsigned long long, kInt)
TP_KIND(float, kFloat)
TP_KIND(double, kFloat)
#undef TP_KIND

inline bool is_int(const TVMFFIAny& any) {
  return any.type_index == kTVMFFIInt || any.type_index == kTVMFFIBool;
}

// How one C++ type is read from and written to the engine's `Any`; here the scalars.
template <typename T_, typename = void>
struct Value {
  static constexpr Kind kind = KindOf<T_>::value;
  static constexpr bool supported = kind != Kind::kUnsupported;
  static constexpr const char* name =
      kind == Kind::kBool ? "bool" : kind == Kind::kFloat ? "float" : "int";
  static Fit fit(const TVMFFIAny& any) {
    if constexpr (kind == Kind::kFloat) {
      return is_int(any) || any.type_index == kTVMFFIFloat ? Fit::kYes : Fit::kWrongType;
    } else if constexpr (kind == Kind::kBool) {
      return is_int(any) ? Fit::kYes : Fit::kWrongType;
    } else {
      if (__builtin_expect(!is_int(any), 0)) return Fit::kWrongType;
      // A round trip finds narrow types; the sign test finds an unsigned 64-bit parameter.
      int64_t back = static_cast<int64_t>(static_cast<T_>(any.v_int64));
      bool negative = is_signed() ? false : any.v_int64 < 0;
      return back == any.v_int64 && !negative ? Fit::kYes : Fit::kOutOfRange;
    }
  }
  static constexpr bool is_signed() {
    if constexpr (__is_enum(T_)) {
      return static_cast<__underlying_type(T_)>(-1) < static_cast<__underlying_type(T_)>(0);
    } else {
      return static_cast<T_>(-1) < static_cast<T_>(0);
    }
  }
  static T_ get(const TVMFFIAny& any) {
    if constexpr (kind == Kind::kFloat) {
      return any.type_index == kTVMFFIFloat ? static_cast<T_>(any.v_float64)
                                            : static_cast<T_>(any.v_int64);
    } else if constexpr (kind == Kind::kBool) {
      return any.v_int64 != 0;
    } else {
      return static_cast<T_>(any.v_int64);
    }
  }
  static void put(TVMFFIAny* out, T_ value) {
    out->zero_padding = 0;
    if constexpr (kind == Kind::kFloat) {
      out->type_index = kTVMFFIFloat;
      out->v_float64 = static_cast<double>(value);
    } else {
      out->type_index = kind == Kind::kBool ? kTVMFFIBool : kTVMFFIInt;
      out->v_int64 = static_cast<int64_t>(value);
    }
  }
};

struct DLTensorValue {
  static constexpr bool supported = true;
  static constexpr const char* name = "DLTensor*";
  static Fit fit(const TVMFFIAny& any) {
    return any.type_index == kTVMFFITensor || any.type_index == kTVMFFIDLTensorPtr
               ? Fit::kYes
               : Fit::kWrongType;
  }
  static DLTensor* get(const TVMFFIAny& any) {
    return any.type_index == kTVMFFITensor ? TVMFFITensorGetDLTensorPtr(any.v_obj)
                                           : static_cast<DLTensor*>(any.v_ptr);
  }
};
template <>
struct Value<DLTensor*> : DLTensorValue {};
template <>
struct Value<::tvm::ffi::TensorView> : DLTensorValue {
  static ::tvm::ffi::TensorView get(const TVMFFIAny& any) {
    return ::tvm::ffi::TensorView(static_cast<const DLTensor*>(DLTensorValue::get(any)));
  }
};

template <>
struct Value<void*> {
  static constexpr bool supported = true;
  static constexpr const char* name = "void*";
  static Fit fit(const TVMFFIAny& any) {
    return any.type_index == kTVMFFIOpaquePtr || any.type_index == kTVMFFINone ? Fit::kYes
                                                                               : Fit::kWrongType;
  }
  static void* get(const TVMFFIAny& any) {
    return any.type_index == kTVMFFINone ? nullptr : any.v_ptr;
  }
  static void put(TVMFFIAny* out, void* value) {
    out->type_index = kTVMFFIOpaquePtr;
    out->zero_padding = 0;
    out->v_ptr = value;
  }
};

template <>
struct Value<void> {
  static constexpr bool supported = true;
  static constexpr const char* name = "void";
};

#ifdef TENSORPLAY_FFI_LIGHT
template <>
struct Value<::tvm::ffi::Tensor> {
  static constexpr bool supported = true;
  static constexpr const char* name = "ffi.Tensor";
  static Fit fit(const TVMFFIAny& any) {
    return any.type_index == kTVMFFITensor ? Fit::kYes : Fit::kWrongType;
  }
  static ::tvm::ffi::Tensor get(const TVMFFIAny& any) {
    TVMFFIObjectIncRef(any.v_obj);
    return ::tvm::ffi::Tensor(any.v_obj);
  }
  static void put(TVMFFIAny* out, ::tvm::ffi::Tensor value) {
    out->zero_padding = 0;
    out->type_index = value.defined() ? kTVMFFITensor : kTVMFFINone;
    out->v_int64 = 0;
    out->v_obj = value.release();
  }
};

// std::string, recognised by what it offers, so that <string> is not parsed for every cell.
template <typename T_>
struct Value<T_, decltype(static_cast<void>(static_cast<const T_*>(nullptr)->c_str()),
                         static_cast<void>(T_(static_cast<const char*>(nullptr), size_t(0))))> {
  static constexpr bool supported = true;
  static constexpr const char* name = "std::string";
  static Fit fit(const TVMFFIAny& any) {
    switch (any.type_index) {
      case kTVMFFIRawStr:
      case kTVMFFISmallStr:
      case kTVMFFIStr:
      case kTVMFFIByteArrayPtr:
      case kTVMFFISmallBytes:
      case kTVMFFIBytes:
        return Fit::kYes;
      default:
        return Fit::kWrongType;
    }
  }
  static T_ get(const TVMFFIAny& any) {
    switch (any.type_index) {
      case kTVMFFIRawStr:
        return T_(any.v_c_str);
      case kTVMFFISmallStr:
      case kTVMFFISmallBytes:
        return T_(any.v_bytes, any.small_str_len);
      case kTVMFFIByteArrayPtr: {
        const TVMFFIByteArray* bytes = static_cast<const TVMFFIByteArray*>(any.v_ptr);
        return T_(bytes->data, bytes->size);
      }
      default: {
        const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(any.v_obj);
        return T_(bytes->data, bytes->size);
      }
    }
  }
  static void put(TVMFFIAny* out, const T_& value) {
    TVMFFIByteArray bytes{value.c_str(), value.size()};
    if (TVMFFIStringFromByteArray(&bytes, out) != 0) tp_rt_throw_raised();
  }
};
#endif

template <typename T_>
constexpr bool supported_result = Value<T_>::supported;
template <>
inline constexpr bool supported_result<DLTensor*> = false;
template <>
inline constexpr bool supported_result<::tvm::ffi::TensorView> = false;

template <int... I_>
struct Indices {};
#if defined(__clang__)
template <typename T_, T_... I_>
struct ClangIndices {
  using type = Indices<static_cast<int>(I_)...>;
};
template <int N_>
using make_indices = typename __make_integer_seq<ClangIndices, int, N_>::type;
#else
template <int N_>
using make_indices = Indices<__integer_pack(N_)...>;
#endif

template <typename R_, typename... A_>
struct Signature {
  static constexpr bool supported = supported_result<R_> && (Value<bare_t<A_>>::supported && ...);
  static constexpr const char* names[] = {Value<bare_t<A_>>::name..., Value<R_>::name};

  template <int... I_>
  static int call(R_ (*function)(A_...), const char* name, const TVMFFIAny* args, int32_t count,
                  TVMFFIAny* result, Indices<I_...>) {
    constexpr int32_t expected = static_cast<int32_t>(sizeof...(A_));
    if (__builtin_expect(count != expected, 0)) {
      return tp_rt_wrong_count(name, names, expected, count);
    }
    int32_t misfit = -1;
    [[maybe_unused]] int32_t bits = 0;
    [[maybe_unused]] int32_t is_signed = 0;
    [[maybe_unused]] Fit fit = Fit::kYes;
    (check<bare_t<A_>>(args, I_, &misfit, &fit, &bits, &is_signed), ...);
    if (__builtin_expect(misfit >= 0, 0)) {
      return fit == Fit::kWrongType
                 ? tp_rt_wrong_type(name, names, expected, misfit, args + misfit)
                 : tp_rt_out_of_range(name, misfit, args[misfit].v_int64, bits, is_signed);
    }
    try {
      if constexpr (__is_same(R_, void)) {
        function(Value<bare_t<A_>>::get(args[I_])...);
      } else {
        Value<R_>::put(result, function(Value<bare_t<A_>>::get(args[I_])...));
      }
      return 0;
    } catch (...) {
      return tp_rt_raise_current();
    }
  }

 private:
  template <typename T_>
  static void check(const TVMFFIAny* args, int32_t index, int32_t* misfit, Fit* fit, int32_t* bits,
                    int32_t* is_signed) {
    if (*misfit >= 0) return;
    Fit found = Value<T_>::fit(args[index]);
    if (__builtin_expect(found == Fit::kYes, 1)) return;
    *misfit = index;
    *fit = found;
    if constexpr (KindOf<T_>::value == Kind::kInt) {
      *bits = static_cast<int32_t>(8 * sizeof(T_));
      *is_signed = Value<T_>::is_signed();
    }
  }
};

template <typename R_, typename... A_>
inline int call(R_ (*function)(A_...), const char* name, const TVMFFIAny* args, int32_t count,
                TVMFFIAny* result) {
  using S_ = Signature<R_, A_...>;
#ifdef TENSORPLAY_FFI_LIGHT
  static_assert(S_::supported, "tensorplay::jit: this signature needs the engine's full headers");
  return S_::call(function, name, args, count, result, make_indices<sizeof...(A_)>{});
#else
  if constexpr (S_::supported) {
    return S_::call(function, name, args, count, result, make_indices<sizeof...(A_)>{});
  } else {
    return call_through_engine(function, name, args, count, result);
  }
#endif
}

}  // namespace jit
}  // namespace tensorplay

// The parameters have unlikely names because `Function` is looked up where they are visible.
#define TP_EXPORT(Name, Function)                                                               \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##Name(                       \
      void*, const TVMFFIAny* tp_args_, int32_t tp_count_, TVMFFIAny* tp_result_) {             \
    return ::tensorplay::jit::call(Function, #Name, tp_args_, tp_count_, tp_result_);           \
  }
#define TP_EXPORT_DOC(Name, Text)                                                            \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi__doc_##Name(               \
      void*, const TVMFFIAny*, int32_t, TVMFFIAny* tp_result_) {                             \
    TVMFFIByteArray tp_bytes_{Text, sizeof(Text) - 1};                                           \
    return TVMFFIStringFromByteArray(&tp_bytes_, tp_result_);                                        \
  }

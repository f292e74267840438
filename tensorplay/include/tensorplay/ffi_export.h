// The wrapper between the engine's packed calls and an ordinary typed C++ function.
//
// The compiler deduces the signature from the function itself. Argument kinds and integer ranges
// are checked in order before the function runs; every exception ends at the boundary. The checks
// are driven by a table and out of line, in the run-time library: inlined they would double the time
// that a small cell takes to compile. Both sets of headers share this file: it needs
// `tvm::ffi::Tensor` and `tvm::ffi::TensorView` declared, and no standard header.
#pragma once
#pragma GCC system_header
#include <tensorplay/runtime.h>

#ifndef TENSORPLAY_FFI_LIGHT
namespace tvm {
namespace ffi {
template <typename...>
class Tuple;
template <typename...>
class Variant;
template <typename>
class TypedFunction;
}  // namespace ffi
}  // namespace tvm
#endif

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

template <typename T_, bool IsEnum_ = __is_enum(T_)>
struct KindOf {
  static constexpr tp_rt_kind value = IsEnum_ ? TP_RT_KIND_INT : TP_RT_KIND_NONE;
};
#define TP_KIND(Type, Value)                   \
  template <>                                  \
  struct KindOf<Type, false> {                 \
    static constexpr tp_rt_kind value = Value; \
  };
TP_KIND(bool, TP_RT_KIND_BOOL)
TP_KIND(char, TP_RT_KIND_INT)
TP_KIND(signed char, TP_RT_KIND_INT)
TP_KIND(unsigned char, TP_RT_KIND_INT)
TP_KIND(short, TP_RT_KIND_INT)
TP_KIND(unsigned short, TP_RT_KIND_INT)
TP_KIND(int, TP_RT_KIND_INT)
TP_KIND(unsigned, TP_RT_KIND_INT)
TP_KIND(long, TP_RT_KIND_INT)
TP_KIND(unsigned long, TP_RT_KIND_INT)
TP_KIND(long long, TP_RT_KIND_INT)
TP_KIND(unsigned long long, TP_RT_KIND_INT)
TP_KIND(float, TP_RT_KIND_REAL)
TP_KIND(double, TP_RT_KIND_REAL)
#undef TP_KIND

template <typename T_>
constexpr bool is_signed() {
  if constexpr (__is_enum(T_)) {
    return static_cast<__underlying_type(T_)>(-1) < static_cast<__underlying_type(T_)>(0);
  } else {
    return static_cast<T_>(-1) < static_cast<T_>(0);
  }
}

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

// How one C++ type is read from and written to the engine's `Any`; here the scalars. `type` says
// what is checked before `get` is called.
template <typename T_, typename = void>
struct Value {
  static constexpr tp_rt_kind kind = KindOf<T_>::value;
  static constexpr tp_rt_type describe() {
    if constexpr (kind == TP_RT_KIND_INT) {
      return {"int", kind, static_cast<uint8_t>(8 * sizeof(T_)), is_signed<T_>()};
    } else {
      return {kind == TP_RT_KIND_BOOL ? "bool" : "float", kind, 0, false};
    }
  }
  static constexpr tp_rt_type type = describe();
  static T_ get(const TVMFFIAny& any) {
    if constexpr (kind == TP_RT_KIND_REAL) {
      return any.type_index == kTVMFFIFloat ? static_cast<T_>(any.v_float64)
                                            : static_cast<T_>(any.v_int64);
    } else if constexpr (kind == TP_RT_KIND_BOOL) {
      return any.v_int64 != 0;
    } else {
      return static_cast<T_>(any.v_int64);
    }
  }
  static void put(TVMFFIAny* out, T_ value) {
    out->zero_padding = 0;
    if constexpr (kind == TP_RT_KIND_REAL) {
      out->type_index = kTVMFFIFloat;
      out->v_float64 = static_cast<double>(value);
    } else {
      if constexpr (kind == TP_RT_KIND_INT && sizeof(T_) == 8 && !is_signed<T_>()) {
        if (static_cast<uint64_t>(value) > INT64_MAX) {
          tp_rt_throw("ValueError",
                      "the result is above 2**63 - 1, the largest integer that the engine can carry; "
                      "return it as a double or as text");
        }
      }
      out->type_index = kind == TP_RT_KIND_BOOL ? kTVMFFIBool : kTVMFFIInt;
      out->v_int64 = static_cast<int64_t>(value);
    }
  }
};

struct DLTensorValue {
  static constexpr tp_rt_type type{"DLTensor*", TP_RT_KIND_VIEW, 0, false};
  static DLTensor* get(const TVMFFIAny& any) { return tp_rt_dl_tensor(&any); }
};
template <>
struct Value<DLTensor*> : DLTensorValue {};
template <>
struct Value<::tvm::ffi::TensorView> : DLTensorValue {
  static ::tvm::ffi::TensorView get(const TVMFFIAny& any) {
#ifdef TENSORPLAY_FFI_LIGHT
    return ::tvm::ffi::TensorView(*tp_rt_dl_tensor(&any));
#else
    return ::tvm::ffi::TensorView(static_cast<const DLTensor*>(tp_rt_dl_tensor(&any)));
#endif
  }
};

template <>
struct Value<void*> {
  static constexpr tp_rt_type type{"void*", TP_RT_KIND_POINTER, 0, false};
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
  static constexpr tp_rt_type type{"void", TP_RT_KIND_POINTER, 0, false};
};

#ifdef TENSORPLAY_FFI_LIGHT
template <>
struct Value<::tvm::ffi::Tensor> {
  static constexpr tp_rt_type type{"ffi.Tensor", TP_RT_KIND_TENSOR, 0, false};
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
  static constexpr tp_rt_type type{"std::string", TP_RT_KIND_STRING, 0, false};
  static T_ get(const TVMFFIAny& any) {
    TVMFFIByteArray bytes = tp_rt_string(&any);
    return T_(bytes.data, bytes.size);
  }
  static void put(TVMFFIAny* out, const T_& value) {
    TVMFFIByteArray bytes{value.c_str(), value.size()};
    if (TVMFFIStringFromByteArray(&bytes, out) != 0) tp_rt_throw_raised();
  }
};
#else
// Unoptimised: only errors come here, and the engine's conversions of values to text are long.
#if defined(__clang__)
#define TP_RT_UNOPTIMISED __attribute__((cold, noinline, minsize))
#else
#define TP_RT_UNOPTIMISED __attribute__((cold, noinline, optimize("O0")))
#endif

// How a type that only the engine converts is named in errors: a function of it, if all else fails.
template <typename T_, typename = void>
struct EngineName {
  TP_RT_UNOPTIMISED static void describe(void* string) {
    *static_cast<std::string*>(string) = ::tvm::ffi::detail::Type2Str<T_>::v();
  }
  static constexpr tp_rt_type type{nullptr, TP_RT_KIND_ENGINE, 0, false, 0, nullptr, &describe};
};
#define TP_ENGINE_NAME(Type, Name)                                 \
  template <>                                                      \
  struct EngineName<::tvm::ffi::Type> {                            \
    static constexpr tp_rt_type type{Name, TP_RT_KIND_ENGINE, 0, false}; \
  };
TP_ENGINE_NAME(Any, "Any")
TP_ENGINE_NAME(AnyView, "AnyView")
TP_ENGINE_NAME(String, "str")
TP_ENGINE_NAME(Bytes, "bytes")
#undef TP_ENGINE_NAME

// Where a value that the engine has converted holds null, and the type does not say Optional: to the
// engine None is any object, and C++ would call it or read through it. `got` is told as the engine
// tells mismatches, and may be null.
template <typename T_, typename = void>
struct Nulls {
  static constexpr bool possible = false;
  static bool in(const T_&, std::string*) { return false; }
};
template <typename T_>
struct Nulls<T_, std::enable_if_t<std::is_base_of_v<::tvm::ffi::ObjectRef, T_> &&
                                  !std::is_same_v<T_, ::tvm::ffi::ObjectRef> &&
                                  T_::_type_is_nullable>> {
  static constexpr bool possible = true;
  static bool in(const T_& value, std::string* got) {
    if (value.defined()) return false;
    if (got) *got = "None";
    return true;
  }
};
template <typename S_>
struct Nulls<::tvm::ffi::TypedFunction<S_>> {
  static constexpr bool possible = true;
  static bool in(const ::tvm::ffi::TypedFunction<S_>& value, std::string* got) {
    return Nulls<::tvm::ffi::Function>::in(value.packed(), got);
  }
};
template <typename T_>
struct Nulls<::tvm::ffi::Optional<T_>, std::enable_if_t<Nulls<T_>::possible>> {
  static constexpr bool possible = true;
  static bool in(const ::tvm::ffi::Optional<T_>& value, std::string* got) {
    return value.has_value() && Nulls<T_>::in(value.value(), got);
  }
};
template <template <typename, typename> class List_, typename T_>
struct Nulls<List_<T_, void>, std::enable_if_t<!List_<T_, void>::_type_is_nullable &&
                                               Nulls<T_>::possible>> {
  static constexpr bool possible = true;
  static bool in(const List_<T_, void>& list, std::string* got) {
    int64_t index = 0;
    for (const T_& item : list) {
      if (Nulls<T_>::in(item, got)) {
        if (got) *got = "Array[index " + std::to_string(index) + ": " + *got + "]";
        return true;
      }
      ++index;
    }
    return false;
  }
};
template <template <typename, typename, typename> class Map_, typename K_, typename V_>
struct Nulls<Map_<K_, V_, void>, std::enable_if_t<!Map_<K_, V_, void>::_type_is_nullable &&
                                                  (Nulls<K_>::possible || Nulls<V_>::possible)>> {
  static constexpr bool possible = true;
  static bool in(const Map_<K_, V_, void>& map, std::string* got) {
    for (const auto& item : map) {
      if (Nulls<K_>::in(item.first, got)) {
        if (got) *got = "Map[some key is " + *got + ", V]";
        return true;
      }
      if (Nulls<V_>::in(item.second, got)) {
        if (got) *got = "Map[K, some value is " + *got + "]";
        return true;
      }
    }
    return false;
  }
};
// A value that one alternative holds without null is none, whatever it is to the others.
template <typename... T_>
struct Nulls<::tvm::ffi::Variant<T_...>, std::enable_if_t<(Nulls<T_>::possible || ...)>> {
  static constexpr bool possible = true;
  static bool in(const ::tvm::ffi::Variant<T_...>& value, std::string* got) {
    const ::tvm::ffi::AnyView view(value);
    bool found = false;
    return !(whole<T_>(view, got, &found) || ...) && found;
  }

 private:
  template <typename Item_>
  static bool whole(const ::tvm::ffi::AnyView& view, std::string* got, bool* found) {
    const auto* any = reinterpret_cast<const TVMFFIAny*>(&view);
    if constexpr (!Nulls<Item_>::possible) {
      return ::tvm::ffi::TypeTraits<Item_>::CheckAnyStrict(any);
    } else {
      // Not `as`, which knows no null of a TypedFunction.
      const std::optional<Item_> item = view.template try_cast<Item_>();
      if (!item.has_value()) return false;
      if (!Nulls<Item_>::in(*item, got)) return true;
      *found = true;
      return false;
    }
  }
};
template <typename... T_>
struct Nulls<::tvm::ffi::Tuple<T_...>, std::enable_if_t<(Nulls<T_>::possible || ...)>> {
  static constexpr bool possible = true;
  static bool in(const ::tvm::ffi::Tuple<T_...>& tuple, std::string* got) {
    return in(tuple, got, make_indices<sizeof...(T_)>());
  }

 private:
  template <int... I_>
  static bool in(const ::tvm::ffi::Tuple<T_...>& tuple, std::string* got, Indices<I_...>) {
    return (at<I_, T_>(tuple, got) || ...);
  }
  template <int I_, typename Item_>
  static bool at(const ::tvm::ffi::Tuple<T_...>& tuple, std::string* got) {
    if constexpr (Nulls<Item_>::possible) {
      if (Nulls<Item_>::in(tuple.template get<I_>(), got)) {
        if (got) *got = "Array[index " + std::to_string(I_) + ": " + *got + "]";
        return true;
      }
    }
    return false;
  }
};

// Raises the engine's own error for an argument in which None is where the type has no room for it.
template <typename T_>
void refuse_null(const ::tvm::ffi::AnyView* args, int32_t index, const std::string* name,
                 ::tvm::ffi::detail::FGetFuncSignature signature) {
  using Bare = std::remove_cv_t<std::remove_reference_t<T_>>;
  if constexpr (Nulls<Bare>::possible) {
    const std::optional<Bare> value = args[index].template try_cast<Bare>();
    if (!value.has_value() || !Nulls<Bare>::in(*value, nullptr)) return;  // the call says the rest
    std::string got;
    Nulls<Bare>::in(*value, &got);
    TVM_FFI_THROW(TypeError) << "Mismatched type on argument #" << index << " when calling: `"
                             << (name ? *name : "") << (signature ? (*signature)() : "")
                             << "`. Expected `" << ::tvm::ffi::detail::Type2Str<Bare>::v()
                             << "` but got `" << got << '`';
  }
}

// Those that C++ knows how to make of the engine's values, and no cell has told us how.
template <typename T_>
struct Value<T_, std::enable_if_t<KindOf<T_>::value == TP_RT_KIND_NONE && !std::is_void_v<T_> &&
                                  ::tvm::ffi::detail::ArgSupported<T_>>> {
  static constexpr const tp_rt_type& type = EngineName<T_>::type;

  TP_RT_UNOPTIMISED static void mismatch(const TVMFFIAny* any, void* string) {
    *static_cast<std::string*>(string) = ::tvm::ffi::TypeTraits<T_>::GetMismatchTypeInfo(any);
  }
  TP_RT_UNOPTIMISED static void null_found(const TVMFFIAny* any, void* string) {
    const auto& view = reinterpret_cast<const ::tvm::ffi::AnyView&>(*any);
    Nulls<T_>::in(view.template cast<T_>(), static_cast<std::string*>(string));
  }
  static T_ get(const TVMFFIAny& any, const char* function, const tp_rt_type* signature,
                int32_t count, int32_t index) {
    const auto& view = reinterpret_cast<const ::tvm::ffi::AnyView&>(any);
    if constexpr (std::is_same_v<T_, ::tvm::ffi::AnyView>) {
      return view;
    } else if constexpr (std::is_same_v<T_, ::tvm::ffi::Any>) {
      return ::tvm::ffi::Any(view);
    } else {
      std::optional<T_> value = view.template try_cast<T_>();
      if (__builtin_expect(!value.has_value(), 0)) {
        tp_rt_throw_mismatch(function, signature, count, index, &any, &mismatch);
      }
      if constexpr (Nulls<T_>::possible) {
        if (__builtin_expect(Nulls<T_>::in(*value, nullptr), 0)) {
          tp_rt_throw_mismatch(function, signature, count, index, &any, &null_found);
        }
      }
      return *std::move(value);
    }
  }
};

// The engine's own containers have a name, and elements whose types they are named with.
template <template <typename, typename> class Container_, typename T_>
struct EngineName<Container_<T_, void>,
                  std::void_t<decltype(::tvm::ffi::TypeTraits<Container_<T_, void>>::kTypeName),
                              decltype(::tvm::ffi::TypeTraits<Container_<T_, void>>::kPrimaryTypeIndex)>> {
  static constexpr tp_rt_type inner[] = {Value<T_>::type};
  static constexpr tp_rt_type type{::tvm::ffi::TypeTraits<Container_<T_, void>>::kTypeName,
                                   TP_RT_KIND_ENGINE, 0, false, 1, inner, nullptr};
};
template <template <typename, typename, typename> class Container_, typename K_, typename V_>
struct EngineName<Container_<K_, V_, void>,
                  std::void_t<decltype(::tvm::ffi::TypeTraits<Container_<K_, V_, void>>::kTypeName),
                              decltype(::tvm::ffi::TypeTraits<Container_<K_, V_, void>>::kPrimaryTypeIndex)>> {
  static constexpr tp_rt_type inner[] = {Value<K_>::type, Value<V_>::type};
  static constexpr tp_rt_type type{::tvm::ffi::TypeTraits<Container_<K_, V_, void>>::kTypeName,
                                   TP_RT_KIND_ENGINE, 0, false, 2, inner, nullptr};
};
#endif

template <typename T_>
constexpr bool supported = Value<T_>::type.kind != TP_RT_KIND_NONE;
template <typename T_>
constexpr bool supported_result = supported<T_>;
template <>
inline constexpr bool supported_result<DLTensor*> = false;
template <>
inline constexpr bool supported_result<::tvm::ffi::TensorView> = false;

template <typename R_, typename... A_>
struct Signature {
  static constexpr bool supported = supported_result<R_> && (jit::supported<bare_t<A_>> && ...);
  static constexpr tp_rt_type types[] = {Value<bare_t<A_>>::type..., Value<R_>::type};
};

// Converts checked arguments, calls and stores the result; what is thrown ends in `tp_rt_call`. One
// function for all exports of a signature.
template <typename Indices_, typename R_, typename... A_>
struct Body;
template <int... I_, typename R_, typename... A_>
struct Body<Indices<I_...>, R_, A_...> {
  static void run(void (*function)(), const char* name, const TVMFFIAny* args, TVMFFIAny* result) {
    R_ (*typed)(A_...) = reinterpret_cast<R_ (*)(A_...)>(function);
#ifdef TENSORPLAY_FFI_LIGHT
    static_cast<void>(name);
    if constexpr (__is_same(R_, void)) {
      typed(Value<bare_t<A_>>::get(args[I_])...);
    } else {
      Value<R_>::put(result, typed(Value<bare_t<A_>>::get(args[I_])...));
    }
#else
    if constexpr (__is_same(R_, void)) {
      typed(take<bare_t<A_>>(args[I_], name, I_)...);
    } else if constexpr (supported_result<R_> && Value<R_>::type.kind != TP_RT_KIND_ENGINE) {
      Value<R_>::put(result, typed(take<bare_t<A_>>(args[I_], name, I_)...));
    } else {
      *reinterpret_cast<::tvm::ffi::Any*>(result) =
          R_(typed(take<bare_t<A_>>(args[I_], name, I_)...));
    }
  }

 private:
  template <typename T_>
  static T_ take(const TVMFFIAny& any, const char* name, int32_t index) {
    if constexpr (Value<T_>::type.kind == TP_RT_KIND_ENGINE) {
      return Value<T_>::get(any, name, Signature<R_, A_...>::types, sizeof...(A_), index);
    } else {
      return Value<T_>::get(any);
    }
#endif
  }
};

// A parameter of `Mixed` that a guard has read.
struct Guarded {};
template <>
struct Value<Guarded> {
  static constexpr tp_rt_type type{"Any", TP_RT_KIND_ENGINE, 0, false};
};

// The parameters of a function over typed views that the engine converts, among others.
template <typename... A_>
struct Mixed {
  static_assert((supported<bare_t<A_>> && ...),
                "tensorplay::jit: this signature needs the engine's full headers");
  static constexpr tp_rt_type types[] = {Value<bare_t<A_>>::type..., Value<void>::type};

  static int check(const char* name, const TVMFFIAny* args, int32_t count) {
    return tp_rt_check_call(name, types, sizeof...(A_), args, count);
  }
  template <typename T_>
  static bare_t<T_> take(const TVMFFIAny& any, const char* name, int32_t index) {
    using Bare_ = bare_t<T_>;
#ifndef TENSORPLAY_FFI_LIGHT
    if constexpr (Value<Bare_>::type.kind == TP_RT_KIND_ENGINE) {
      return Value<Bare_>::get(any, name, types, sizeof...(A_), index);
    } else
#endif
    {
      static_cast<void>(name);
      static_cast<void>(index);
      return Value<Bare_>::get(any);
    }
  }
};

template <typename R_, typename... A_>
inline int call(R_ (*function)(A_...), const char* name, const TVMFFIAny* args, int32_t count,
                TVMFFIAny* result) {
  using S_ = Signature<R_, A_...>;
#ifdef TENSORPLAY_FFI_LIGHT
  static_assert(S_::supported, "tensorplay::jit: this signature needs the engine's full headers");
#else
  static_assert(::tvm::ffi::detail::FuncFunctorImpl<R_, A_...>::unpacked_supported,
                "The function signature do not support unpacked");
#endif
  return tp_rt_call(name, S_::types, sizeof...(A_), args, count, result,
                    &Body<make_indices<sizeof...(A_)>, R_, A_...>::run,
                    reinterpret_cast<void (*)()>(function));
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

// For the C++ part of a library with CUDA code: what it launched is asked for its status, through a
// function of the CUDA part.
#define TP_EXPORT_LAUNCHING(Name, Function)                                                     \
  extern "C" int tp_cuda_after_launch(const char*, TVMFFIAny*);                                 \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##Name(                       \
      void*, const TVMFFIAny* tp_args_, int32_t tp_count_, TVMFFIAny* tp_result_) {             \
    int tp_status_ = ::tensorplay::jit::call(Function, #Name, tp_args_, tp_count_, tp_result_); \
    return tp_status_ ? tp_status_ : tp_cuda_after_launch(#Name, tp_result_);                   \
  }

// Light stand-in for the engine's C++ headers, over its C header alone.
//
// The engine's own headers take about a second to parse; what a tensor kernel uses of them fits in
// the few declarations below, which take a few milliseconds. Names, meaning, messages and memory
// layouts are the engine's, so a kernel is written as its documentation shows. The types live in an
// inline namespace: the same spelling, other symbols, so nothing here can be taken for a definition
// of the real library. Whatever is missing here makes the build use the full headers instead.
//
// No standard header is included: parsing <string> or <cmath> costs more than everything here.
#pragma once
#pragma GCC system_header
#include <initializer_list>
#include <tensorplay/runtime.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#define TENSORPLAY_FFI_LIGHT 1

namespace tensorplay {
namespace jit {

// An error's message is written as an output stream would, without <sstream>. Each step is one call
// into the run-time library and nothing is an object of a class with a destructor, so that a check
// adds little to the function it stands in.
#define TP_MESSAGE_TYPE(Type, Stored, Suffix)                      \
  inline Error& operator<<(Error& error, Type value) noexcept {    \
    tp_rt_error_##Suffix(&error, static_cast<Stored>(value));      \
    return error;                                                  \
  }
TP_MESSAGE_TYPE(bool, int64_t, int64)
TP_MESSAGE_TYPE(char, char, char)
TP_MESSAGE_TYPE(signed char, char, char)
TP_MESSAGE_TYPE(unsigned char, char, char)
TP_MESSAGE_TYPE(short, int64_t, int64)
TP_MESSAGE_TYPE(int, int64_t, int64)
TP_MESSAGE_TYPE(long, int64_t, int64)
TP_MESSAGE_TYPE(long long, int64_t, int64)
TP_MESSAGE_TYPE(unsigned short, uint64_t, uint64)
TP_MESSAGE_TYPE(unsigned, uint64_t, uint64)
TP_MESSAGE_TYPE(unsigned long, uint64_t, uint64)
TP_MESSAGE_TYPE(unsigned long long, uint64_t, uint64)
TP_MESSAGE_TYPE(float, float, float)
TP_MESSAGE_TYPE(double, double, double)
TP_MESSAGE_TYPE(const char*, const char*, string)
TP_MESSAGE_TYPE(const void*, const void*, pointer)
TP_MESSAGE_TYPE(DLDataType, DLDataType, dtype)
#undef TP_MESSAGE_TYPE

// std::string and whatever else offers c_str(), without knowing the type here.
template <typename S_, typename = decltype(static_cast<const S_*>(nullptr)->c_str())>
inline Error& operator<<(Error& error, const S_& value) {
  tp_rt_error_string(&error, value.c_str());
  return error;
}

// `Throw() & error << a << b` throws last, since `&` binds less tightly than `<<`.
struct Throw {
  [[noreturn]] void operator&(Error& error) const { tp_rt_error_throw(&error); }
};

}  // namespace jit
}  // namespace tensorplay

inline bool operator==(const DLDataType& a, const DLDataType& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(const DLDataType& a, const DLDataType& b) { return !(a == b); }

namespace tvm {
namespace ffi {
inline namespace tensorplay_light {

namespace detail {

template <typename T_>
constexpr bool small_integer = false;
template <>
inline constexpr bool small_integer<short> = true;
template <>
inline constexpr bool small_integer<unsigned short> = true;
template <>
inline constexpr bool small_integer<int> = true;
template <>
inline constexpr bool small_integer<unsigned> = true;
template <>
inline constexpr bool small_integer<int64_t> = true;

// The two sides of a comparison that failed, as text; null when it held. Integers go by value to the
// run-time library: most comparisons are of sizes.
template <typename X_, typename Y_>
TP_RT_COLD ::tensorplay::jit::Error* comparison_failed(const X_& x, const Y_& y) {
  ::tensorplay::jit::Error* sides = tp_rt_error_sides();
  *sides << x << " vs. " << y;
  return sides;
}

#define TP_COMPARISON(name, op)                                        \
  template <typename X_, typename Y_>                                  \
  inline ::tensorplay::jit::Error* name(const X_& x, const Y_& y) {    \
    if (__builtin_expect(x op y, 1)) return nullptr;                   \
    if constexpr (small_integer<X_> && small_integer<Y_>) {            \
      return tp_rt_error_sides_int64(x, y);                            \
    } else {                                                           \
      return comparison_failed(x, y);                                  \
    }                                                                  \
  }
TP_COMPARISON(check_LT, <)
TP_COMPARISON(check_GT, >)
TP_COMPARISON(check_LE, <=)
TP_COMPARISON(check_GE, >=)
TP_COMPARISON(check_EQ, ==)
TP_COMPARISON(check_NE, !=)
#undef TP_COMPARISON

}  // namespace detail

#define TVM_FFI_THROW(ErrorKind)   \
  ::tensorplay::jit::Throw() &     \
      *tp_rt_error_new(#ErrorKind, __FILE__, __LINE__, __PRETTY_FUNCTION__)
#define TP_THROW_CHECK(ErrorKind, condition, sides) \
  ::tensorplay::jit::Throw() & *tp_rt_error_check(  \
      #ErrorKind, __FILE__, __LINE__, __PRETTY_FUNCTION__, condition, sides)
#define TVM_FFI_CHECK(cond, ErrorKind) \
  if (__builtin_expect(!(cond), 0)) TP_THROW_CHECK(ErrorKind, "(" #cond ") is false", nullptr)
#define TP_CHECK_COMPARISON(name, op, x, y, ErrorKind)                                     \
  if (::tensorplay::jit::Error* tp_sides_ = ::tvm::ffi::detail::check_##name(x, y))        \
  TP_THROW_CHECK(ErrorKind, #x " " #op " " #y, tp_sides_)
#define TVM_FFI_CHECK_LT(x, y, ErrorKind) TP_CHECK_COMPARISON(LT, <, x, y, ErrorKind)
#define TVM_FFI_CHECK_GT(x, y, ErrorKind) TP_CHECK_COMPARISON(GT, >, x, y, ErrorKind)
#define TVM_FFI_CHECK_LE(x, y, ErrorKind) TP_CHECK_COMPARISON(LE, <=, x, y, ErrorKind)
#define TVM_FFI_CHECK_GE(x, y, ErrorKind) TP_CHECK_COMPARISON(GE, >=, x, y, ErrorKind)
#define TVM_FFI_CHECK_EQ(x, y, ErrorKind) TP_CHECK_COMPARISON(EQ, ==, x, y, ErrorKind)
#define TVM_FFI_CHECK_NE(x, y, ErrorKind) TP_CHECK_COMPARISON(NE, !=, x, y, ErrorKind)
#define TVM_FFI_CHECK_NOTNULL(x, ErrorKind) \
  ((x) == nullptr ? TVM_FFI_THROW(ErrorKind) << "Check not null: " #x << ' ', (x) : (x))
#define TVM_FFI_ICHECK(x) TVM_FFI_CHECK(x, InternalError)
#define TVM_FFI_ICHECK_LT(x, y) TVM_FFI_CHECK_LT(x, y, InternalError)
#define TVM_FFI_ICHECK_GT(x, y) TVM_FFI_CHECK_GT(x, y, InternalError)
#define TVM_FFI_ICHECK_LE(x, y) TVM_FFI_CHECK_LE(x, y, InternalError)
#define TVM_FFI_ICHECK_GE(x, y) TVM_FFI_CHECK_GE(x, y, InternalError)
#define TVM_FFI_ICHECK_EQ(x, y) TVM_FFI_CHECK_EQ(x, y, InternalError)
#define TVM_FFI_ICHECK_NE(x, y) TVM_FFI_CHECK_NE(x, y, InternalError)
#define TVM_FFI_ICHECK_NOTNULL(x) TVM_FFI_CHECK_NOTNULL(x, InternalError)
#define TVM_FFI_CHECK_SAFE_CALL(func) \
  do {                                \
    if ((func) != 0) tp_rt_throw_raised(); \
  } while (0)

class ShapeView {
 public:
  ShapeView() = default;
  ShapeView(const int64_t* data, size_t size) : data_(data), size_(size) {}
  ShapeView(const std::initializer_list<int64_t>& sizes)
      : data_(sizes.begin()), size_(sizes.size()) {}
  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  int64_t at(size_t i) const {
    if (__builtin_expect(i >= size_, 0)) {
      tp_rt_bad_shape_index(static_cast<int64_t>(i), static_cast<int64_t>(size_));
    }
    return data_[i];
  }
  int64_t front() const { return at(0); }
  int64_t back() const { return at(size_ - 1); }
  int64_t Product() const {
    int64_t product = 1;
    for (size_t i = 0; i < size_; ++i) product *= data_[i];
    return product;
  }

 private:
  const int64_t* data_ = nullptr;
  size_t size_ = 0;
};

// An owned list of sizes. The engine's is reference counted; a kernel cannot tell the difference
// until one is passed or returned, which the full headers take over.
class Shape {
 public:
  using index_type = int64_t;
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) { assign(sizes.begin(), sizes.size()); }
  Shape(ShapeView sizes) { assign(sizes.data(), sizes.size()); }
  template <typename Iterator_>
  Shape(Iterator_ begin, Iterator_ end) {
    size_t size = 0;
    for (Iterator_ it = begin; it != end; ++it) ++size;
    int64_t* out = reserve(size);
    for (Iterator_ it = begin; it != end; ++it) *out++ = static_cast<int64_t>(*it);
  }
  template <typename Vector_, typename = decltype(static_cast<const int64_t*>(
                                 static_cast<const Vector_*>(nullptr)->data()))>
  Shape(const Vector_& sizes) {
    assign(sizes.data(), sizes.size());
  }
  Shape(const Shape& other) { assign(other.data_, other.size_); }
  Shape& operator=(const Shape& other) {
    if (this != &other) {
      release();
      assign(other.data_, other.size_);
    }
    return *this;
  }
  ~Shape() { release(); }
  static Shape StridesFromShape(ShapeView shape) {
    Shape strides;
    int64_t* out = strides.reserve(shape.size());
    int64_t step = 1;
    for (size_t i = shape.size(); i != 0; --i) {
      out[i - 1] = step;
      step *= shape[i - 1];
    }
    return strides;
  }
  operator ShapeView() const { return ShapeView(data_, size_); }
  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  int64_t at(size_t i) const { return ShapeView(*this).at(i); }
  int64_t front() const { return at(0); }
  int64_t back() const { return at(size_ - 1); }
  int64_t Product() const { return ShapeView(*this).Product(); }

 private:
  int64_t* reserve(size_t size) {
    data_ = size > kInline ? new int64_t[size] : inline_;
    size_ = size;
    return data_;
  }
  void assign(const int64_t* data, size_t size) {
    int64_t* out = reserve(size);
    for (size_t i = 0; i < size; ++i) out[i] = data[i];
  }
  void release() {
    if (data_ != inline_) delete[] data_;
  }
  static constexpr size_t kInline = 8;
  int64_t inline_[kInline] = {};
  int64_t* data_ = inline_;
  size_t size_ = 0;
};

inline bool IsContiguous(const DLTensor& tensor) { return tp_rt_is_contiguous(&tensor); }

inline size_t GetDataSize(size_t numel, DLDataType dtype) {
  return static_cast<size_t>((static_cast<uint64_t>(numel) * dtype.bits * dtype.lanes + 7) / 8);
}

namespace detail {

// What a tensor and a view of one have in common: both look at a DLTensor.
template <typename Derived_>
class TensorAccess {
 public:
  void* data_ptr() const { return dl().data; }
  DLDevice device() const { return dl().device; }
  int32_t ndim() const { return dl().ndim; }
  int32_t dim() const { return dl().ndim; }
  DLDataType dtype() const { return dl().dtype; }
  ShapeView shape() const { return ShapeView(dl().shape, static_cast<size_t>(dl().ndim)); }
  ShapeView sizes() const { return shape(); }
  ShapeView strides() const {
    if (__builtin_expect(!dl().strides && dl().ndim, 0)) tp_rt_no_strides();
    return ShapeView(dl().strides, static_cast<size_t>(dl().ndim));
  }
  int64_t size(int64_t i) const { return dl().shape[dimension(i)]; }
  int64_t stride(int64_t i) const { return dl().strides[dimension(i)]; }
  int64_t numel() const { return shape().Product(); }
  uint64_t byte_offset() const { return dl().byte_offset; }
  bool IsContiguous() const { return tensorplay_light::IsContiguous(dl()); }
  bool is_contiguous() const { return IsContiguous(); }

 private:
  const DLTensor& dl() const { return static_cast<const Derived_*>(this)->dl_tensor(); }
  int64_t dimension(int64_t i) const {
    int64_t adjusted = i >= 0 ? i : dl().ndim + i;
    if (__builtin_expect(adjusted < 0 || adjusted >= dl().ndim, 0)) {
      tp_rt_bad_dimension(i, dl().ndim);
    }
    return adjusted;
  }
};

}  // namespace detail

// A counted reference to one of the engine's tensor objects.
class Tensor : public detail::TensorAccess<Tensor> {
 public:
  Tensor() = default;
  Tensor(const Tensor& other) : object_(other.object_) {
    if (object_) TVMFFIObjectIncRef(object_);
  }
  Tensor(Tensor&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Tensor& operator=(Tensor other) noexcept {
    TVMFFIObject* held = object_;
    object_ = other.object_;
    other.object_ = held;
    return *this;
  }
  ~Tensor() {
    if (object_) TVMFFIObjectDecRef(object_);
  }
  static Tensor FromEnvAlloc(int (*allocate)(DLTensor*, TVMFFIObjectHandle*), ShapeView shape,
                             DLDataType dtype, DLDevice device) {
    return Tensor(tp_rt_allocate(allocate, shape.data(), shape.size(), dtype, device));
  }
  bool defined() const { return object_ != nullptr; }
  const DLTensor* GetDLTensorPtr() const { return TVMFFITensorGetDLTensorPtr(object_); }
  const DLTensor& dl_tensor() const { return *GetDLTensorPtr(); }

  // For the export wrapper: takes over or gives away one reference.
  explicit Tensor(TVMFFIObject* owned) : object_(owned) {}
  TVMFFIObject* release() {
    TVMFFIObject* held = object_;
    object_ = nullptr;
    return held;
  }

 private:
  TVMFFIObject* object_ = nullptr;
};

class TensorView : public detail::TensorAccess<TensorView> {
 public:
  TensorView(const DLTensor* tensor) {
    if (__builtin_expect(!tensor, 0)) tp_rt_no_tensor("(tensor != nullptr)");
    tensor_ = *tensor;
  }
  TensorView(const Tensor& tensor) {
    if (__builtin_expect(!tensor.defined(), 0)) tp_rt_no_tensor("(tensor.defined())");
    tensor_ = *tensor.GetDLTensorPtr();
  }
  TensorView(Tensor&&) = delete;  // the view would outlive the tensor
  TensorView(const TensorView&) = default;
  TensorView& operator=(const TensorView&) = default;
  TensorView& operator=(const Tensor& tensor) { return *this = TensorView(tensor); }
  TensorView& operator=(Tensor&&) = delete;
  const DLTensor& dl_tensor() const { return tensor_; }

  // For the export wrapper, whose tensor is there.
  explicit TensorView(const DLTensor& tensor) : tensor_(tensor) {}

 private:
  DLTensor tensor_;
};

}  // namespace tensorplay_light
}  // namespace ffi
}  // namespace tvm

#ifdef NDEBUG
#define TVM_FFI_DCHECK(x) \
  while (false) TVM_FFI_ICHECK(x)
#else
#define TVM_FFI_DCHECK(x) TVM_FFI_ICHECK(x)
#endif

#include <tensorplay/ffi_export.h>

#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(ExportName, Function) TP_EXPORT(ExportName, Function)
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC(ExportName, DocString) TP_EXPORT_DOC(ExportName, DocString)

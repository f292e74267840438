// Typed views: what the parameters of a kernel in a cell look like.
//
//   template <typename T>
//   void axpy(double a, tp::In<T> x, tp::InOut<T> y) {
//     for (int64_t i = 0; i < x.numel(); ++i) y[i] += a * x[i];
//   }
//
// In, Out and InOut say direction, element type and (optionally) rank in the signature, so that
// guards, output allocation and dispatch over dtypes are derived from it. `x[i]` is flat and needs
// contiguous data; `x(i, j)` honours strides. A view owns nothing and is passed by value.
// Compiled with TP_DEBUG=1 every access is checked and raises IndexError.
#pragma once

#include <tensorplay/guard.h>
#include <tensorplay/parallel.h>

#include <cmath>

#ifndef TP_DEBUG
#define TP_DEBUG 0
#endif

namespace tp {

inline constexpr int any_rank = -1;

// E is the element type, const for inputs. Sizes and the data pointer are kept by value because
// optimisers keep them in registers across a loop that writes through other views.
template <class E, int N>
class View {
 public:
  using value_type = E;
  static constexpr int rank = N;

  explicit View(const tp_view* view)
      : data_(static_cast<E*>(view->data)), numel_(view->numel), view_(view) {}

  // Elements in all, in the order of contiguous memory.
  int64_t numel() const { return numel_; }
  int64_t ndim() const { return N >= 0 ? N : view_->ndim; }
  // Size and stride (in elements) of a dimension; negative counts from the end.
  int64_t size(int64_t dim) const { return view_->shape[checked_dim(dim)]; }
  int64_t stride(int64_t dim) const {
    dim = checked_dim(dim);
    if (__builtin_expect(view_->strides != nullptr, 1)) return view_->strides[dim];
    int64_t step = 1;
    for (int64_t d = view_->ndim - 1; d > dim; --d) step *= view_->shape[d];
    return step;
  }
  const int64_t* shape() const { return view_->shape; }
  E* data() const { return data_; }
  E* begin() const { return data_; }
  E* end() const { return data_ + numel_; }

  E& operator[](int64_t i) const {
#if TP_DEBUG
    if (i < 0 || i >= numel_) tp_rt_bad_index(view_, i, numel_, -1);
#endif
    return data_[i];
  }

  template <class... Index>
  E& operator()(Index... index) const {
    constexpr int given = sizeof...(Index);
    static_assert(N < 0 || N == given, "a view of rank N takes N indices");
#if TP_DEBUG
    if (given != view_->ndim) tp_rt_bad_rank(view_, given);
    int dim = 0;
    ((static_cast<int64_t>(index) < 0 || static_cast<int64_t>(index) >= view_->shape[dim]
          ? tp_rt_bad_index(view_, static_cast<int64_t>(index), view_->shape[dim], dim)
          : void(++dim)),
     ...);
#endif
    const int64_t* strides = view_->strides;
    int64_t offset = 0;
    ((offset += static_cast<int64_t>(index) * *strides++), ...);
    (void)strides;
    return data_[offset];
  }

 private:
  int64_t checked_dim(int64_t dim) const {
    const int64_t at = dim < 0 ? dim + ndim() : dim;
    if (__builtin_expect(at < 0 || at >= ndim(), 0)) tp_rt_bad_index(view_, dim, ndim(), -2);
    return at;
  }

  E* data_;
  int64_t numel_;
  const tp_view* view_;
};

// Read only.
template <class T, int N = any_rank>
class In : public View<const T, N> {
 public:
  using View<const T, N>::View;
};

// Written, allocated by the operator; what it holds before is undefined.
template <class T, int N = any_rank>
class Out : public View<T, N> {
 public:
  using View<T, N>::View;
};

// Read and written: the operator changes its argument in place.
template <class T, int N = any_rank>
class InOut : public View<T, N> {
 public:
  using View<T, N>::View;
};

// A view that may be absent, None in Python: `if (bias) y[i] += (*bias)[i];`. Asking an absent one
// for its value raises RuntimeError.
template <class V>
class Optional {
 public:
  explicit Optional(const tp_view* view) : view_(view) {}

  bool has_value() const { return view_->ndim != TP_ABSENT; }
  explicit operator bool() const { return has_value(); }
  V value() const {
    if (__builtin_expect(!has_value(), 0)) tp_rt_no_value(view_);
    return V(view_);
  }
  V operator*() const { return value(); }

  struct Arrow {
    V view;
    const V* operator->() const { return &view; }
  };
  Arrow operator->() const { return Arrow{value()}; }

 private:
  const tp_view* view_;
};

// Views of the tensors of a list, each with sizes of its own: `for (auto x : xs) …`, `xs[k](i, j)`.
// An index outside of the list raises IndexError.
template <class V>
class List {
 public:
  explicit List(const tp_view* view) : view_(view) {}

  int64_t size() const { return view_->numel; }
  bool empty() const { return view_->numel == 0; }
  V operator[](int64_t k) const {
    if (__builtin_expect(k < 0 || k >= view_->numel, 0)) tp_rt_no_member(view_, k);
    return V(first() + k);
  }

  struct Iterator {
    const tp_view* at;
    V operator*() const { return V(at); }
    Iterator& operator++() {
      ++at;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
    bool operator==(const Iterator& other) const { return at == other.at; }
  };
  Iterator begin() const { return Iterator{first()}; }
  Iterator end() const { return Iterator{first() + view_->numel}; }

 private:
  const tp_view* first() const { return static_cast<const tp_view*>(view_->data); }
  const tp_view* view_;
};

// An output whose sizes the kernel finds out: it calls `allocate` once, with the sizes, and writes
// every element of the view that it gets. What the memory holds before is undefined.
template <class T, int N = any_rank>
class Result {
 public:
  explicit Result(tp_result* result) : result_(result) {}

  template <class... Size>
  Out<T, N> allocate(Size... sizes) const {
    constexpr int given = sizeof...(Size);
    static_assert(N < 0 || N == given, "a result of rank N is allocated with N sizes");
    const int64_t shape[given + 1] = {static_cast<int64_t>(sizes)..., 0};
    return Out<T, N>(tp_rt_allocate_result(result_, shape, given));
  }
  // The sizes as an array, such as `x.shape()` of a view.
  Out<T, N> allocate_shape(const int64_t* shape, int64_t ndim) const {
    return Out<T, N>(tp_rt_allocate_result(result_, shape, static_cast<int32_t>(ndim)));
  }

 private:
  tp_result* result_;
};

}  // namespace tp

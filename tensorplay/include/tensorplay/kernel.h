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

}  // namespace tp

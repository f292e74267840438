// Typed views in CUDA text: the parameters of a kernel, or of a function that launches one.
//
//   template <typename T>
//   __global__ void scale(tp::In<T> x, float by, tp::Out<T> out) {
//     int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
//     if (i < out.numel()) out[i] = x[i] * T(by);
//   }
//
// They have the names and the meaning of those in kernel.h. Here a view holds sizes and strides
// itself, since a kernel cannot read the host's memory, and so it has at most 8 dimensions. It is
// read by nvcc, by NVRTC, and by the C++ compiler where only the layout is needed.
#pragma once

#ifdef __CUDACC__
#include <tensorplay/device.h>
#define TP_VIEW_CODE __host__ __device__
#elif defined(__CUDACC_RTC__)
#include <tensorplay/device.h>
#define TP_VIEW_CODE __device__
#else
#include <stdint.h>
#define TP_VIEW_CODE
#endif

// What a view is made of, whatever its type.
struct tp_cuda_view {
  void* data;
  int64_t numel;
  int64_t ndim;
  int64_t shape[8];
  int64_t strides[8];
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#ifdef TENSORPLAY_CUDA_FP16
#include <cuda_fp16.h>
#endif
#ifdef TENSORPLAY_CUDA_BF16
#include <cuda_bf16.h>
#endif

namespace tp {

#ifdef TENSORPLAY_CUDA_BF16
using bfloat16 = __nv_bfloat16;
#endif

enum : int { any_rank = -1 };

// E is the element type, const for inputs; N the number of dimensions, or any_rank.
template <class E, int N>
class View {
 public:
  using value_type = E;
  enum : int { rank = N };

  TP_VIEW_CODE explicit View(const tp_cuda_view& of) : of_(of) {}

  // Elements in all, in the order of contiguous memory.
  TP_VIEW_CODE int64_t numel() const { return of_.numel; }
  TP_VIEW_CODE int64_t ndim() const { return N >= 0 ? N : of_.ndim; }
  // Size and stride (in elements) of a dimension; negative counts from the end.
  TP_VIEW_CODE int64_t size(int64_t dim) const { return of_.shape[dim < 0 ? dim + ndim() : dim]; }
  TP_VIEW_CODE int64_t stride(int64_t dim) const {
    return of_.strides[dim < 0 ? dim + ndim() : dim];
  }
  TP_VIEW_CODE E* data() const { return static_cast<E*>(of_.data); }
  TP_VIEW_CODE E* begin() const { return data(); }
  TP_VIEW_CODE E* end() const { return data() + of_.numel; }
  TP_VIEW_CODE E& operator[](int64_t i) const { return data()[i]; }

  template <class... Index>
  TP_VIEW_CODE E& operator()(Index... index) const {
    static_assert(N < 0 || N == static_cast<int>(sizeof...(Index)),
                  "a view of rank N takes N indices");
    int dim = 0;
    int64_t offset = 0;
    ((offset += static_cast<int64_t>(index) * of_.strides[dim++]), ...);
    (void)dim;
    return data()[offset];
  }

 private:
  tp_cuda_view of_;
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

#endif

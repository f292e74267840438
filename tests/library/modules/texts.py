"""Declarations and kernels that several tests build."""

from __future__ import annotations

OPS = """\
- op: omod::softplus(Tensor x, float beta=1.0) -> Tensor
  doc: log(1 + exp(beta * x)) / beta
  derivatives:
    x: grad * sigmoid(beta * x)
  samples:
    - {x: 'randn(3, 4)', beta: 0.5}
- op: omod::multiply(Tensor x, Tensor w) -> Tensor
- op: omod::mm(Tensor x, Tensor w) -> Tensor
  shape: {x: [n, k], w: [k, m], out: [n, m]}
  derivatives:
    x: grad @ w.T
    w: x.T @ grad
- op: omod::square(Tensor x) -> Tensor
  derivatives:
    x: grad * twice(x)
"""

KERNELS = """\
template <typename T>
void softplus(tp::In<T> x, double beta, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = std::log1p(std::exp(beta * x[i])) / beta;
}
template <typename T>
void multiply(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * w[i];
}
template <typename T>
void multiply_backward(tp::In<T> grad, tp::In<T> x, tp::In<T> w,
                       tp::Out<T> grad_x, tp::Out<T> grad_w) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    grad_x[i] = grad[i] * w[i];
    grad_w[i] = grad[i] * x[i];
  }
}
template <typename T>
void mm(tp::In<T, 2> x, tp::In<T, 2> w, tp::Out<T, 2> out) {
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < w.size(1); ++j) {
      T sum = 0;
      for (int64_t k = 0; k < x.size(1); ++k) sum += x(i, k) * w(k, j);
      out(i, j) = sum;
    }
}
template <typename T>
void square(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * x[i];
}
template <typename T>
void twice(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = 2 * x[i];
}
"""

#: One operator, with a place for its factor.
SCALE = """\
/*---
op: omod::scale(Tensor x) -> Tensor
derivatives: {x: grad * FACTOR}
---*/
template <typename T>
void scale(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = FACTOR * x[i];
}
"""

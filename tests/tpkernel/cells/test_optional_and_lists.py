"""Optional tensors, lists of tensors, and outputs that the kernel allocates, beside typed views."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import ABOVE
from tpkernel.errors import CellError

LINEAR = """\
/*---
op: opt::lin(Tensor x, Tensor w, Tensor? bias=None) -> Tensor
shape: {x: [n, k], w: [k, m], bias: [m], out: [n, m]}
derivatives:
  x: grad @ w.T
  w: x.T @ grad
  bias: grad.sum(0)
---*/
template <typename T>
void lin(tp::In<T, 2> x, tp::In<T, 2> w, tp::Optional<tp::In<T, 1>> bias, tp::Out<T, 2> out) {
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < w.size(1); ++j) {
      T sum = bias ? (*bias)[j] : T(0);
      for (int64_t k = 0; k < x.size(1); ++k) sum += x(i, k) * w(k, j);
      out(i, j) = sum;
    }
}
"""
CAT = """\
/*---
op: opt::cat(Tensor[] xs) -> Tensor
shape: {xs: [_, m], out: ['sum(t.shape[0] for t in xs)', m]}
derivatives:
  xs: split(grad, [t.shape[0] for t in xs])
---*/
template <typename T>
void cat(tp::List<tp::In<T, 2>> xs, tp::Out<T, 2> out) {
  int64_t at = 0;
  for (auto x : xs)
    for (int64_t i = 0; i < x.numel(); ++i) out[at++] = x[i];
}
"""
WEIGHTED = """\
/*---
op: opt::wsum(Tensor[] xs, Tensor? w=None) -> Tensor
---*/
template <typename T>
void wsum(tp::List<tp::In<T>> xs, tp::Optional<tp::In<T>> w, tp::Out<T> out) {
  for (int64_t i = 0; i < out.numel(); ++i) {
    T s = 0;
    for (auto x : xs) s += x[i];
    out[i] = w ? s * w->data()[i] : s;
  }
}
template <typename T>
void wsum_backward(tp::In<T> grad, tp::List<tp::In<T>> xs, tp::Optional<tp::In<T>> w,
                   tp::List<tp::Out<T>> grad_xs, tp::Optional<tp::Out<T>> grad_w) {
  for (int64_t i = 0; i < grad.numel(); ++i) {
    T s = 0;
    for (int64_t k = 0; k < xs.size(); ++k) {
      s += xs[k][i];
      grad_xs[k][i] = grad[i] * (w ? (*w)[i] : T(1));
    }
    if (grad_w) (*grad_w)[i] = grad[i] * s;
  }
}
"""
STEP = """\
/*---
op: opt::adam_(Tensor(a!)[] ps, Tensor[] gs, float lr=0.5) -> ()
shape: {ps: ps, gs: ps}
---*/
template <typename T>
void adam_(tp::List<tp::InOut<T>> ps, tp::List<tp::In<T>> gs, double lr) {
  for (int64_t k = 0; k < ps.size(); ++k)
    for (int64_t i = 0; i < ps[k].numel(); ++i) ps[k][i] -= T(lr) * gs[k][i];
}
"""
ENDS = """\
/*---
op: opt::minmax(Tensor x) -> (Tensor low, Tensor high)
shape: {x: [n], low: [], high: []}
derivatives:
  x: grad_low * (x == low) + grad_high * (x == high)
---*/
template <typename T>
void minmax(tp::In<T, 1> x, tp::Out<T, 0> lo, tp::Out<T, 0> hi) {
  T a = x[0], b = x[0];
  for (auto v : x) { a = v < a ? v : a; b = v > b ? v : b; }
  lo[0] = a; hi[0] = b;
}
"""
ROUND = """\
/*---
op: opt::ste(Tensor x) -> Tensor
derivatives: {x: grad}
surrogate_gradient: straight-through estimator
---*/
template <typename T>
void ste(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] > 0;
}
"""
STATISTIC = """\
/*---
op: opt::aux(Tensor x) -> (Tensor y, Tensor stat)
derivatives: {x: 2 * grad_y}
output_differentiability: [True, False]
---*/
template <typename T>
void aux(tp::In<T> x, tp::Out<T> y, tp::Out<T> stat) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    y[i] = 2 * x[i];
    stat[i] = x[i] * x[i];
  }
}
"""


def built(text: str) -> Any:
    report = tpkernel.build(text)
    assert report.ok, report.to_text(full=True)
    return report


def test_an_optional_tensor_is_there_or_none_and_guarded_as_one() -> None:
    report = built(LINEAR)
    samples = [c.sample for c in report.gradcheck]
    assert any("bias=None" in s for s in samples)
    assert any("bias (" in s for s in samples)
    lin = report.module.lin
    x, w, c = tp.ones(2, 3), tp.ones(3, 4), tp.ones(4, requires_grad=True)
    assert lin(x, w).tolist() == lin(x, w, None).tolist() == [[3.0] * 4] * 2
    lin(x, w, c).sum().backward()
    assert c.grad is not None
    assert c.grad.tolist() == [2.0] * 4
    for bias, kind, words in (
        (tp.ones(5), ValueError, r"expected size 4 in dimension 0 \(m, as argument 'w' has\)"),
        (tp.ones(4).double(), TypeError, "expected float32 on cpu as argument 'x', got float64"),
        (tp.ones(8)[::2], ValueError, "expected float32 or float64 in contiguous memory"),
        (tp.ones(1, 4), ValueError, "expected 1 dimension, got 2"),
        (3, TypeError, r"expected Tensor\?, got int"),
    ):
        with pytest.raises(kind, match=rf"\[opt::lin\] argument 'bias': {words}"):
            lin(x, w, bias)
    with pytest.raises(ValueError, match="expected size 4"):
        lin(*(t.to("meta") for t in (x, w, tp.ones(5))))
    assert tp.func.vmap(lambda x: lin(x, w, c.detach()))(tp.ones(5, 2, 3)).shape == (5, 2, 4)
    for bias in (None, c.detach()):
        compiled = tp.compile(lambda x, b=bias: lin(x * 2, w, b) + 1, fullgraph=True)
        assert compiled(x).tolist() == (lin(x * 2, w, bias) + 1).tolist()


def test_members_of_a_list_are_guarded_one_by_one() -> None:
    report = built(CAT)
    lengths = {c.sample.count("(") for c in report.gradcheck}
    assert lengths >= {1, 3}
    cat, x = report.module.cat, tp.ones(2, 3)
    assert cat([x, 2 * x[:1]]).tolist() == [[1.0] * 3, [1.0] * 3, [2.0] * 3]
    for members, kind, words in (
        ([], ValueError, "'xs': expected at least one tensor, since output 'out' needs the size m"),
        ([x, tp.ones(2, 4)], ValueError, r"'xs\[1\]': expected size 3 in dimension 1 \(m, as"),
        ([x, x.double()], TypeError, r"'xs\[1\]': expected float32 on cpu as argument 'xs\[0\]'"),
        ([x, tp.ones(3, 2).T], ValueError, r"'xs\[1\]': expected float32 or .* in contiguous"),
        ([x, tp.ones(3)], ValueError, r"'xs\[1\]': expected 2 dimensions, got 1"),
        ([x, None], TypeError, r"'xs': expected Tensor\[\]"),
    ):
        with pytest.raises(kind, match=rf"\[opt::cat\] argument {words}"):
            cat(members)
    a = tp.ones(2, 3, requires_grad=True)
    cat([a, x, a]).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [[2.0] * 3] * 2
    compiled = tp.compile(lambda x: cat([x * 2, x]), fullgraph=True)
    assert compiled(x).tolist() == cat([x * 2, x]).tolist()
    assert tp.func.vmap(lambda x: cat([x, x]))(tp.ones(5, 2, 3)).shape == (5, 4, 3)


def test_a_gradient_in_cpp_has_optional_outputs_and_lists_of_them() -> None:
    wsum = built(WEIGHTED).module.wsum
    xs = [tp.ones(3, requires_grad=True), tp.full((3,), 2.0)]
    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    wsum(xs, w).sum().backward()
    assert xs[0].grad is not None
    assert w.grad is not None
    assert xs[0].grad.tolist() == w.tolist()
    assert w.grad.tolist() == [3.0] * 3
    with pytest.raises(ValueError, match=r"'w': expected shape \(3,\) as argument 'xs\[0\]'"):
        wsum(xs, tp.ones(4))


def test_lists_are_written_in_place() -> None:
    step = built(STEP).module.adam_
    ps = [tp.ones(3), tp.ones(3)]
    step(ps, [tp.ones(3), tp.full((3,), 2.0)])
    assert [p.tolist() for p in ps] == [[0.5] * 3, [0.0] * 3]
    for given, other in (([ps[0], ps[0]], "ps"), ([ps[0]], "gs")):
        with pytest.raises(ValueError, match=f"shared with argument '{other}'"):
            step(given, ps[: len(given)])


def test_the_kernel_allocates_what_depends_on_data() -> None:
    report = built(ABOVE)
    assert "the sizes of 'values' depend on values" in report.to_text(full=True)
    above = report.module.above
    x = tp.tensor([1.0, -2.0, 3.0], requires_grad=True)
    found = above(x)
    assert found.values.tolist() == [1.0, 3.0]
    assert found.indices.tolist() == [0, 2]
    assert found.values.requires_grad
    assert not found.indices.requires_grad
    found.values.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 1.0]
    assert above(-tp.ones(2)).values.shape == (0,)
    with pytest.raises(NotImplementedError, match="output 'values' depends on the values"):
        above(tp.ones(3).to("meta"))
    assert tp.compile(lambda x: above(x * 2).values + 1)(tp.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(tp.compiler.GraphCaptureError, match="depends on the values"):
        tp.compile(lambda x: above(x * 2).values + 1, fullgraph=True)(tp.ones(2))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "output 'out': the kernel has not allocated it"),
        ("out.allocate(2); out.allocate(2);", "output 'out': allocate is called a second time"),
        ("out.allocate(-1);", r"output 'out': allocate got the sizes \(-1,\)"),
    ],
)
def test_an_output_is_allocated_once(body: str, words: str) -> None:
    text = (
        "/*---\nop: opt::odd(Tensor x) -> Tensor\ndtypes: [float32]\n---*/\n"
        "template <typename T>\nvoid odd(tp::In<T> x, tp::Result<T, 1> out) "
        f"{{ {body} (void)x; }}\n"
    )
    odd = tpkernel.build(text, checks=()).module.odd
    with pytest.raises((RuntimeError, ValueError), match=rf"\[opt::odd\] {words}"):
        odd(tp.ones(2))


def test_named_results_are_a_named_tuple_everywhere() -> None:
    ends = built(ENDS).module.minmax
    x = tp.tensor([1.0, 2.0])
    found = ends(x)
    assert found._fields == ("low", "high")
    assert (found.low.item(), found.high.item()) == (1.0, 2.0)
    assert pickle.loads(pickle.dumps(found)).high.item() == 2.0
    assert tp.ops.opt.minmax(x).high.item() == 2.0
    assert tp.compile(lambda x: ends(x * 2), fullgraph=True)(x).high.item() == 4.0
    assert ends(x.to("meta")).low.shape == ()
    assert tp.func.vmap(ends)(tp.ones(2, 3)).high.shape == (2,)
    swapped = ENDS.replace("tp::Out<T, 0> lo, tp::Out<T, 0> hi", "tp::Out<T> high, tp::Out<T> low")
    with pytest.raises(CellError, match="stands where the schema has the result 'low'"):
        tpkernel.build(swapped, checks=())


def test_a_deliberate_gradient_is_not_compared() -> None:
    report = built(ROUND)
    assert not report.gradcheck
    (note,) = [f for f in report.findings if f.code == "deliberate"]
    assert "deliberate (straight-through estimator): not compared" in note.message
    assert "deliberately not the derivative: straight-through" in report.to_text(full=True)
    with pytest.raises(CellError, match="must say why"):
        tpkernel.build(ROUND.replace("straight-through estimator", "true"), checks=())


def test_outputs_and_inputs_without_gradient() -> None:
    report = built(STATISTIC)
    assert report.gradcheck
    made = report.module.aux(tp.ones(2, requires_grad=True))
    assert made.y.requires_grad
    assert not made.stat.requires_grad
    none = re.sub("derivatives.*\n", "", STATISTIC).replace("True, False", "False, False")
    made = built(none).module.aux(tp.ones(2, requires_grad=True))
    assert not made.y.requires_grad
    without = STATISTIC.replace("2 * grad_y", "non_differentiable")
    x = tp.ones(2, requires_grad=True)
    tpkernel.build(without, checks=()).module.aux(x).y.sum().backward()
    assert x.grad is None
    with pytest.raises(CellError, match=r"True or False for each output .*\(y, stat\)"):
        tpkernel.build(STATISTIC.replace("[True, False]", "[True]"), checks=())

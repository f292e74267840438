"""Small calls of users' operators give in the extension what they give in Python."""

from __future__ import annotations

import gc
import importlib
import itertools
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native

pytestmark = pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")

short_way = importlib.import_module("tensorplay.library.short_way")
numbers = itertools.count()
kept: list[Any] = []


def keep(x: Any) -> Any:
    out = x * 2
    kept.append(out)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "new": lambda x, f, i, b, s: x * f + i,
    "argument": lambda x, f, i, b, s: x,
    "view": lambda x, f, i, b, s: x[0:1],
    "view of new": lambda x, f, i, b, s: (x * 2)[0:1],
    "kept": lambda x, f, i, b, s: keep(x),
    "array": lambda x, f, i, b, s: x.numpy() * 2,
    "nothing": lambda x, f, i, b, s: None,
    "integers": lambda x, f, i, b, s: (x * 2).long(),
    "foreign": lambda x, f, i, b, s: tp.from_numpy(np.frombuffer(bytearray(8), np.float32)),
    "requires grad": lambda x, f, i, b, s: (x * 2).requires_grad_(),
    "fails": lambda x, f, i, b, s: 1 // 0,
    "mode": lambda x, f, i, b, s: x * float(tp.is_grad_enabled()),
    "types": lambda x, f, i, b, s: tp.tensor([
        float(type(v) is t)
        for v, t in zip((f, i, b, s), (float, int, bool, str), strict=True)
    ]),
}  # fmt: skip


def arguments() -> list[tuple[Any, ...]]:
    base = tp.zeros(2)
    view = base[:]
    base.add_(tp.ones(2).requires_grad_())
    usual = (2.5, 3, True, "s")
    return [
        (tp.ones(2), *usual),
        (tp.ones(2).requires_grad_(), *usual),
        (tp.ones(2).requires_grad_() * 2, *usual),
        (view, *usual),
        (tp.ones(4)[1:3], *usual),
        (tp.from_numpy(np.frombuffer(bytearray(8), np.float32)), *usual),
        (tp.ones(2), 2, 3, True, "s"),
        (tp.ones(2).requires_grad_(), 2, 3, True, "s"),
        (tp.ones(2), 1e300, 3, True, "s"),
        (tp.ones(2), float("nan"), 3, True, "s"),
        (tp.ones(2), 10**400, 3, True, "s"),
        (tp.ones(2), True, 3, True, "s"),
        (tp.ones(2), 2.5, 3.0, True, "s"),
        (tp.ones(2), 2.5, True, True, "s"),
        (tp.ones(2), 2.5, 2**70, True, "s"),
        (tp.ones(2), 2.5, 3, 1, "s"),
        (tp.ones(2), 2.5, 3, True, b"s"),
        (np.ones(2), *usual),
        (tp.ones(2, device="meta"), *usual),
        (tp.ones(2).long(), *usual),
        (tp.ones(2),),
        (),
    ]


def operator(kernel: Any, *, gradient: int, native: bool, monkeypatch: Any) -> Any:
    with monkeypatch.context() as patch:
        if not native:
            patch.setattr(short_way, "_operator_call", None)
        made = tp.library.custom_op(
            f"test_operator_call::op{next(numbers)}",
            kernel,
            schema="(Tensor x, float f, int i, bool b, str s) -> Tensor",
        )
    if gradient == 1:
        made.register_autograd(lambda ctx, g: (g * 3, None, None, None, None))
    elif gradient == 2:

        def set_up(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], output)
            ctx.factor = inputs[1]

        def backward(ctx: Any, g: Any) -> Any:
            x, out = ctx.saved_tensors
            return g * x * ctx.factor * out, None, None, None, None

        made.register_autograd(backward, setup_context=set_up)
    return made


def words(error: Exception) -> tuple[str, str]:
    return type(error).__name__, re.sub(r"[Oo]p\d+", "NAME", str(error))


def outcome(op: Any, args: tuple[Any, ...]) -> Any:
    try:
        out = op(*args)
    except Exception as error:  # noqa: BLE001 - the error is what is compared
        return words(error)
    array = None if out.is_meta else out.detach().numpy().tobytes()
    node = out.grad_fn
    facts: list[Any] = [
        *(out.dtype, tuple(out.shape), array, out.requires_grad, out._base is None, out._version),
        *(node and node.needs_input_grad, tp.is_grad_enabled(), any(out is k for k in kept)),
        *((node.given, node.ctx.needs_input_grad) if hasattr(node, "given") else ()),
    ]
    if out.requires_grad:
        try:
            (grad,) = tp.autograd.grad(out.sum(), args[0])
            facts.append(grad.numpy().tobytes())
        except Exception as error:  # noqa: BLE001
            facts.append(words(error))
    return facts


@pytest.mark.parametrize("gradient", [0, 1, 2], ids=["none", "formula", "context"])
@pytest.mark.parametrize("name", KERNELS)
def test_calls_give_the_same(name: str, gradient: int, monkeypatch: Any) -> None:
    ops = [
        operator(KERNELS[name], gradient=gradient, native=native, monkeypatch=monkeypatch)
        for native in (True, False)
    ]
    assert type(ops[0]._short) is not type(ops[1]._short)
    for ours, theirs in zip(arguments(), arguments(), strict=True):
        assert outcome(ops[0], ours) == outcome(ops[1], theirs)
        with tp.no_grad():
            assert outcome(ops[0], ours) == outcome(ops[1], theirs)


def test_a_call_that_is_dropped_is_collected() -> None:
    class Primitive:
        pass

    primitive = Primitive()
    alive = weakref.ref(primitive)
    call = _native.core.OperatorCall(b"t", primitive, None, None)
    primitive.call = call  # type: ignore[attr-defined]  # a cycle
    del primitive, call
    gc.collect()
    assert alive() is None
    with pytest.raises(ValueError, match="letters"):
        _native.core.OperatorCall(b"x", None, None, None)
    with pytest.raises(ValueError, match="letters"):
        _native.core.OperatorCall(b"t" * 17, None, None, None)

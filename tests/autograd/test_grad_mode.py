"""The switches of recording, as context managers and as decorators."""

from __future__ import annotations

import _thread
import threading
import time
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import _native
from tensorplay._detours import detours


def test_nesting_and_exceptions_restore_the_flag():
    assert tp.is_grad_enabled()
    with tp.no_grad():
        assert not tp.is_grad_enabled()
        with tp.enable_grad():
            assert tp.is_grad_enabled()
        with pytest.raises(KeyError), tp.enable_grad():
            raise KeyError
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()


def test_nothing_is_recorded_inside():
    x = tp.ones(2, requires_grad=True)
    with tp.no_grad():
        y = x * 2
        assert tp.ones(1, requires_grad=True).requires_grad
    assert not y.requires_grad
    assert y.is_leaf


@pytest.mark.parametrize("decorate", [tp.no_grad(), tp.no_grad])
def test_decorator(decorate):
    @decorate
    def function(x):
        """Docstring."""
        return tp.is_grad_enabled(), x

    assert function(3) == (False, 3)
    assert function.__doc__ == "Docstring."
    assert tp.is_grad_enabled()


def test_one_instance_may_be_entered_again():
    mode = tp.no_grad()

    @mode
    def function(depth):
        return [tp.is_grad_enabled(), *(function(depth - 1) if depth else [])]

    with mode, mode:
        assert not tp.is_grad_enabled()
    assert function(2) == [False, False, False]
    assert tp.is_grad_enabled()


def test_generators_keep_the_flag_while_they_run():
    @tp.no_grad()
    def generator():
        seen = [tp.is_grad_enabled()]
        try:
            got = yield tp.is_grad_enabled()
            seen.append(got)
            yield tp.is_grad_enabled()
        except ValueError:
            seen.append(tp.is_grad_enabled())
            yield "caught"
        return seen

    made = generator()
    assert next(made) is False
    assert tp.is_grad_enabled()
    assert made.send("sent") is False
    assert made.throw(ValueError()) == "caught"
    with pytest.raises(StopIteration) as stop:
        next(made)
    assert stop.value.value == [False, "sent", False]
    assert tp.is_grad_enabled()


def test_set_grad_enabled_acts_at_once():
    try:
        tp.set_grad_enabled(False)
        assert not tp.is_grad_enabled()
    finally:
        tp.set_grad_enabled(True)
    with tp.set_grad_enabled(False):
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()

    @tp.set_grad_enabled(False)
    def function():
        return tp.is_grad_enabled()

    assert tp.is_grad_enabled()
    assert not function()


def test_every_thread_has_its_own_flag():
    seen = []
    with tp.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tp.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_inference_mode_stays_in_its_thread() -> None:
    """A suspended generator outlives its thread, whose number another thread gets."""
    kept: list[Any] = []

    def suspended() -> Any:
        with tp.inference_mode():
            yield 1

    def start() -> None:
        generator = suspended()
        next(generator)
        kept.append(generator)

    marked: list[bool] = []

    def fresh() -> None:
        marked.append(tp.ones(2).is_inference())

    for target in (start, *[fresh] * 12):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert marked == [False] * 12
    assert detours
    kept.clear()  # which ends the block, in this thread
    assert not detours
    assert not tp.is_inference_mode_enabled()


def test_what_another_thread_does_changes_nothing_here() -> None:
    """A node that keeps only numbers can be passed twice, on either way."""

    def twice() -> None:
        x = tp.ones(2, requires_grad=True)
        for y in ((x * 2).sum(), (2 * x).sum(), (x / 2).sum()):
            y.backward()
            y.backward()

    twice()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with tp.inference_mode():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(30)
    twice()
    leave.set()
    thread.join()


class _Bomb:
    """``-bomb`` asks for a KeyboardInterrupt, which Python then raises where it next looks."""

    __neg__ = _thread.interrupt_main  # in C, after which nobody looks before the block is left


@pytest.mark.skipif(_native.core is None, reason=f"extension: {_native.reason}")
@pytest.mark.parametrize(
    "make",
    [tp.no_grad, tp.enable_grad, tp.inference_mode, lambda: tp.set_grad_enabled(False)],
    ids=["no_grad", "enable_grad", "inference_mode", "set_grad_enabled"],
)
def test_an_interrupt_at_the_end_of_a_block_leaves_the_mode_as_it_was(make):
    bomb: Any = _Bomb()

    def block() -> None:
        with make():
            _ = -bomb
        time.sleep(1)  # not reached: the interrupt arrives at the end of the block

    for outer in (tp.enable_grad, tp.no_grad):
        with outer():
            before = tp.is_grad_enabled()
            with pytest.raises(KeyboardInterrupt):
                block()
            assert tp.is_grad_enabled() is before
            assert not tp.is_inference_mode_enabled()
    assert tp.is_grad_enabled()
    assert not detours

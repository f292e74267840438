"""Kernels called in a process of their own: what crashes there is an error here."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import MAKE, SOFTPLUS, Shell
from tpkernel.worker.isolation import isolating_worker
from tpkernel.worker.transfer import TransferError, pack, unpack

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

PLAIN = """\
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
void poke(int64_t n) { volatile int* p = nullptr; *p = int(n); }
void leave() { std::exit(3); }
void turn() { volatile int64_t a = 0; for (;;) a = a + 1; }
void refuse() { throw std::invalid_argument("not today"); }
void say() { std::printf("from C\\n"); std::fprintf(stderr, "beside it\\n"); }
int64_t pid() { return getpid(); }
double at(tvm::ffi::TensorView x, int64_t i) { return static_cast<double*>(x.data_ptr())[i]; }
void scale(tvm::ffi::TensorView x, double by) {
  auto* p = static_cast<double*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) p[i] *= by;
}
void copy(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  auto* a = static_cast<const double*>(x.data_ptr());
  auto* b = static_cast<double*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i];
}
std::string twice(std::string text) { return text + text; }
"""


@pytest.fixture(scope="module")
def plain() -> object:
    return tpkernel.build("#include <unistd.h>\n" + PLAIN, isolate=True).module


def test_a_crash_is_an_error_and_the_session_goes_on(plain):
    with pytest.raises(tpkernel.KernelCrash) as caught:
        plain.poke(3)
    crash = caught.value
    assert crash.signal == "SIGSEGV"
    assert str(crash).startswith("[poke] signal 11 (SIGSEGV: ")
    assert "the call poke(n=3)" in str(crash)
    assert crash.stack == ("poke",)
    with pytest.raises(tpkernel.KernelCrash) as caught:
        plain.at(np.ones(2), 1 << 48)
    assert caught.value.stack == ("at",)  # and nothing of what stands around a kernel
    assert plain.twice("ab") == "abab"
    with pytest.raises(tpkernel.KernelCrash, match="exit status 3"):
        plain.leave()
    assert plain.pid() not in (0, os.getpid())


def test_arguments_results_and_errors_are_as_in_the_session(plain):
    x = np.arange(6.0)
    assert plain.at(x, 4) == 4.0
    plain.scale(x, 2.0)
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    t = tp.ones(3, dtype=tp.float64)
    version = t._version
    plain.scale(t, 3.0)
    assert t.tolist() == [3.0, 3.0, 3.0]
    assert t._version > version
    out = np.zeros(6)
    plain.copy(x, out=out)
    assert (out == x).all()
    with pytest.raises(TypeError, match=r"\[copy\] argument 'x': expected float64"):
        plain.copy(x.astype("float32"), out)
    with pytest.raises(ValueError, match=r"\[copy\] argument 'x': .*strides"):
        plain.copy(np.zeros(12)[::2], out)
    with pytest.raises(ValueError, match=r"\[copy\] argument 'out'.*memory"):
        plain.copy(x[:4], x[1:5])
    with pytest.raises(ValueError, match=r"\[refuse\] not today"):
        plain.refuse()
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        plain.scale(frozen, 2.0)


def test_what_the_kernel_prints_appears_here(plain, capsys):
    plain.say()
    shown = capsys.readouterr()
    assert shown.out == "from C\n"
    assert "beside it" in shown.err


def test_a_tensor_that_the_kernel_makes_comes_back():
    made = tpkernel.build(MAKE, isolate=True).module.make(4)
    assert isinstance(made, tp.Tensor)
    assert made.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_interrupt_ends_the_kernel_and_not_the_session(plain):
    plain.pid()  # warm
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        plain.turn()
    assert time.monotonic() - start < 2.0
    assert plain.at(np.arange(3.0), 1) == 1.0


def test_an_isolated_operator_is_differentiable_and_checked():
    report = tpkernel.build(SOFTPLUS, isolate=True)
    assert report.ok, str(report)
    x = tp.tensor([-1.0, 0.5], requires_grad=True)
    report.module.softplus(x, beta=2.0).sum().backward()
    tp.testing.assert_close(x.grad, tp.sigmoid(2.0 * x.detach()))
    with pytest.raises(TypeError, match=r"\[mylib::softplus\] argument 'x'"):
        report.module.softplus(tp.tensor([1, 2]))
    assert report.module.softplus(tp.empty(2, device="meta")).is_meta


def test_the_magic_isolates(shell: Shell):
    ran = shell.kernel(PLAIN.replace("int64_t pid() { return getpid(); }", ""), "--isolate")
    assert ran.error is None, ran.shown
    ran = shell.run("poke(1)")
    assert isinstance(ran.error, tpkernel.KernelCrash)
    assert "magics/tpkernel" not in ran.shown
    assert shell.ok("1 + 1").result == 2


def test_a_global_object_that_crashes_is_met_at_the_call():
    text = "#include <cstdlib>\nstatic int dead = (abort(), 1);\nint64_t one() { return dead; }"
    module = tpkernel.build(text, isolate=True).module
    with pytest.raises(tpkernel.KernelCrash, match="loading the library"):
        module.one()


# -- the way there and back -----------------------------------------------------------------------


@given(
    hnp.arrays(
        st.sampled_from(["float32", "float64", "int8", "bool", "complex64"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_arrays_arrive_with_their_layout(array, data):
    index = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in array.shape)
    view = array[(*index, ...)].T
    (arrived,) = unpack(pack([view]))
    assert arrived.dtype == view.dtype
    assert arrived.strides == view.strides
    np.testing.assert_array_equal(arrived, view)


def test_arrays_that_share_memory_share_it_there():
    x = np.arange(8.0)
    a, b, c = unpack(pack([x[:5], x[3:], tp.from_numpy(x)[2:4]]))
    b[0] = 99.0
    assert a[3] == 99.0
    assert c.tolist() == [2.0, 99.0]
    one, two = unpack(pack([np.zeros(3), np.zeros(3)]))
    assert not np.shares_memory(one, two)


def test_what_cannot_be_handed_over_says_so():
    assert unpack(pack([[1, "a", (2.0, None)], np.float32(2)])) == [[1, "a", (2.0, None)], 2.0]
    with pytest.raises(TransferError, match="a function cannot be handed"):
        pack([lambda: None])
    assert isolating_worker() is isolating_worker()

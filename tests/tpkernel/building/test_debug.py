"""What ``--debug`` adds to the calls of a cell's operators."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
import tpkernel

SNEAKY = """\
void sneaky(tp::In<float> x, tp::Out<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i];
  if (x.numel() == 7) const_cast<float&>(x[0]) = 42.0f;
}
"""


def test_an_input_that_is_written_is_found_in_every_call() -> None:
    plain = tpkernel.build(SNEAKY, "debug_off", checks=False).module.sneaky
    x = tp.zeros(7)
    plain(x)
    assert x[0] == 42  # nothing looked
    checked = tpkernel.build(SNEAKY, "debug_on", checks=False, debug=True).module.sneaky
    assert checked(tp.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match=r"argument 'x'.*was written.*x\.clone\(\)"):
        checked(tp.zeros(7))
    with pytest.raises(RuntimeError, match="was written"):
        checked(np.zeros(7, np.float32))


def test_building_again_without_it_takes_it_back() -> None:
    tpkernel.build(SNEAKY, "debug_again", checks=False, debug=True)
    again = tpkernel.build(SNEAKY, "debug_again", checks=False).module.sneaky
    x = tp.zeros(7)
    again(x)
    assert x[0] == 42


def test_what_a_cell_binds_is_taken_for_the_operator() -> None:
    bound = tpkernel.build(SNEAKY, "debug_bound", checks=False).module.sneaky
    assert tp.library.opcheck(bound, (tp.rand(3),)) == {}
    assert tp.library.get_op(bound) is bound.definition  # type: ignore[arg-type]


def test_what_a_message_says_to_write_can_be_written() -> None:
    bound = tpkernel.build(SNEAKY, "debug_gradient", checks=False).module.sneaky
    x = tp.rand(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="register_autograd"):
        bound(x).sum().backward()
    bound.register_autograd(lambda ctx, grad: grad)
    bound(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bound.nothing

"""Silence inside an implementation, and only there."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _quiet as quiet


@pytest.fixture(params=["NumPy's state", "public functions"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as it is, and as it is with a NumPy whose state is elsewhere."""
    if request.param == "NumPy's state":
        return quiet
    monkeypatch.delattr("numpy._core.umath._make_extobj")
    spec = importlib.util.spec_from_file_location("quiet_elsewhere", Path(quiet.__file__))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_warnings_stop_and_come_back(module: ModuleType) -> None:
    with np.errstate(all="raise"):
        before = np.geterr()
        token = module.silence()
        try:
            assert np.log(np.zeros(1))[0] == -np.inf
        finally:
            module.restore(token)
        assert np.geterr() == before
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(1))


def test_operators_do_not_warn_and_leave_the_state_alone() -> None:
    before = np.geterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tp.tensor([0.0, -1.0, 1e38])
        assert (x / 0).isnan().tolist() == [True, False, False]
        assert x.log().tolist()[0] == -np.inf
        assert (x * x).tolist()[2] == np.inf
    assert np.geterr() == before

"""An operator of a cell in a model: trained, compiled, saved, and used where no compiler is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorplay as tp
import tpkernel
from tensorplay import nn, optim

FRONT = """
op: trained::bend(Tensor x, Tensor slope) -> Tensor
shape: {x: [n, k], slope: [], out: [n, k]}
derivatives:
  x: grad * slope * sigmoid(x)
  slope: (grad * softplus(x)).sum()
"""
KERNEL = """
template <typename T>
void bend(tp::In<T> x, tp::In<T, 0> slope, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = slope() * std::log1p(std::exp(x[i]));
}
"""

MODEL = """
class Bend(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(tp.tensor(1.0))

    def forward(self, x):
        return tp.ops.trained.bend(x, self.slope)


def model():
    return nn.Sequential(nn.Linear(3, 8), Bend(), nn.Linear(8, 2))


def data():
    x = tp.arange(36).reshape(12, 3).float() / 20 - 0.8
    return x, (x.sum(1) > 0).long()
"""

ELSEWHERE = (
    """
import json, sys, warnings
import tensorplay as tp
from tensorplay import nn
"""
    + MODEL
    + """
tp.library.load(sys.argv[1])
net = model()
net.load_state_dict(tp.load(sys.argv[2]))
x, _ = data()
with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    compiled = tp.compile(net)(x)
print(json.dumps({"eager": net(x).tolist(), "compiled": compiled.tolist()}))
"""
)


@pytest.fixture
def operator() -> Any:
    report = tpkernel.build(f"/*---{FRONT}---*/{KERNEL}", checks=["gradcheck"])
    assert all(pair.verdict == "ok" for pair in report.gradcheck)
    return report


def test_an_operator_of_a_cell_in_a_trained_compiled_and_saved_model(
    operator: Any, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"tp": tp, "nn": nn}
    exec(MODEL, names)  # noqa: S102 - the same text as in the other process
    tp.manual_seed(0)
    net, twin = names["model"](), names["model"]()
    twin.load_state_dict(net.state_dict())
    x, y = names["data"]()
    losses: dict[str, list[float]] = {}
    for name, trained, call in (("eager", net, net), ("compiled", twin, tp.compile(twin))):
        optimizer = optim.Adam(trained.parameters(), 0.05)
        losses[name] = []
        for _ in range(20):
            loss = nn.functional.cross_entropy(call(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses["eager"][-1] < losses["eager"][0] / 2
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-4)

    tp.save(net.state_dict(), tmp_path / "net.tp")
    (tmp_path / "ops.yaml").write_text(f"-{FRONT.replace(chr(10), chr(10) + '  ')[2:]}")
    (tmp_path / "kernels.cc").write_text(KERNEL)
    library = tmp_path / "libtrained.so"
    tp.library.build_module(tmp_path / "ops.yaml", [tmp_path / "kernels.cc"], output=library)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(library), str(tmp_path / "net.tp")],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if k not in {"CXX", "CC"}},
            "PATH": str(tmp_path),  # no compiler
            "TENSORPLAY_CACHE_DIR": str(tmp_path / "cache"),  # nor what one made
        },
    )
    found = json.loads(done.stdout)
    assert found["eager"] == net(x).tolist()
    tp.testing.assert_close(tp.tensor(found["compiled"]), net(x).detach())

"""An operator of a cell in a model: trained, compiled, saved, and used where no compiler is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay as tp
from tests.tpkernel.shell import Shell

CELL = """\
/*---
op: trained::bend(Tensor x, Tensor slope) -> Tensor
shape: {x: [n, k], slope: [], out: [n, k]}
derivatives:
  x: grad * slope * sigmoid(x)
  slope: (grad * softplus(x)).sum()
---*/
template <typename T>
void bend(tp::In<T> x, tp::In<T, 0> slope, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = slope() * std::log1p(std::exp(x[i]));
}
"""

# The same text in the notebook and in the other process.
MODEL = """
import tensorplay as tp
from tensorplay import nn


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

TRAINING = """
tp.manual_seed(0)
eager, twin = model(), model()
twin.load_state_dict(eager.state_dict())
compiled = tp.compile(twin)
x, y = data()
losses = {}
for name, net, call in (("eager", eager, eager), ("compiled", twin, compiled)):
    optimizer = tp.optim.Adam(net.parameters(), 0.05)
    losses[name] = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(call(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[name].append(loss.item())
"""

ELSEWHERE = f"""
import json, sys
{MODEL}
from tensorplay.utils import cpp_jit

try:
    cpp_jit.load_inline("one", cpp_sources="int one() {{ return 1; }}", functions="one")
except Exception as error:
    refusal = str(error)
tp.library.load(sys.argv[1])
net = model()
net.load_state_dict(tp.load(sys.argv[2]))
x, _ = data()
compiled = tp.compile(net)(x)
print(json.dumps({{"refusal": refusal, "eager": net(x).tolist(), "compiled": compiled.tolist()}}))
"""


def test_an_operator_of_a_cell_in_a_trained_compiled_and_saved_model(
    shell: Shell, tmp_path: Path
) -> None:
    assert shell.kernel(CELL).error is None
    report = shell.ok("import tpkernel\ntpkernel.last_report()").result
    assert report.ok
    assert all(pair.verdict == "ok" for pair in report.gradcheck)
    shell.ok(MODEL)
    shell.ok(TRAINING)
    losses = shell["losses"]
    assert losses["eager"][-1] < losses["eager"][0] / 2
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-4)
    # The kernel lies between what is compiled: the whole model is one graph.
    assert shell.ok("tp.compiler.explain(twin)(x).graph_count").result == 1

    tp.save(shell["twin"].state_dict(), tmp_path / "net.tp")
    source = report.export(tmp_path / "trained_ops") / "src" / "trained_ops"
    library = tmp_path / "libtrained.so"
    tp.library.build_module(source / "ops.yaml", [source / "kernels.cc"], output=library)
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
    assert "no C++ compiler" in found["refusal"]
    assert "[compile] no native code" in done.stderr
    assert found["eager"] == shell.ok("twin(x).tolist()").result
    expected = shell.ok("compiled(x).detach()").result
    tp.testing.assert_close(tp.tensor(found["compiled"]), expected)

"""Sizes of launches as the generated text of operators with CUDA kernels computes them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from tensorplay.utils.cpp_jit import support, toolchain

LOW, HIGH = -(2**63), 2**63 - 1
EDGES = (LOW, LOW + 1, -7, -2, -1, 0, 1, 2, 7, HIGH - 1, HIGH)
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <tensorplay/cuda_operator.h>
using namespace tensorplay::jit;
void show(CudaNumber number) {
  if (number.fault == TP_CUDA_OVERFLOWS) printf("overflows ");
  else if (number.fault == TP_CUDA_DIVIDES_BY_ZERO) printf("divides by zero ");
  else printf("%lld ", (long long)number.value);
}
int main() {
  long long a, b;
  while (scanf("%lld %lld", &a, &b) == 2) {
    show(floor_div(a, b));
    show(floor_mod(a, b));
    show(ceil_div(a, b));
    printf("\n");
  }
}
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[tuple[int, int]]], str]:
    """Return what computes floor_div, floor_mod and ceil_div of pairs, a line each."""
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "sizes.cpp").write_text(PROGRAM)
    found = toolchain.find_compiler()
    places = (support.INCLUDE, *toolchain.find_engine().include_paths)
    command = [*found.command, "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    command += [*(f"-I{place}" for place in places), "sizes.cpp", "-o", "sizes"]
    subprocess.run(command, cwd=folder, check=True)

    def run(pairs: list[tuple[int, int]]) -> str:
        given = "".join(f"{a} {b}\n" for a, b in pairs)
        command = [folder / "sizes"]
        ran = subprocess.run(command, check=False, input=given, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    return run


def expected(a: int, b: int) -> list[str]:
    """Return what Python says, and why there is nothing in 64 bits."""
    if b == 0:
        return ["divides by zero"] * 3
    return [str(n) if LOW <= n <= HIGH else "overflows" for n in (a // b, a % b, -(-a // b))]


WHOLE = st.integers(LOW, HIGH) | st.integers(-9, 9) | st.sampled_from(EDGES)


def lines(pairs: list[tuple[int, int]]) -> str:
    return "".join(f"{' '.join(expected(a, b))} \n" for a, b in pairs)


def test_division_at_its_edges(computed: Callable[[list[tuple[int, int]]], str]) -> None:
    pairs = [(a, b) for a in EDGES for b in EDGES]
    assert computed(pairs) == lines(pairs)


@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=50))
@settings(max_examples=20, deadline=None)
def test_division_is_pythons(
    computed: Callable[[list[tuple[int, int]]], str], pairs: list[tuple[int, int]]
) -> None:
    assert computed(pairs) == lines(pairs)

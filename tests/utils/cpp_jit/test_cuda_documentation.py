"""The examples of docs/cuda.md run from top to bottom and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tensorplay.utils.cpp_jit import cuda_kernels
from tensorplay.utils.cpp_jit.errors import MissingToolError

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cuda.md").read_text("utf-8")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_print_what_the_page_says() -> None:
    try:
        cuda_kernels.device_compiler()
    except MissingToolError:
        pytest.skip("no compiler for CUDA kernels (pip install nvidia-cuda-nvrtc)")
    scope: dict[str, object] = {"__name__": "docs_cuda"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for text in FENCED.findall(PAGE):
            exec(compile(text, "cuda.md", "exec"), scope)
    assert shown.getvalue().splitlines() == [
        "['scale'] (x, out, n, by)",
        "[scale] argument 'x': expected a tensor on cuda, got one on cpu. Move it to the GPU.",
        "('negate',)",
        (
            "__global__ void scale(const float* x, float* out, int64_t n, float by), launched with "
            "grid ceil_div(numel, 256), block 256, n numel"
        ),
        "cell::square(Tensor x) -> Tensor",
        (
            "[docs_cuda::scale] no kernel for device cpu; registered: cuda. Pass tensors on a GPU, "
            "tensorplay.from_dlpack(cupy.asarray(x)), or write "
            "@tensorplay.library.register_kernel('docs_cuda::scale', 'cpu')."
        ),
        "Size([3])",
        "['kernels', 'launch', 'reason', 'route', 'targets', 'toolkit']",
    ]


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/cuda.md" in (ROOT / "README.md").read_text("utf-8")

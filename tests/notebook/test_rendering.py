"""`notebooks/render.py` writes pages that need neither scripts nor a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook.test_notebooks import FOLDER, VisibleText

pytestmark = pytest.mark.slow


def test_a_page_has_report_and_pictures_without_a_script(tmp_path: Path) -> None:
    notebook = FOLDER / "07_from_cell_to_package.ipynb"
    subprocess.run(
        [sys.executable, FOLDER / "render.py", tmp_path / "html", notebook], check=True, timeout=180
    )
    page = (tmp_path / "html" / "07_from_cell_to_package.html").read_text("utf-8")
    assert "<script" not in page.lower()
    assert re.findall(r'(?:src|href)="https?:', page) == []
    assert page.count("data:image/png;base64") >= 1
    assert "No description has been provided" not in page
    assert page.count('alt="plot for the section In the notebook') == 1
    assert "pre { word-break: normal;" in page
    shown = VisibleText.of(page)
    assert shown.count("press::dither(Tensor x, float threshold=0.5) -> Tensor") >= 2
    assert "Validation" in shown


def test_without_a_folder_it_says_what_to_write() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "render.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "render.py FOLDER" in done.stderr

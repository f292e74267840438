"""Every Python block of docs/report.md does what the page says, in one session."""

from __future__ import annotations

import re
from pathlib import Path

from tpkernel.report.facts import GradcheckSettings
from tpkernel.report.report import Report
from tpkernel.report.summary import SECTIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "report.md").read_text("utf-8")


def test_every_block_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/report.md", "exec"), space)


def test_the_page_names_every_section_and_every_request() -> None:
    for section in SECTIONS:
        assert f"| {section} |" in PAGE
    for name in vars(Report):
        if name.startswith("with_"):
            assert f"`{name}(" in PAGE, name
    assert set(GradcheckSettings.__dataclass_fields__) > {"shapes", "dtype", "seed", "curve"}


def test_readme_leads_to_the_page() -> None:
    assert "docs/report.md" in (ROOT / "README.md").read_text("utf-8")

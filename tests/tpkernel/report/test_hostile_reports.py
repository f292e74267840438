"""Reports of hostile size and content: every form stays safe, readable and of a stated size."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tpkernel.report.bounds import HTML_LIMIT
from tpkernel.report.facts import (
    BuildFacts,
    CompileFacts,
    DiagnosticFacts,
    Finding,
    GradcheckFacts,
    InstructionFacts,
    JacobianFacts,
    ListingFacts,
    OpcheckFacts,
    OpcheckFailureFacts,
    OperatorFacts,
    PairFacts,
    StepCurve,
    ValidationRow,
    WorstFacts,
)
from tpkernel.report.report import Report
from tpkernel.report.widget import ReportWidget

EVIL = (
    "<script>alert(1)</script>\"'`${x}`</pre><img src=x onerror=alert(2)>\u202egnirts\u202c ∂α̂ 🧪"
)
BUILD = BuildFacts("k", "f", "l", True, 0.0, 0.0, "light", (), (), "")
NAN, INF = float("nan"), float("inf")


def worst(difference: float, analytical: complex = 1.0) -> WorstFacts:
    return WorstFacts((0,), (0,), analytical, NAN, difference, 1e-3)


def jacobian(side: int, seed: int = 0) -> JacobianFacts:
    values = np.random.default_rng(seed).standard_normal((3, side * side))
    a, n, d = (tuple(map(float, row)) for row in values)
    return JacobianFacts((side,), (side,), 1, side, side, (), a, n, d, (1e-3,) * (side * side))


def pair(verdict: str = "ok", text: str = "", **more: Any) -> PairFacts:
    code = None if verdict == "ok" else "jacobian_mismatch"
    return PairFacts(0, more.pop("name", "x"), verdict, code, text, text or None, 1e-6, 1e-5, 1e-3,
                     more.pop("found", worst(1e-9)), **more)  # fmt: skip


def report_of(pairs: Sequence[PairFacts], **more: Any) -> Report:
    verdict = "wrong" if any(p.verdict == "wrong" for p in pairs) else "ok"
    check = GradcheckFacts("m::f", "x (3,)", verdict, "", tuple(pairs), 0.1)
    return Report("In[1]", (), BUILD, gradcheck=(check,), **more)


def hostile() -> Report:
    operator = OperatorFacts(
        EVIL, f"{EVIL}(Tensor x)", EVIL, EVIL, EVIL, ((EVIL, EVIL),), EVIL, EVIL, EVIL,
        ((EVIL, EVIL),), helper=False,
    )  # fmt: skip
    diagnostic = DiagnosticFacts("warning", 3, 1, EVIL, "", EVIL)
    curve = StepCurve((1e-8, 1e-4), (NAN, INF), (INF, NAN), None, NAN)
    opcheck = OpcheckFacts(
        EVIL, EVIL, (EVIL,), (OpcheckFailureFacts(EVIL, EVIL, EVIL, EVIL),), (EVIL,), 0.0
    )
    found = replace(jacobian(2), difference=(NAN, INF, 0.0, 1.0), analytical=(NAN, -INF, 1j, -0.0))
    bad = pair("wrong", EVIL, name=EVIL, found=worst(NAN, INF), jacobian=found, curve=curve)
    return replace(
        report_of([bad]),
        cell=EVIL,
        build=replace(BUILD, diagnostics=(diagnostic,), log=EVIL, commands=((EVIL,),)),
        operators=(operator,),
        opcheck=(opcheck,),
        validation=(ValidationRow(EVIL, EVIL, EVIL, EVIL, EVIL, True, EVIL, declared=False),),
        findings=(Finding(EVIL, EVIL, "error", EVIL, EVIL, EVIL),),
        compiled=(CompileFacts(EVIL, EVIL, EVIL, EVIL, (), (), NAN, INF, 0.0, 0.0),),
        listing=ListingFacts(EVIL, (diagnostic,), (InstructionFacts(EVIL, "0", EVIL, 1),), (EVIL,)),
        notes=(EVIL,),
    )


def test_what_is_typed_stays_text_in_every_form() -> None:
    report = hostile()
    page = report.to_html()
    allowed = {
        *("div", "p", "strong", "details", "summary", "table", "caption", "thead", "tbody", "tr"),
        *("th", "td", "code", "pre", "span", "img"),
    }
    assert set(re.findall(r"<([a-zA-Z]+)", page)) <= allowed
    assert re.findall(r"<img(?! src=\"data:image/png;base64,)", page) == []
    assert "\n" not in page
    assert html.unescape(page).count("alert(1)") > 20  # all of it is there, as text
    for text in (report.to_text(), report.to_text(full=True)):
        assert EVIL in text
        assert "nan" in text
    plain = json.dumps(report.to_dict(), allow_nan=False)
    assert "\\ud83e\\uddea" in plain
    facts = ReportWidget(report).facts
    assert "<script" not in facts["operators"][0]["wrapper_html"]
    assert "difference nan" in report.to_text()
    assert "largest error nan" in report.to_text()


@pytest.fixture(scope="module")
def huge() -> Report:
    """Ten thousand pairs, three of them wrong; long texts; many large matrices."""
    matrices = [jacobian(256, seed) for seed in range(6)]
    long = "very long " * 2000
    pairs = [
        pair("wrong" if i in (17, 5000, 9999) else "ok", long, name=f"x{i}",
             jacobian=matrices[i % 6])
        for i in range(10_000)
    ]  # fmt: skip
    rows = tuple(
        ValidationRow("m::f", f"x{i}", "int64", "cpu", "contiguous", False, long, declared=False)
        for i in range(10_000)
    )
    findings = tuple(Finding("memory", "m::f", "note", long) for _ in range(10_000))
    findings += (Finding("worker", "m::f", "error", "crashed at the end", "SIGSEGV", "crash"),)
    operators = tuple(
        OperatorFacts(f"m::f{i}", long, "k", "o", long, (("x", long),), long, long, long, (),
                      helper=False)
        for i in range(200)
    )  # fmt: skip
    instructions = tuple(InstructionFacts(f"f{i}", "0", long, i) for i in range(10_000))
    listing = ListingFacts("objdump", (), instructions)
    return report_of(
        pairs, validation=rows, findings=findings, operators=operators, listing=listing,
        notes=(long,) * 100,
    )  # fmt: skip


def test_the_html_of_a_huge_report_is_bounded_and_says_what_is_missing(huge: Report) -> None:
    page = huge.to_html()
    assert len(page.encode()) < HTML_LIMIT
    for name in ("x17", "x5000", "x9999", "crashed at the end"):
        assert name in page
    assert "9,800 of 10,000 pairs of the gradcheck" in page
    assert "0 of 10000 combinations admitted" in page


def test_the_widgets_state_of_a_huge_report_is_bounded_and_opens_on_what_failed(
    huge: Report,
) -> None:
    facts = ReportWidget(huge).facts
    pairs = [p for check in facts["gradcheck"] for p in check["pairs"]]
    assert {"x17", "x5000", "x9999"} <= {p["input"] for p in pairs}
    packed = [p.pop("jacobian") for p in pairs]
    matrices = sum(len(v) for m in packed if m for v in m.values() if isinstance(v, bytes))
    assert matrices <= 4 * 256 * 256 * 8 * 4
    assert all(m for m, p in zip(packed, pairs, strict=True) if p["bad"])
    assert len(json.dumps(facts)) < HTML_LIMIT
    assert (facts["title"], facts["ok"]) == (huge.title, False)
    assert facts["opening"] == "Findings"


def test_even_signs_that_html_spells_with_six_letters_do_not_break_the_bound() -> None:
    findings = tuple(Finding("m", "f", "error", '"' * 4_000) for _ in range(60))
    checks = tuple(GradcheckFacts('"', "s", "error", '"' * 4_000, (), 0.0) for _ in range(200))
    report = Report("In[1]", (), BUILD, findings=findings, gradcheck=checks)
    page = report.to_html()
    assert len(page.encode()) < HTML_LIMIT
    assert "In[1]" in page


def test_the_short_text_of_a_huge_report_is_a_page(huge: Report) -> None:
    lines = huge.to_text().splitlines()
    short = [line for line in lines if not line.startswith("note:")]
    assert len(short) < 60
    assert "3 of 10,000 pairs" in "\n".join(lines)


def test_numbers_that_are_not_finite_are_said(huge: Report) -> None:
    report = report_of([pair("wrong", found=worst(difference)) for difference in (1.0, INF)])
    assert "largest error inf" in report.to_text()
    found = report.gradcheck[0].pairs[1].worst
    assert found is not None
    assert found.difference == INF
    plain = report.to_dict()["gradcheck"][0]["pairs"][1]["worst"]
    assert (plain["difference"], plain["numerical"], plain["input_index"]) == ("inf", "nan", [0])

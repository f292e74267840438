"""The report: plain data, text and HTML with the same facts; and what is typed is escaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import tpkernel
from tests.tpkernel.shell import SOFTPLUS
from tpkernel.report.report import (
    VERDICTS,
    BuildFacts,
    Finding,
    GradcheckFacts,
    PairFacts,
    Report,
)
from tpkernel.report.widget import ReportWidget


@pytest.fixture(scope="module")
def report():
    return tpkernel.build(SOFTPLUS)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "img":  # has no end
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_plain_data_survives_json(report):
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["operators"][0]["schema"].startswith("mylib::softplus")
    assert plain["gradcheck"][0]["pairs"][0]["worst"]["tolerance"] > 0
    assert {"key", "commands", "cached", "seconds"} <= set(plain["build"])
    assert "module" not in plain


def test_html_is_one_well_formed_line_that_a_sanitizer_keeps(report):  # B017
    html = report.to_html()
    assert "\n" not in html
    parser = Tags()
    parser.feed(html)
    assert parser.open == []
    assert parser.tags <= {
        "div", "p", "strong", "details", "summary", "table", "caption", "thead", "tbody", "tr",
        "th", "td", "code", "pre", "span", "img",
    }  # fmt: skip
    assert parser.attributes <= {"style", "scope", "open", "src", "alt"}
    assert html.count("<img") == html.count('<img src="data:image/png;base64,')
    assert "var(" not in html


def test_text_and_html_have_the_same_facts(report):
    text = report.to_text(full=True)
    html = re.sub(r"<[^>]+>", "", report.to_html())
    import html as entities

    html = entities.unescape(html)
    for fact in (
        report.operators[0].schema,
        report.gradcheck[0].sample,
        "✔ pass",
        "register_fake",
        "got int64 on cpu",
        report.build.key,
    ):
        assert fact in text, fact
        assert fact in html, fact


def test_everything_typed_by_a_person_is_escaped():
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    text = SOFTPLUS.replace("derivatives:", f"doc: '{evil}'\nderivatives:")
    report = tpkernel.build(text, checks=False)
    assert evil in report.to_text()
    assert "<script" not in report.to_html()
    assert "<img" not in report.to_html()
    facts = ReportWidget(report).facts
    assert "<script" not in facts["operators"][0]["wrapper_html"]


def test_the_reports_title_is_one_line(report):
    assert report.title.startswith("mylib::softplus · ")
    assert report.title.endswith("gradcheck ok")


def test_the_public_names_are_few():
    assert set(tpkernel.__all__) == {
        "CellError", "KernelCrash", "Report", "StaleKernelError", "build", "last_report",
        "load_ipython_extension", "sweep", "unload_ipython_extension",
    }  # fmt: skip
    for name in tpkernel.__all__:
        assert getattr(tpkernel, name).__doc__


def facts_of(*verdicts: str) -> Report:
    build = BuildFacts("k", "f", "l", True, 0.0, 0.0, "light", (), (), "")
    checks = tuple(
        GradcheckFacts(
            "m::f", "s", v, "why", (PairFacts(0, "x", v, None, "", None, 1, 1, 1, None),), 0.0
        )
        for v in verdicts
    )
    findings = (Finding("worker", "m::f", "error", "crashed", "SIGSEGV"),)
    return Report("c", (), build, gradcheck=checks, findings=findings)


@pytest.mark.parametrize("first", VERDICTS)
@pytest.mark.parametrize("second", VERDICTS)
def test_every_form_names_the_most_serious_verdict(first, second):
    worst = max(first, second, key=list(VERDICTS).index)
    shown = facts_of(first, second)
    words = {
        "wrong": "gradient wrong",
        "missing": "gradient missing",
        "non_deterministic": "not deterministic",
    }
    assert words.get(worst, f"gradcheck {worst.replace('_', ' ')}") in shown.title
    assert f"<summary>Gradcheck: {VERDICTS[worst]}</summary>" in shown.to_html()
    assert f"gradcheck: {VERDICTS[worst]}\n" in shown.to_text(full=True)
    plain = shown.to_dict()
    assert plain["gradcheck_words"] == VERDICTS[worst]
    assert [g["words"] for g in plain["gradcheck"]] == [VERDICTS[first], VERDICTS[second]]
    assert plain["gradcheck"][0]["pairs"][0]["words"] == VERDICTS[first]


def test_a_verdict_that_is_not_known_counts_as_the_most_serious():
    shown = facts_of("error", "exploded")
    assert shown.gradcheck_verdict == "exploded"
    assert not shown.ok
    assert "✘ exploded" in shown.to_html()

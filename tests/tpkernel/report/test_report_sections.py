"""What a report can be asked for, in each of its forms: pictures, curves, times, listings."""

from __future__ import annotations

import base64
import dataclasses
import html as entities
import math
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest

import tpkernel
from tests.tpkernel.shell import ADD1, MATMUL, SOFTPLUS
from tpkernel.checks.chosen_samples import chosen_sample, scaled_shapes
from tpkernel.checks.jacobians import with_jacobians
from tpkernel.checks.samples import make_samples
from tpkernel.checks.timing import reference_text
from tpkernel.report.facts import BuildFacts, GradcheckSettings
from tpkernel.report.summary import curve_text, jacobian_text, opcheck_text, timing_words

WRONG = MATMUL.replace("x: grad @ w.T", "x: 2 * grad @ w.T")
LINEAR = "log1p(exp(beta * x)) / beta"


@pytest.fixture(scope="module")
def whole() -> tpkernel.Report:
    """Return a report with every section there is."""
    report = tpkernel.build(SOFTPLUS)
    report = report.with_gradcheck(shapes={"x": (3, 2)}, seed=4, curve=True)
    report = report.with_gradcheck(order=2)
    report = report.with_timing(sizes=[100, {"x": (5, 5)}], reference=LINEAR)
    return report.with_opcheck().with_compile().with_listing()


def strings(value: Any) -> list[str]:
    """Return every text in plain data."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for item in value.values() for s in strings(item)]
    if isinstance(value, list):
        return [s for item in value for s in strings(item)]
    return []


def visible(html: str) -> str:
    """Return what a reader sees of HTML, alternative texts included."""
    html = re.sub(r"</?span[^>]*>", "", html)
    html = re.sub(r'<img [^>]*alt="([^"]*)"[^>]*>', r" \1 ", html)
    return entities.unescape(re.sub(r"<[^>]+>", " ", html))


def test_every_form_has_every_fact(whole: tpkernel.Report) -> None:
    text, html, plain = whole.to_text(full=True), visible(whole.to_html()), whole.to_dict()
    squeezed = [re.sub(r"\s+", " ", form) for form in (text, html)]
    facts = [
        *(jacobian_text(p) for g in whole.gradcheck for p in g.pairs if p.jacobian),
        *(curve_text(p.curve) for g in whole.gradcheck for p in g.pairs if p.curve),
        *(opcheck_text(o) for o in whole.opcheck),
        *(word for t in whole.timing for r in t.rows for word in timing_words(r) if word),
        *(t.reference for t in whole.timing),
        *(line.strip() for c in whole.compiled for line in c.graph.splitlines()),
        *(r.nodes for c in whole.compiled for r in c.regions),
        *(i.text for i in whole.listing.instructions),
        *(d.message for d in whole.listing.remarks),
        *(value for _, value in whole.build.inputs),
        *(name for name, _ in whole.build.inputs),
    ]
    assert len(facts) > 60
    told = " ".join(strings(plain))
    for fact in facts:
        flat = re.sub(r"\s+", " ", fact)
        for form in squeezed:
            assert flat in form, fact
        assert flat in re.sub(r"\s+", " ", told), fact


def test_the_jacobian_holds_the_matrices_of_the_check() -> None:
    report = tpkernel.build(WRONG, checks=False)
    report = report.with_gradcheck(shapes={"x": (2, 3), "w": (3, 2)}, dtype="float64")
    pair = next(p for p in report.gradcheck[0].pairs if p.input == "x")
    facts = pair.jacobian
    assert (facts.rows, facts.columns, facts.places) == (6, 4, ())
    analytical = np.reshape(facts.analytical, (6, 4))
    numerical = np.reshape(facts.numerical, (6, 4))
    np.testing.assert_allclose(analytical, 2 * numerical, atol=1e-8)
    assert facts.difference == tuple(np.abs(analytical - numerical).ravel())
    worst = max(range(24), key=lambda i: facts.difference[i] / facts.allowed[i])
    place = (*np.unravel_index(worst // 4, (2, 3)), *np.unravel_index(worst % 4, (2, 2)))
    assert place == (*pair.worst.input_index, *pair.worst.output_index)
    assert "12 of 24 elements above what is allowed" in jacobian_text(pair)


def test_a_large_jacobian_is_shown_by_the_worst_of_each_block() -> None:
    text = SOFTPLUS.replace("grad * sig", "grad * (1 + 0.5 * (x > 1.69)) * sig")
    report = tpkernel.build(text, checks=False).with_gradcheck(shapes={"x": (300,)})
    (pair,) = report.gradcheck[0].pairs
    facts = pair.jacobian
    assert max(facts.rows, facts.columns) <= 256
    assert len(facts.places) == facts.rows * facts.columns == len(facts.difference)
    worst = max(range(len(facts.difference)), key=lambda i: facts.difference[i] / facts.allowed[i])
    assert facts.places[worst] == (pair.worst.input_index[0], pair.worst.output_index[0])
    assert "blocks" in jacobian_text(pair)


def test_a_complex_output_has_two_parts_and_a_sample_of_rows_no_picture() -> None:
    @dataclasses.dataclass
    class Found:
        analytical: Any
        numerical: Any
        atol: float = 1e-5
        rtol: float = 1e-3
        noise: float = 0.0

    (pair,) = tpkernel.build(SOFTPLUS).gradcheck[0].pairs
    matrix = np.ones((4, 8))
    (made,) = with_jacobians([pair], [Found(matrix, matrix)], {"x": (4,)}, [(4,)])
    assert made.jacobian.parts == 2
    (made,) = with_jacobians([pair], [Found(matrix[:2], matrix[:2])], {"x": (4,)}, [(8,)])
    assert made.jacobian is None
    (made,) = with_jacobians([pair], [Found(None, None)], {"x": (4,)}, [(8,)])
    assert made.jacobian is None


def test_the_picture_is_a_png_whose_colours_say_what_is_wrong() -> None:
    report = tpkernel.build(WRONG)
    (found, *_) = re.findall(r"data:image/png;base64,([^\"]+)", report.to_html())
    data = base64.b64decode(found)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    raw = zlib.decompress(data[start:])
    pixels = np.frombuffer(raw, np.uint8).reshape(height, 1 + 3 * width)[:, 1:]
    colours = {tuple(p) for p in pixels.reshape(-1, 3).tolist()}
    assert any(red > 140 and blue < 60 for red, _, blue in colours)
    assert any(min(colour) > 200 for colour in colours)
    # Where the white of a picture ends is seen on a white page.
    edge = pixels.reshape(height, width, 3)
    frame = [edge[0], edge[-1], edge[:, 0], edge[:, -1]]
    assert {tuple(p) for line in frame for p in line.tolist()} == {(140, 140, 140)}
    assert 'alt="Jacobian 30 × 20' in report.to_html()


def test_the_curve_shows_where_rounding_and_truncation_meet(whole: tpkernel.Report) -> None:
    (pair,) = whole.gradcheck[0].pairs
    curve = pair.curve
    assert len(curve.steps) == len(curve.formula_gap) == len(curve.reference_gap)
    best = curve.steps[curve.reference_gap.index(min(curve.reference_gap))]
    # For central differences in float64 that is near the cube root of 2e-16.
    assert best / 10 < curve.meeting < best * 10
    assert 1e-6 < curve.meeting < 1e-3
    assert curve.reference_gap[0] > 100 * min(curve.reference_gap)
    assert curve.reference_gap[-1] > 100 * min(curve.reference_gap)
    assert curve.used == pair.step


def test_settings_reach_the_check() -> None:
    report = tpkernel.build(MATMUL, checks=False)
    chosen = report.with_gradcheck(
        "mm", shapes={"x": (2, 3)}, dtype="float32", step=1e-2, atol=1e-2, rtol=1e-2, inputs=["w"]
    )
    (check,) = chosen.gradcheck
    assert check.sample.startswith("x (2, 3), w (3, ")
    assert check.sample.endswith("float32")
    (pair,) = check.pairs
    assert (pair.input, pair.step, pair.atol, pair.rtol) == ("w", 1e-2, 1e-2, 1e-2)
    assert report.gradcheck == ()  # a report does not change
    forward = report.with_gradcheck(mode="both", fast=True)
    assert all(g.settings == "seed 0, both modes, fast" for g in forward.gradcheck)


def test_a_wrong_second_derivative_is_found() -> None:
    text = SOFTPLUS.replace("grad * sigmoid(beta * x)", "grad * sigmoid((beta * x).detach())")
    report = tpkernel.build(text)
    assert report.gradcheck_verdict == "ok"
    second = report.with_gradcheck(order=2)
    assert second.gradcheck_verdict not in ("", "ok")
    assert "second order of mylib::softplus" in second.to_text()
    assert not second.ok


def test_times_say_when_the_reference_gives_other_results() -> None:
    report = tpkernel.build(SOFTPLUS, checks=False)
    (same,) = report.with_timing(sizes=[64], reference=LINEAR).timing
    assert same.notes == ()
    assert same.rows[0].gap < 1e-12
    (other,) = report.with_timing(sizes=[64], reference="x").timing
    assert "other results" in other.notes[0]
    (numpy,) = report.with_timing(sizes=[64], reference="numpy:tanh").timing
    assert numpy.rows[0].reference > 0
    assert report.with_timing(sizes=[64], reference=np.tanh).timing[0].reference


def test_bytes_and_bandwidth_are_those_of_the_tensors() -> None:
    (times,) = tpkernel.build(MATMUL, checks=False).with_timing(
        sizes=[{"x": (8, 4), "w": (4, 2)}], dtype="float32"
    ).timing  # fmt: skip
    (row,) = times.rows
    assert row.bytes == 4 * (8 * 4 + 4 * 2 + 8 * 2)
    assert row.bandwidth == row.bytes / row.seconds
    assert row.limit > 0
    assert row.median >= row.seconds


def test_the_front_matter_can_name_the_reference() -> None:
    text = SOFTPLUS.replace("derivatives:", "reference: numpy:logaddexp\nderivatives:")
    (times,) = tpkernel.build(text, checks=False).with_timing(sizes=[10]).timing
    assert times.reference == "numpy:logaddexp"
    text = SOFTPLUS.replace("derivatives:", "reference: log1q(x)\nderivatives:")
    with pytest.raises(tpkernel.CellError, match="log1q") as caught:
        tpkernel.build(text)
    assert caught.value.line == 3


def test_a_reference_that_cannot_be_is_said_so() -> None:
    report = tpkernel.build(SOFTPLUS, checks=False)
    with pytest.raises(ValueError, match="write it as a text"):
        report.with_timing(reference=lambda x, beta: x)
    (finding,) = report.with_timing(sizes=[10], reference="numpy:nothing").findings
    assert (finding.check, finding.level) == ("timing", "error")
    assert "nothing" in finding.message
    assert reference_text(np.tanh).endswith("tanh")


def test_a_report_of_another_session_cannot_run_anything() -> None:
    build = BuildFacts("k", "f", "l", True, 0.0, 0.0, "light", (), (), "")
    report = tpkernel.Report("c", (), build)
    for ask in (report.with_gradcheck, report.with_timing, report.with_listing):
        with pytest.raises(RuntimeError, match="run the cell again"):
            ask()
    with pytest.raises(ValueError, match="no operator to check"):
        tpkernel.build(ADD1).with_gradcheck()


def test_the_listing_stands_at_lines_of_the_cell() -> None:
    report = tpkernel.build(ADD1, checks=False).with_listing()
    assert {i.line for i in report.listing.instructions} <= {1, 2, 3, 4, 5}
    assert any("addss" in i.text or "addps" in i.text for i in report.listing.instructions)
    assert all(d.source_line for d in report.listing.remarks)


def test_opcheck_runs_with_the_cell_and_its_failures_are_told() -> None:
    report = tpkernel.build(SOFTPLUS)
    assert report.opcheck_verdict == "ok"
    facts = report.opcheck[0]
    failed = dataclasses.replace(
        report, opcheck=(dataclasses.replace(facts, failures=(_failure(),)),)
    )
    assert not failed.ok
    assert "opcheck failed" in failed.title
    assert "test_schema [undeclared_write] on the strided call: writes x" in failed.to_text()
    assert "undeclared_write" in failed.to_html()
    assert failed.to_dict()["problems"][0]["section"] == "Operator"


def _failure() -> Any:
    from tpkernel.report.facts import OpcheckFailureFacts

    return OpcheckFailureFacts("test_schema", "undeclared_write", "strided", "writes x")


def test_a_compiled_call_that_differs_is_told(whole: tpkernel.Report) -> None:
    (facts,) = whole.compiled
    assert facts.verdict == "ok"
    assert "mylib_softplus" in facts.graph
    assert facts.backward_graph
    other = dataclasses.replace(facts, difference=1.0)
    report = dataclasses.replace(whole, compiled=(other,))
    assert not report.ok
    assert "compiled call differs" in report.title
    broken = dataclasses.replace(facts, breaks=("a branch on a value",), graph="")
    assert broken.verdict == "wrong"


@pytest.mark.parametrize("elements", [1, 50, 10_000])
def test_sizes_grow_with_the_declared_relations(elements: int) -> None:
    origin = tpkernel.build(MATMUL, checks=False).origin
    (spec,) = [o for o in origin.spec.operators if not o.helper]
    base = make_samples(spec)[0]
    shapes = scaled_shapes(spec, base, elements)
    assert shapes["x"][1] == shapes["w"][0]
    sample = chosen_sample(spec, base, shapes, seed=1)
    assert np.shape(sample.values["x"]) == shapes["x"]
    largest = max(math.prod(shape) for shape in shapes.values())
    assert elements / 3 <= largest <= 3 * elements + 3


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"x": (2, 3), "w": (4, 5)}, "with k = 3, got"),
        ({"x": (2,)}, "expected 2 dimensions"),
        ({"beta": (2,)}, "no tensor argument 'beta'; it has x, w"),
    ],
)
def test_shapes_that_contradict_the_declaration_are_refused(
    shapes: dict[str, tuple[int, ...]], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        tpkernel.build(MATMUL, checks=False).with_gradcheck(shapes=shapes)


def test_chosen_values_stay_in_the_domain_of_the_declared_samples() -> None:
    declared = "samples:\n  - {x: 'rand(4) + 2'}\nderivatives:"
    origin = tpkernel.build(SOFTPLUS.replace("derivatives:", declared), checks=False).origin
    (spec,) = [o for o in origin.spec.operators if not o.helper]
    values = chosen_sample(spec, make_samples(spec)[0], {"x": (100,)}).values["x"]
    assert values.min() >= 2
    assert values.max() <= 3
    assert GradcheckSettings(seed=2).text() == "seed 2"


@pytest.mark.parametrize(("name", "value"), [("mode", "backward"), ("order", 3)])
def test_a_gradcheck_that_there_is_not_is_refused(name: str, value: object) -> None:
    report = tpkernel.build(SOFTPLUS, checks=False)
    with pytest.raises(ValueError, match=f"argument '{name}': expected one of .*, got {value!r}"):
        report.with_gradcheck(**{name: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 0.0},
        {"step": float("nan")},
        {"atol": -1e-3},
        {"rtol": float("inf")},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"seed": None},
        {"atol": 10**400},
        {"step": True},
        {"rtol": "much"},
        {"shapes": {"x": (2, -1)}},
        {"shapes": {"x": 3}},
        {"shapes": {"x": None}},
        {"shapes": {"x": "34"}},
        {"shapes": {"x": (2.5,)}},
        {"shapes": {"x": (True,)}},
        {"shapes": [2, 3]},
        {"dtype": 32},
        {"operator": None},
        {"inputs": "x"},
        {"inputs": [0]},
        {"inputs": None},
        {"fast": "no"},
        {"curve": 1},
        {"budget": 0.0},
    ],
    ids=str,
)
def test_settings_that_no_gradcheck_has_are_refused(wrong: dict[str, object]) -> None:
    report = tpkernel.build(SOFTPLUS, checks=False)
    with pytest.raises(ValueError, match=rf"argument '{next(iter(wrong))}': expected .*, got "):
        report.with_gradcheck(**wrong)


def test_settings_take_lists_and_the_numbers_of_numpy() -> None:
    settings = GradcheckSettings(shapes={"x": [np.int64(2), 3]}, inputs=["x"], seed=np.int64(4))
    assert settings.shapes == {"x": (2, 3)}
    assert settings.inputs == ("x",)
    report = tpkernel.build(SOFTPLUS, checks=False)
    assert report.with_gradcheck(shapes={"x": [2, 3]}, inputs=["x"], atol=np.float64(1)).gradcheck


def test_what_two_inputs_of_one_type_refuse_is_said_once() -> None:
    text = """\
/*---
op: s::product(Tensor x, Tensor w) -> Tensor
shape: x
---*/
template <class T> void product(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * w[i];
}
"""
    shown = tpkernel.build(text).to_text()
    assert "x, w: float32, float64 on cpu, meta" in shown
    assert "x, w: strided is refused" in shown

"""The live report: its state, its messages, work in a thread that can be cancelled."""

from __future__ import annotations

import gc
import json
import re
import struct
import threading
from pathlib import Path

import pytest

import tensorplay as tp
import tpkernel
from tests.tpkernel.shell import ADD1, MATMUL, SLOW, SOFTPLUS
from tpkernel.report.report import VERDICTS
from tpkernel.report.widget import REPORT_MIME, ReportWidget


@pytest.fixture(scope="module")
def report():
    return tpkernel.build(SOFTPLUS)


@pytest.fixture
def widget(report):
    made = ReportWidget(report)
    yield made
    made.close()


def send(widget: ReportWidget, **content: object) -> None:
    """Send a message as the view does, and wait for what it began."""
    widget._handle_custom_msg(content, [])
    assert widget.wait(60)


def settings(**chosen: object) -> dict[str, object]:
    """Return what the view sends when nothing but these was chosen."""
    empty = {"operator": "", "shapes": {}, "dtype": "", "seed": "0", "step": "", "atol": "",
             "rtol": "", "mode": "reverse", "fast": False, "inputs": [], "order": 1,
             "curve": False}  # fmt: skip
    return {**empty, **chosen}


def test_the_bundle_carries_view_html_and_text(widget):
    data, _ = widget._repr_mimebundle_()
    view = "application/vnd.jupyter.widget-view+json"
    assert {view, "text/html", "text/plain", REPORT_MIME} <= set(data)
    assert data["text/plain"] == widget.report.to_text()
    assert "<script" not in data["text/html"]


def test_the_view_loads_nothing_from_the_network():
    source = str(ReportWidget._esm) + str(ReportWidget._css)
    source = source.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?://|\bimport\b|\bfetch\(|XMLHttpRequest|url\(", source)
    assert source.count("innerHTML") == 2  # one use and the comment on it


def test_the_view_has_no_words_of_its_own():
    source = str(ReportWidget._esm)
    for words in VERDICTS.values():
        assert words not in source


def test_matrices_travel_as_bytes_and_the_rest_as_json(report, widget):
    pair = widget.facts["gradcheck"][1]["pairs"][0]
    jacobian = pair.pop("jacobian")
    json.dumps(pair)
    facts = report.gradcheck[1].pairs[0].jacobian
    count = facts.rows * facts.columns
    assert struct.unpack(f"<{count}d", jacobian["numerical"]) == facts.numerical
    assert struct.unpack(f"<{count}d", jacobian["difference"]) == facts.difference


def test_controls_offer_what_the_operator_has(widget):
    assert widget.choices == {
        "mylib::softplus": {
            "shapes": {"x": "2, 3"},
            "inputs": ["x"],
            "dtypes": ["float32", "float64"],
            "reference": "",
        }
    }
    assert widget.can_run
    plain = ReportWidget(tpkernel.build(ADD1))
    assert plain.choices == {}


def test_a_button_runs_the_gradcheck_with_the_chosen_settings(widget):
    gc.collect()
    chosen = settings(shapes={"x": "(7, 3)"}, seed="5", dtype="float64", step="1e-5", curve=True)
    send(widget, action="gradcheck", settings=chosen)
    assert widget.last_error is None
    (check,) = widget.report.gradcheck
    assert check.sample == "x (7, 3), beta=1.0, float64"
    assert check.settings == "seed 5, step 1e-05"
    assert check.pairs[0].step == 1e-5
    assert check.pairs[0].curve is not None
    assert widget.facts["gradcheck"][0]["settings"] == check.settings
    assert widget.busy == ""


def test_second_order_stands_beside_first_order(widget):
    send(widget, action="gradcheck", settings=settings(order=2))
    assert {g.order for g in widget.report.gradcheck} == {1, 2}
    send(widget, action="gradcheck", settings=settings(seed="4"))
    assert {g.order for g in widget.report.gradcheck} == {1, 2}


def test_times_opcheck_and_listing_have_buttons(widget):
    send(widget, action="opcheck")
    assert widget.last_error is None
    assert widget.report.opcheck[0].verdict == "ok"
    send(widget, action="listing")
    assert widget.last_error is None
    assert {i.line for i in widget.report.listing.instructions} >= {8, 9}
    assert widget.facts["listing"]["command"]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"seed": "x"}, "whole number"),
        ({"seed": "1.5"}, "whole number"),
        ({"seed": ""}, "whole number"),
        ({"seed": "-1"}, "negative"),
        ({"seed": None}, "whole number"),
        ({"step": "nan"}, "step must be a number"),
        ({"step": "-1"}, "argument 'step': expected a number above 0, got -1.0"),
        ({"step": "0"}, "argument 'step': expected a number above 0, got 0.0"),
        ({"atol": "much"}, "atol must be a number"),
        ({"rtol": "-0.1"}, "argument 'rtol': expected a finite number, 0 or above, got -0.1"),
        ({"shapes": {"x": "two"}}, "shape of x"),
        ({"shapes": {"y": "2"}}, "no tensor argument 'y'; it has x"),
        ({"dtype": "int64"}, "expected float32 or float64, got int64"),
        ({"operator": "mylib::softmin"}, "no operator 'mylib::softmin'"),
        ({"inputs": ["beta"]}, "no tensor input 'beta'"),
        ({"mode": "sideways"}, "argument 'mode': expected one of"),
    ],
)
def test_settings_that_cannot_be_are_shown_in_the_strip(widget, chosen, said):
    before = widget.report
    send(widget, action="gradcheck", settings=settings(**chosen))
    assert isinstance(widget.last_error, ValueError)
    assert said in widget.error["text"]
    assert "<string>" not in widget.error["frames"]
    assert widget.report is before
    assert widget.busy == ""
    send(widget, action="gradcheck", settings=settings(seed=" 3 "))
    assert widget.last_error is None
    assert widget.error == {}


def test_a_message_that_nobody_knows_is_an_error(widget):
    send(widget, action="explode")
    assert "explode" in widget.error["text"]


def test_the_strip_shows_each_frame_of_a_person(widget):
    scope = {}
    text = "def run(report, on_wait):\n  raise LookupError('mine')"
    exec(compile(text, f"{Path(tp.__file__).parent}_demo/train.py", "exec"), scope)
    widget.start(scope["run"])
    assert widget.wait(10)
    assert re.fullmatch(r".*_demo/train\.py:2 in run", widget.error["frames"])


def test_an_error_in_a_callback_is_shown_and_kept(widget):  # B041
    def fail(report, on_wait):
        raise ZeroDivisionError("division by zero")

    widget.start(fail)
    assert widget.wait(10)
    assert isinstance(widget.last_error, ZeroDivisionError)
    assert widget.error["type"] == "ZeroDivisionError"
    assert "test_widget.py" in widget.error["frames"]
    widget.start(lambda report, on_wait: report)
    assert widget.wait(10)
    assert widget.last_error is None
    assert widget.error == {}


def test_work_is_shown_while_it_runs_and_can_be_cancelled():
    widget = ReportWidget(tpkernel.build(SLOW))
    assert widget.report.ok
    shown = []
    widget.observe(lambda change: shown.append(change["new"]), "busy")
    before = widget.report
    chosen = settings(shapes={"x": "77"})
    widget._handle_custom_msg({"action": "gradcheck", "settings": chosen}, [])
    assert not widget.wait(1.0)
    assert widget.can_cancel
    widget._handle_custom_msg({"action": "opcheck"}, [])
    assert "cancel it first" in widget.error["text"]
    widget._handle_custom_msg({"action": "cancel"}, [])
    assert widget.wait(10)
    assert any("mylib::slow on x (77,)" in text for text in shown)
    assert widget.error["type"] == "Cancelled"
    assert widget.last_error is None
    assert widget.report is before
    assert not widget.can_cancel
    send(widget, action="gradcheck", settings=settings())  # by a fresh worker
    assert widget.report.ok
    widget.close()


def test_a_kernel_that_crashes_behind_a_button_is_a_finding():
    crash = SLOW.replace("std::this_thread::sleep_for(std::chrono::seconds(30))", "std::abort()")
    widget = ReportWidget(tpkernel.build(crash))
    send(widget, action="gradcheck", settings=settings(shapes={"x": "77"}))
    assert widget.last_error is None
    assert any(f.signal == "SIGABRT" for f in widget.report.findings)
    assert "crashed" in widget.report.title
    send(widget, action="gradcheck", settings=settings())
    assert widget.report.ok
    widget.close()


def test_closing_the_widget_ends_its_work():
    widget = ReportWidget(tpkernel.build(MATMUL, checks=False))
    started = threading.Event()

    def forever(report, on_wait):
        started.set()
        while True:
            on_wait("nothing")
            threading.Event().wait(0.01)

    widget.start(forever)
    assert started.wait(10)
    widget.close()
    assert widget.wait(10)


def test_a_button_waits_until_the_cell_has_shown_its_report(report):
    entered, go, order = threading.Event(), threading.Event(), []
    widget = ReportWidget(report)

    def slow(shown):
        entered.set()
        assert go.wait(10)
        order.append("cell")
        return shown

    cell = threading.Thread(target=widget.update, args=(slow,))
    cell.start()
    assert entered.wait(10)
    widget.start(lambda shown, on_wait: order.append("button") or shown)
    go.set()
    cell.join()
    assert widget.wait(10)
    assert order == ["cell", "button"]
    widget.close()

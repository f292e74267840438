"""Records of checks that are kept beside their library, for the next session."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

import tpkernel
from tensorplay.library.modules.codec import decode, encode
from tests.tpkernel.shell import SOFTPLUS, Shell
from tpkernel.building.pipeline import build_cell
from tpkernel.building.request import Request
from tpkernel.checks import kept
from tpkernel.checks.kept import kept_for, records_key
from tpkernel.report.facts import JacobianFacts
from tpkernel.report.report import Report
from tpkernel.worker.process import shared_worker

RIGHT = SOFTPLUS + "// kept\n"
WRONG = RIGHT.replace("grad * sigmoid", "2 * grad * sigmoid")


def file_of(report: Report) -> Path:
    (found,) = Path(report.build.folder).glob("checks-*.json")
    return found


def from_cache(report: Report) -> bool:
    return any(note.startswith("From the cache: checked on 20") for note in report.notes)


@pytest.mark.parametrize("text", [RIGHT, WRONG], ids=["right", "wrong"])
def test_the_same_records_come_again_without_a_worker(text: str) -> None:
    first = tpkernel.build(text, recheck=True)
    assert not from_cache(first)
    shared_worker().close()
    again = tpkernel.build(text)
    assert shared_worker().pid is None
    assert from_cache(again)
    assert again.ok == first.ok == (text is RIGHT)
    for part in ("gradcheck", "validation", "opcheck", "findings"):
        assert getattr(again, part) == getattr(first, part)
    assert {n for n in again.notes if n not in first.notes} == {again.notes[-1]}


def test_a_damaged_file_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    report = tpkernel.build(RIGHT)
    file = file_of(report)
    whole = file.read_text("utf-8")
    body = json.loads(whole)["body"]
    records = json.loads(body)
    records["records"][0][1]["seconds"] = "long"
    unfit = json.dumps(records)
    for text in (
        whole[: len(whole) // 2],
        "",
        "[]",
        whole.replace("ok", "ko", 1),
        json.dumps({"sha256": kept.hashlib.sha256(unfit.encode()).hexdigest(), "body": unfit}),
    ):
        file.write_text(text, "utf-8")
        again = tpkernel.build(RIGHT)
        assert not from_cache(again)
        assert again.ok
        assert from_cache(tpkernel.build(RIGHT))


def test_what_records_depend_on_is_in_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_cell(Request(RIGHT)).spec
    key = records_key(spec, ("memory",), 0, ())
    assert key == records_key(dataclasses.replace(spec, cell="In[9]"), ("memory",), 0, ())
    (operator,) = spec.operators
    other = dataclasses.replace(spec, operators=(dataclasses.replace(operator, doc="x"),))
    others = [
        records_key(other, ("memory",), 0, ()),
        records_key(spec, ("gradcheck",), 0, ()),
        records_key(spec, ("memory",), 1, ()),
        records_key(spec, ("memory",), 0, ("address",)),
    ]
    monkeypatch.setattr(kept, "programs_version", lambda: "another text of the checks")
    others.append(records_key(spec, ("memory",), 0, ()))
    monkeypatch.setattr(kept.toolchain, "processor", lambda: "another processor")
    others.append(records_key(spec, ("memory",), 0, ()))
    assert len({key, *others}) == 7
    assert kept_for(str(Path(__file__)), key) is None


def test_the_magic_checks_again_when_asked(shell: Shell) -> None:
    shell.kernel(RIGHT)
    assert "From the cache" not in shell.kernel(RIGHT, "--recheck").text
    assert from_cache(shell.kernel(RIGHT).error or tpkernel.last_report())


def test_matrices_survive_with_every_number() -> None:
    facts = JacobianFacts(
        (2,), (2,), 1, 2, 2, ((0, 0), (1, 1)), (1.5, math.inf), (1 + 2j, complex(0, -math.inf)),
        (0.0, math.inf), (1e-300, 5e-324),
    )  # fmt: skip
    assert decode(JacobianFacts, json.loads(json.dumps(encode(facts), allow_nan=False))) == facts
    for wrong in ({"$complex": [1]}, {"$complex": ["1", 2]}, {"$number": "1"}, "1", [1]):
        data = {**encode(facts), "numerical": [wrong]}
        with pytest.raises(ValueError, match=r"description\.numerical\[0\]"):
            decode(JacobianFacts, data)

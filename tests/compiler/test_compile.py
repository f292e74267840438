"""The entry `compile`: forms, settings, limits, backends, reports, errors."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import compiler
from tensorplay.compiler import function as function_module
from tensorplay.compiler.capture import capture
from tensorplay.compiler.cpp import backend as cpp
from tensorplay.compiler.keys import key_of, leaves_of
from tensorplay.graph import GraphCaptureError, GraphModule


@pytest.fixture
def recording():
    """Register a backend that counts its calls and runs the graph."""
    calls = []

    def backend(gm, example_inputs, **kwargs):
        calls.append((gm, example_inputs, kwargs))
        return gm.forward

    compiler.register_backend(backend, name="recording")
    yield calls
    compiler.unregister_backend("recording")


def test_the_forms_of_the_decorator(backend) -> None:
    @tp.compile
    def plain(x):
        return x * 2

    @tp.compile(backend=backend, fullgraph=True)
    def with_settings(x):
        """Double x."""
        return x * 2

    call = tp.compile(lambda x: x * 2, backend=backend)
    for f in (plain, with_settings, call):
        assert f(tp.ones(2)).tolist() == [2, 2]
        assert f.report().programs == 1
    assert with_settings.__name__ == "with_settings"
    assert with_settings.__doc__ == "Double x."
    assert with_settings.__wrapped__(tp.ones(1)).item() == 2
    assert tp.compile(plain).__wrapped__ is plain.__wrapped__

    def untouched(x):
        return x

    assert tp.compile(untouched, disable=True) is untouched


def test_methods_are_bound(backend) -> None:
    class Scale:
        by = 2.0

        @tp.compile(backend=backend)
        def run(self, x):
            return x * self.by

    one, two = Scale(), Scale()
    two.by = 3.0
    assert one.run(tp.ones(1)).item() == 2
    assert two.run(tp.ones(1)).item() == 3
    one.by = 5.0
    assert one.run(tp.ones(1)).item() == 5


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"backend": "nothing"}, ValueError, "cpp, eager, interpreter"),
        ({"backend": 3}, TypeError, "name of a backend or a function"),
        ({"mode": "default", "options": {}}, RuntimeError, "Either mode or options"),
        ({"options": [1]}, TypeError, "expected a dictionary, got list"),
        ({"mode": "fastest"}, RuntimeError, "unknown mode 'fastest'"),
        ({"options": {"speed": 1}}, RuntimeError, "unknown option 'speed'"),
        ({"dynamic": True, "dynamic_shapes": {}}, RuntimeError, "dynamic or dynamic_shapes"),
        ({"recompile_limit": 0}, ValueError, "at least 1, got 0"),
        ({"recompile_limit": 1.5}, TypeError, "expected int, got float"),
        ({"recompile_limit": True}, TypeError, "expected int, got bool"),
    ],
)
def test_wrong_settings_are_refused(kwargs, error, words: str) -> None:
    with pytest.raises(error, match=words):
        tp.compile(lambda x: x, **kwargs)


def test_what_cannot_be_called_is_refused() -> None:
    for wrong in (3, "f", [len]):
        with pytest.raises(TypeError, match="expected a function or a module"):
            tp.compile(wrong)
    with pytest.raises(TypeError, match="expected a function"):
        compiler.disable(3)
    with pytest.raises(TypeError, match="expected a function"):
        compiler.register_backend(3, name="three")


def test_backends_by_name(recording) -> None:
    assert compiler.list_backends() == ["cpp", "interpreter", "recording"]
    assert "eager" in compiler.list_backends(exclude_tags=None)
    assert callable(compiler.lookup_backend("cpp"))
    with pytest.raises(ValueError, match="there is a backend 'recording' already"):
        compiler.register_backend(lambda gm, e: gm, name="recording")
    with pytest.raises(ValueError, match="'cpp' is built in"):
        compiler.unregister_backend("cpp")
    with pytest.raises(ValueError, match=r"\[unregister_backend\] .* got 'nobody'"):
        compiler.unregister_backend("nobody")
    assert compiler.get_default_backend() == "cpp"
    compiler.set_default_backend("recording")
    try:
        with pytest.raises(ValueError, match="is the default"):
            compiler.unregister_backend("recording")
        tp.compile(lambda x: x + 1)(tp.ones(1))
        assert len(recording) == 1
    finally:
        compiler.set_default_backend("cpp")
    with pytest.raises(ValueError, match=r"\[set_default_backend\] .* got 'nobody'"):
        compiler.set_default_backend("nobody")


def test_a_backend_that_returns_no_function_is_named() -> None:
    def forgetful(gm, example_inputs):
        pass

    with pytest.raises(
        TypeError, match=r"backend 'forgetful': expected a function .* got NoneType"
    ):
        tp.compile(lambda x: x + 1, backend=forgetful)(tp.ones(1))


def test_backends_get_the_graph_examples_and_what_the_user_set(recording) -> None:
    tp.compile(lambda x, y: x * y, backend="recording")(tp.ones(2, 3), tp.ones(3))
    gm, examples, kwargs = recording[0]
    assert isinstance(gm, GraphModule)
    gm.graph.lint()
    assert [tuple(e.shape) for e in examples] == [(2, 3), (3,)]
    assert kwargs == {}
    tp.compile(
        lambda x: x, backend="recording", name="mine", dynamic=True, options={"any": 1},
        strict_native=True,
    )(tp.ones(1))  # fmt: skip
    assert recording[1][2] == {
        "name": "mine", "dynamic": True, "options": {"any": 1}, "strict_native": True,
    }  # fmt: skip
    tp.compile(lambda x: x, backend="recording", mode="max-autotune")(tp.ones(1))
    assert recording[2][2] == {"mode": "max-autotune"}


def test_fifty_sizes_are_one_program(recording) -> None:
    f = tp.compile(lambda x: (x * 2 + 1).sum(), backend="recording")
    for n in range(1, 51):
        assert f(tp.ones(n)).item() == 3 * n
    assert f.report().programs == 1
    assert len(recording) == 2  # size 1 is one of its own; the others' takes its place
    assert f(tp.ones(3, dtype=tp.float64)).item() == 9
    report = f.report()
    assert report.programs == 2
    assert report.recompiles[-1] == "x: float32 became float64"
    assert "float32 became float64" in str(report)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (x.shape[0] / (x.shape[0] - 1.5)),
        lambda x: x / len(x) ** 0.5 + math.sqrt(len(x)),
        lambda x: x.double() * len(x),
        lambda x: x * tp.linspace(0, 1 / len(x), len(x)),
    ],
)
def test_numbers_that_follow_sizes_are_one_program_and_one_source(function, monkeypatch) -> None:
    sources = set()
    library_of = cpp.library_of
    monkeypatch.setattr(cpp, "library_of", lambda s: (sources.add(s), library_of(s))[1])
    f = tp.compile(function, fullgraph=True)
    for n in range(2, 20):
        x = tp.arange(n, dtype=tp.float32)
        np.testing.assert_allclose(f(x).numpy(), function(x).numpy(), rtol=1e-6)
    assert f.report().programs == 1
    assert len(sources) == 1


def test_a_batch_norm_in_training_is_one_program_for_all_batches() -> None:
    eager, model = (tp.nn.BatchNorm2d(3) for _ in range(2))
    f = tp.compile(model, fullgraph=True)
    for n in range(1, 12):
        x = tp.randn(n, 3, 4, 4)
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        np.testing.assert_allclose(f(one).detach().numpy(), eager(two).detach().numpy(), atol=1e-5)
        f(one).square().sum().backward()
        eager(two).square().sum().backward()
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), atol=1e-3)
    np.testing.assert_allclose(model.running_var.numpy(), eager.running_var.numpy(), rtol=1e-5)
    assert f.report().programs == 2  # a batch of one is a size of its own
    assert f.report().eager_calls == 0


def test_a_number_that_changed_by_itself_is_another_program(recording) -> None:
    f = tp.compile(lambda x, s: x * s, backend="recording")
    for n, s in ((2, 0.1), (3, 0.1), (4, 0.2), (4, 0.3)):
        np.testing.assert_allclose(f(tp.ones(n), s).numpy(), np.full(n, s), rtol=1e-6)
    assert f.report().programs == 3
    half = tp.compile(lambda x: x * 0.5 if x.shape[0] > 3 else x * 0.25, backend="recording")
    assert [half(tp.ones(n))[0].item() for n in (2, 3, 4, 5, 2)] == [0.25, 0.25, 0.5, 0.5, 0.25]
    assert half.report().programs == 2


def test_constants_of_one_size_are_told_apart_by_their_shape(backend) -> None:
    def function(x):
        y = x * 1
        y.t().mul_(0.5)  # whose gradient takes a mask of the part that was written
        return y + x

    f = tp.compile(function, backend=backend, fullgraph=True)
    for shape in ((4, 3), (3, 4), (2, 6), (6, 2)):
        x = tp.randn(*shape).requires_grad_()
        f(x).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full(shape, 1.5, np.float32))


def test_sizes_as_arguments_of_steps_are_one_program(backend) -> None:
    def function(x):
        return (x.reshape(x.shape[0], -1).softmax(dim=-1).sum() / x.shape[0]) * 2

    f = tp.compile(function, backend=backend, fullgraph=True)
    for n in range(3, 20):
        x, y = (tp.ones(n, 4, requires_grad=True) for _ in range(2))
        f(x).backward()
        function(y).backward()
        tp.testing.assert_close(x.grad, y.grad)
    assert f.report().programs == 1


def test_sizes_that_decide_a_branch_make_two_programs(recording) -> None:
    f = tp.compile(lambda x: x * 2 if x.shape[0] > 3 else x * 3, backend="recording", dynamic=True)
    assert [f(tp.ones(n))[0].item() for n in (2, 3, 4, 5, 2, 9)] == [3, 3, 2, 2, 3, 2]
    assert f.report().programs == 2


def test_broadcasting_sizes_are_their_own(backend) -> None:
    f = tp.compile(lambda x, y: x * y, backend=backend, fullgraph=True)
    for shapes in (((3, 4), (3, 4)), ((5, 2), (5, 2)), ((3, 4), (1, 4)), ((1, 4), (3, 1)),
                   ((1, 1), (1, 1)), ((0, 2), (0, 2)), ((4, 4), (4, 1))):  # fmt: skip
        x, y = (tp.randn(*s) for s in shapes)
        tp.testing.assert_close(f(x, y), x * y)


def test_static_sizes_are_programs_each(recording) -> None:
    f = tp.compile(lambda x: x * 2, backend="recording", dynamic=False)
    for n in (2, 3, 4, 2):
        f(tp.ones(n))
    assert f.report().programs == len(recording) == 3


def test_beyond_the_limit_calls_run_eagerly_with_one_warning() -> None:
    f = tp.compile(lambda x, n: x * int(n), backend="interpreter")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(20):
            assert f(tp.ones(1), n).item() == n
    assert len(caught) == 1
    assert "specialization limit of 8" in str(caught[0].message)
    report = f.report()
    assert (report.programs, report.eager_calls) == (8, 12)
    assert "n: 7 became 8" in next(e.reason for e in report.events if e.kind == "limit")
    assert f(tp.ones(1), 3).item() == 3
    assert f.report().eager_calls == 12


@pytest.mark.parametrize("uses", [False, True])
def test_ever_new_answers_reach_the_limit_and_cost_no_captures_then(uses, monkeypatch) -> None:
    def function(x):
        total = x.sum().item()
        return (x * total if uses else x), f"{total:.2f}"

    captures = []

    def counted(*args, **kwargs):
        captures.append(1)
        return capture(*args, **kwargs)

    monkeypatch.setattr(function_module, "capture", counted)
    f = tp.compile(function, backend="interpreter")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(30):
            got, text = f(tp.full((2,), float(n)))
            assert (got.tolist(), text) == ([n * 2 * n if uses else n] * 2, f"{2 * n:.2f}")
    assert ["specialization limit of 8" in str(w.message) for w in caught] == [True]
    assert len(captures) == 8 + 3
    report = f.report()
    assert (report.hits, report.eager_calls) == (8, 22)
    assert "item() of a value at test_compile.py" in report.events[-1].reason


@dataclasses.dataclass
class Batch:
    x: tp.Tensor
    scale: float = 2.0


@pytest.mark.parametrize("fullgraph", [False, True])
def test_objects_that_are_new_in_each_call_are_not_kept(fullgraph) -> None:
    f = tp.compile(lambda batch: batch.x * batch.scale, backend="interpreter", fullgraph=fullgraph)
    seen = []
    for n in range(150):
        batch = Batch(tp.full((2,), float(n)))
        seen.append(weakref.ref(batch))
        assert f(batch).tolist() == [2 * n] * 2
    del batch
    gc.collect()
    report = f.report()
    assert report.programs == 1
    assert sum(s() is not None for s in seen) <= (66 if fullgraph else 1)
    assert (report.hits, report.eager_calls) == ((150, 0) if fullgraph else (64, 86))
    assert [b.startswith("batch, of type Batch, is another") for b in report.breaks] == (
        [] if fullgraph else [True]
    )


def test_objects_that_come_again_are_compiled(backend) -> None:
    f = tp.compile(lambda batch: batch.x * batch.scale, backend=backend)
    batches = [Batch(tp.full((1,), float(n))) for n in range(60)]
    for _ in range(3):
        assert [f(b).item() for b in batches] == [2 * n for n in range(60)]
    assert f.report().eager_calls == 0
    assert f.report().hits == 180


class Settings:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def test_at_the_limit_an_object_with_new_numbers_is_named_with_what_to_pass(monkeypatch) -> None:
    captures = []

    def counted(*args, **kwargs):
        captures.append(1)
        return capture(*args, **kwargs)

    monkeypatch.setattr(function_module, "capture", counted)
    same = Settings(1.0)

    def function(x, first, settings):
        return x * first.factor * settings.factor

    f = tp.compile(function, backend="interpreter")
    with pytest.warns(RuntimeWarning) as caught:
        got = [f(tp.ones(1), same, Settings(n + 0.5)).item() for n in range(40)]
    assert got == [n + 0.5 for n in range(40)]
    (warning,) = caught
    assert "settings, of type Settings, is another object. Pass the tensors" in str(warning.message)
    assert len(captures) == 8 + 3
    report = f.report()
    assert report.recompiles[-1] == "settings: another object of type Settings"
    assert [e.kind for e in report.events] == ["compile", *["recompile"] * 7, "limit"]


def test_a_number_that_grows_makes_one_event_at_the_limit() -> None:
    f = tp.compile(lambda x, n: x * int(n), backend="interpreter")
    with pytest.warns(RuntimeWarning):
        got = [f(tp.ones(1), n).item() for n in range(60)]
    assert got == [*range(60)]
    assert [e.kind for e in f.report().events] == ["compile", *["recompile"] * 7, "limit"]


def test_objects_of_calls_at_the_limit_are_not_kept() -> None:
    f = tp.compile(lambda x, _: (x * 2, f"{x.sum().item()}"), backend="interpreter")
    settings = Settings(2.0)
    seen = weakref.ref(settings)
    with pytest.warns(RuntimeWarning):
        got = [f(tp.full((1,), float(n)), settings)[1] for n in range(30)]
    assert got == [f"{n}.0" for n in range(30)]
    del settings
    gc.collect()
    assert seen() is None


def test_reasons_are_in_words() -> None:
    x = tp.ones(2)
    calls = [
        ((1,), {}), (("s" * 500,), {}), ((Settings(1.0),), {}), ((Settings(2.0),), {}),
        ((len,), {}), ((None,), {}), (([x],), {}), (({"a": x},), {}), ((x,), {}),
        ((tp.ones(2),), {}), ((1, 2), {}), ((), {"k": x}), ((slice(2),), {}),
        ((b"b",), {}), ((tp.float32,), {}),
    ]  # fmt: skip
    for one in calls:
        f = tp.compile(lambda x, *_, **__: x * 2, backend="interpreter", recompile_limit=64)
        f(x, *one[0], **one[1])
        for arguments, keywords in calls:
            if one[0] is not arguments:
                leaves, structure = leaves_of((x, *arguments), keywords)
                why = f._why_new(key_of(leaves, structure), leaves)
                assert not re.search(r"<class|\bobject at|\d{9}|\('", why), why
                assert 0 < len(why) < 200


def test_the_limit_can_be_an_error(monkeypatch) -> None:
    monkeypatch.setattr(compiler.config, "fail_on_recompile_limit_hit", True)
    f = tp.compile(lambda x, n: x * n, backend="interpreter", recompile_limit=1)
    f(tp.ones(1), 1)
    with pytest.raises(RuntimeError, match="specialization limit"):
        f(tp.ones(1), 2)


def test_strict_native_refuses_python() -> None:
    f = tp.compile(lambda x: x * float(x.numpy()[0]), backend="interpreter", strict_native=True)
    with pytest.raises(RuntimeError, match=r"numpy\(\)"):
        f(tp.ones(1))


def test_reset_forgets_all_programs() -> None:
    f = tp.compile(lambda x: x * 2, backend="interpreter")
    f(tp.ones(1))
    compiler.reset()
    assert f.report().programs == 0
    assert f(tp.ones(1)).item() == 2


def test_disabled_functions_are_left_out() -> None:
    seen = []

    @compiler.disable(reason="for the test")
    def left_out(x):
        seen.append(compiler.is_compiling())
        return x + 1

    f = tp.compile(lambda x: left_out(x) * 2, backend="interpreter")
    assert f(tp.ones(1)).item() == 4
    assert seen == [False]
    assert "left_out, which is kept out of compiling (for the test)" in f.report().breaks[0]
    with pytest.raises(GraphCaptureError, match="left_out"):
        tp.compile(lambda x: left_out(x) * 2, backend="interpreter", fullgraph=True)(tp.ones(1))
    inner = tp.compile(lambda x: x * 2, backend="interpreter")
    assert compiler.disable(lambda x: inner(x))(tp.ones(1)).item() == 2  # noqa: PLW0108
    assert inner.report().programs == 0
    assert compiler.disable(inner)(tp.ones(1)).item() == 2
    assert inner.report().programs == 0


def test_code_can_tell_that_it_is_captured() -> None:
    seen = []

    def function(x):
        seen.append(compiler.is_compiling())
        return x * (2 if compiler.is_compiling() else 3)

    assert not compiler.is_compiling()
    assert not compiler.is_exporting()
    f = tp.compile(lambda x: x * (2 if compiler.is_compiling() else 3), backend="interpreter")
    assert f(tp.ones(1)).item() == 2
    assert function(tp.ones(1)).item() == 3
    assert seen == [False]


def test_constants_and_allowed_functions_are_not_looked_at() -> None:
    hidden = {"by": 2.0}

    @compiler.assume_constant_result
    def by():
        return hidden["by"]

    @compiler.allow_in_graph
    def scaled(x):
        return x * hidden["by"]

    f = tp.compile(lambda x: x * by(), backend="interpreter", fullgraph=True)
    g = tp.compile(lambda x: scaled(x) + 0, backend="interpreter", fullgraph=True)
    assert f(tp.ones(1)).item() == g(tp.ones(1)).item() == 2
    hidden["by"] = 3.0
    assert f(tp.ones(1)).item() == g(tp.ones(1)).item() == 2


def test_compiled_functions_inside_of_others_join_the_graph() -> None:
    inner = tp.compile(lambda x: x + 1, backend="interpreter")
    f = tp.compile(lambda x: inner(x) * 2, backend="interpreter", fullgraph=True)
    assert f(tp.ones(1)).item() == 4
    assert "operators.add" in f.report().details[0].graph
    assert inner.report().programs == 0


def test_explain_says_it_as_data_text_and_html() -> None:
    scale = 2.0

    def function(x):
        y = (x * scale).relu()
        return y * 3 if y.sum() > 0 else y

    found = compiler.explain(function, backend="interpreter")(tp.ones(2, requires_grad=True))
    assert found.graph_count == 1
    assert found.graph_break_count == 0
    assert found.result.tolist() == [6, 6]
    (program,) = found.details
    assert "variable 'scale' of an enclosing function is 2.0" in program.guards
    assert program.conditions[0].startswith("bool() at test_compile.py")
    assert "operators.relu" in program.graph
    assert program.backward_graph is not None
    data = found.to_dict()
    assert json.loads(json.dumps(data))["programs"] == 1
    assert "program 0" in found.to_text()
    page = found.to_html()
    assert "<script" not in page
    assert "operators.relu" in page
    broken = compiler.explain(lambda x: x * x.numpy(), backend="interpreter")(tp.ones(1))
    assert broken.graph_break_count == 1
    assert "test_compile.py" in broken.breaks[0]
    again = compiler.explain(tp.compile(function, backend="interpreter"))(tp.ones(1))
    assert again.graph_count == 1


def test_explain_says_why_a_function_is_slower_than_eager() -> None:
    found = compiler.explain(lambda x: x + 1, backend="interpreter")(tp.ones(8))
    assert found.seconds is not None
    assert found.seconds > 0
    assert (found.slower_because != "") == (found.seconds > found.eager_seconds)
    assert "a call: compiled" in found.to_text()
    ran = []

    @tp.library.custom_op("explained::once", mutates_args=())
    def once(x: tp.Tensor) -> tp.Tensor:
        ran.append(1)
        return tp.from_numpy(x.numpy() + 1)

    @once.register_fake
    def _(x):
        return tp.empty_like(x)

    assert compiler.explain(once, backend="interpreter")(tp.ones(1)).seconds is None
    assert ran == [1]
    x = tp.zeros(1)
    compiler.explain(lambda x: x.add_(1), backend="interpreter")(x)
    assert x.item() == 1


def test_attributes_of_a_function_are_there_but_replace_no_methods() -> None:
    def double(x):
        return x * 2

    double.unit, double.report, double._count = "mm", None, 3
    f = tp.compile(double, backend="interpreter")
    assert f.unit == "mm"
    assert f(tp.ones(2)).tolist() == [2, 2]
    assert f.report().programs == 1


def test_threads_share_a_compiled_function() -> None:
    f = tp.compile(lambda x: (x * 2 + 1).sum(), backend="interpreter")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(1, 40):
                assert f(tp.ones(n)).item() == 3 * n
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert f.report().programs == 1


def test_other_threads_run_eagerly_beside_a_capture() -> None:
    results = []

    def beside() -> None:
        results.append((tp.ones(2) + 1).tolist())

    def function(x):
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        return x + 1

    f = tp.compile(function, backend="interpreter")
    assert f(tp.ones(1)).item() == 2
    assert results[-1] == [2, 2]


def test_without_a_compiler_the_interpreter_runs_with_one_line() -> None:
    code = (
        "import tensorplay as tp\n"
        "f = tp.compile(lambda x: x * 2 + 1)\n"
        "g = tp.compile(lambda x: x * 3 + 1)\n"
        "print(f(tp.ones(1)).item(), g(tp.ones(1)).item())\n"
        "print(f.report().details[0].regions[0].reason)\n"
        "try: tp.compile(lambda x: x + 1, strict_native=True)(tp.ones(1))\n"
        "except RuntimeError as error: print(str(error)[:24])\n"
    )
    environment = {"PATH": "", "CXX": "/no/such/compiler", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    reason = "there is no compiler for native code"
    assert done.stdout.splitlines() == ["3.0 4.0", reason, "[compile] strict_native:"]
    assert done.stderr.count("\n") == 1
    assert "backend 'interpreter'" in done.stderr


RETURNED = {
    "too many": (lambda out: (*out, out[0]), "tuple of 3"),
    "too few": (lambda out: out[:1], "tuple of 1"),
    "none": (lambda _: None, "NoneType"),
    "a tensor": (lambda out: out[0], "Tensor"),
    "too many in a list": (lambda out: [*out, out[0]], "list of 3"),
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_backend_that_returns_another_number_of_results_is_told_so(name: str, part: str) -> None:
    change, got = RETURNED[name]

    made = []

    def mine(gm, example_inputs):
        made.append(len(example_inputs))
        if len(made) != ("forward", "backward").index(part) + 1:
            return gm.forward
        return lambda *tensors: change(gm.forward(*tensors))

    f = tp.compile(lambda x, y: (x.exp() * y, y.sin()), backend=mine)
    x, y = (tp.ones(2, requires_grad=part == "backward") for _ in range(2))
    expected = rf"\[compile\] backend 'mine': expected a tuple of 2 from .* got {got}\. Return"
    with pytest.raises(TypeError, match=expected):
        f(x, y)[0].sum().backward()
    good = tp.compile(lambda x, y: (x + y, x - y), backend=lambda gm, _: lambda *t: [*gm(*t)])
    assert [t.tolist() for t in good(tp.ones(1), tp.ones(1))] == [[2.0], [0.0]]


FULL = """#!/bin/sh
case "$*" in *source.cpp*)
    echo "fatal error: error writing to x.s: No space left on device" >&2; exit 1;;
esac
exec c++ "$@"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits and scripts of POSIX")
@pytest.mark.parametrize("limit", [0, 2000, None])
def test_where_nothing_can_be_written_the_interpreter_runs_with_one_line(limit, tmp_path) -> None:
    code = (
        "import resource, signal, sys, tensorplay as tp\n"
        "from tensorplay.compiler import cpp\n"
        f"limit = {limit}\n"
        "if limit is not None: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "f = tp.compile(lambda x: x * 2 + 1)\n"
        "g = tp.compile(lambda x: x * 3 + 1)\n"
        "print(f(tp.ones(1)).item(), g(tp.ones(1)).item())\n"
        "print(f.report().details[0].regions[0].reason)\n"
        "try: tp.compile(lambda x: x + 1, strict_native=True)(tp.ones(1))\n"
        "except RuntimeError as error: print(str(error))\n"
    )
    environment = {**os.environ, "TENSORPLAY_CACHE_DIR": str(tmp_path / "cache")}
    if limit is None:
        script = tmp_path / "full"
        script.write_text(FULL)
        script.chmod(0o755)
        environment["CXX"] = str(script)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    values, reason, refused = done.stdout.splitlines()[:3]
    assert values == "3.0 4.0"
    assert reason.startswith("native code could not be made: ")
    assert refused.startswith(f"[compile] strict_native: {reason[:30]}")
    assert done.stderr.count("[compile] no native code (") == 1
    assert ("No space left" if limit is None else "File ") in done.stderr


def test_modes_that_answer_calls_are_asked() -> None:
    names = []

    class Names(tp.overrides.TensorPlayFunctionMode):
        def __tensorplay_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    f = tp.compile(lambda x: x * 2, backend="interpreter")
    f(tp.ones(1))
    with Names():
        f(tp.zeros(1))
    assert "mul" in names


def test_importing_the_library_does_not_import_the_compiler() -> None:
    code = "import sys, tensorplay; print('tensorplay.compiler' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

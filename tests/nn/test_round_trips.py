"""Modules of random structure, and training in its middle, come back as they were."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay import nn, optim

flag = st.booleans()


class Seen(nn.Module):
    """Counts its calls in buffers that are saved and that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", tp.zeros((), dtype=tp.int64))
        self.register_buffer("total", tp.zeros(()), persistent=False)
        self.register_buffer("missing", None)
        self.scale = nn.Parameter(tp.ones(3))
        self.register_forward_hook(self.count)

    def count(self, module: Any, args: Any, output: Any) -> None:
        self.calls.add_(1)
        self.total.add_(output.detach().sum())

    def forward(self, input: Any) -> Any:
        return input * self.scale


def doubled(module: Any, args: Any, output: Any) -> Any:
    return output * 2


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 3),
    "norm": lambda: nn.BatchNorm1d(3),
    "seen": Seen,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}


@st.composite
def models(draw: Any) -> nn.Module:
    """Return a tree of layers, some shared, some sharing a parameter, some with a hook."""
    names = draw(st.lists(st.sampled_from(sorted(LAYERS)), max_size=4))
    leaves = [LAYERS[name]() for name in names]
    linear = [m for m in leaves if isinstance(m, nn.Linear)]
    if len(linear) > 1 and draw(flag):
        linear[1].weight = linear[0].weight
    if leaves and draw(flag):
        leaves.append(leaves[0])
    if leaves and draw(flag):
        leaves[0].register_forward_hook(doubled)
    parts: list[nn.Module] = [nn.Sequential(*leaves[:2]), *leaves[2:]]
    net = nn.Sequential(*parts, nn.Linear(3, 2))
    if draw(flag):
        next(iter(net.parameters())).requires_grad_(False)
    for _ in range(draw(st.integers(0, 2))):
        net(tp.randn(4, 3))
    return net.train(draw(flag))


def apart(one: nn.Module, two: nn.Module) -> None:
    """Hold that two modules are alike and share no memory."""
    for mine, theirs in (
        (one.named_parameters, two.named_parameters),
        (one.named_buffers, two.named_buffers),
    ):
        # By all names, so that what is shared in one is shared in the other.
        a, b = (dict(f(remove_duplicate=False)) for f in (mine, theirs))
        assert list(a) == list(b)
        assert [list(map(id, a.values())).index(id(t)) for t in a.values()] == [
            list(map(id, b.values())).index(id(t)) for t in b.values()
        ]
        for name, tensor in a.items():
            assert tensor is not b[name]
            assert tensor.data_ptr() != b[name].data_ptr()
            assert tensor.dtype is b[name].dtype
            assert tensor.requires_grad == b[name].requires_grad
            assert tp.equal(tensor, b[name])
    assert repr(one) == repr(two)
    assert [m.training for m in one.modules()] == [m.training for m in two.modules()]


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    tp.save(state, file)
    file.seek(0)
    return tp.load(file)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@given(models(), st.sampled_from(sorted(COPIES)))
@settings(max_examples=50, deadline=None)
def test_copies_are_alike_and_apart(net: nn.Module, how: str) -> None:
    twin = COPIES[how](net)
    apart(net, twin)
    x = tp.randn(4, 3)
    assert tp.equal(net(x), twin(x))  # hooks and running statistics too
    apart(net, twin)


@given(models(), flag, flag)
@settings(max_examples=50, deadline=None)
def test_states_make_another_module_alike(net: nn.Module, filed: bool, assign: bool) -> None:
    state = net.state_dict()
    expected = {n: t.clone() for n, t in state.items()}
    twin = copy.deepcopy(net)
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.detach().fill_(7)
    result = twin.load_state_dict(through_file(state) if filed else state, assign=assign)
    assert result == ([], [])
    assert {n for n, _ in twin.named_buffers()} - set(state) == {
        n for n, _ in twin.named_buffers() if n.endswith("total")
    }
    for name, tensor in twin.state_dict().items():
        assert tp.equal(tensor, expected[name])
    shared = [len(list(m.parameters())) for m in (net, twin)]
    assert shared[0] == shared[1]


@given(models(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_state_with_a_fault_names_it_and_changes_nothing(net: nn.Module, data: Any) -> None:
    state = dict(net.state_dict())
    before = {n: t.clone() for n, t in state.items()}
    name = data.draw(st.sampled_from(sorted(state)))
    fault = data.draw(st.sampled_from(["missing", "unexpected", "size", "kind"]))
    given = {n: t + 1 for n, t in state.items()}
    if fault == "missing":
        del given[name]
        words = f"Missing key(s) in state_dict: {name!r}."
    elif fault == "unexpected":
        given[f"{name}.x"] = tp.ones(1)
        words = f"Unexpected key(s) in state_dict: '{name}.x'."
    elif fault == "size":
        given[name] = tp.zeros(9, 9)
        words = f"size mismatch for {name}: copying a tensor with shape [9, 9], the shape in the "
    else:
        given[name] = given[name].numpy()
        words = f"{name!r}: expected Tensor, got "
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(given)
    assert str(caught.value).startswith("Error(s) in loading state_dict for Sequential:")
    assert words in str(caught.value)
    for n, tensor in net.state_dict().items():
        assert tp.equal(tensor, before[n])
    if fault in {"missing", "unexpected"}:
        missing, unexpected = net.load_state_dict(given, strict=False)
        assert (missing or unexpected) == [name if fault == "missing" else f"{name}.x"]


@given(models(), st.sampled_from([tp.float64, tp.float16, tp.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_conversions_go_there_and_keep_what_is_shared(net: nn.Module, dtype: Any) -> None:
    before = {n: (t, t.clone()) for n, t in net.named_parameters(remove_duplicate=False)}
    whole = [t.dtype for t in net.buffers() if not t.is_floating_point()]
    assert net.to(dtype) is net
    for name, tensor in net.named_parameters(remove_duplicate=False):
        same, values = before[name]
        assert tensor is same
        assert tp.equal(tensor, values.to(dtype))
    assert [t.dtype for t in net.buffers() if not t.is_floating_point()] == whole
    assert all(t.dtype is dtype for t in net.buffers() if t.is_floating_point())
    assert net.eval()(tp.ones(2, 3, dtype=dtype)).dtype is dtype


METHODS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "rmsprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: optim.lr_scheduler.StepLR(o, 2, 0.5),
    "milestones": lambda o: optim.lr_scheduler.MultiStepLR(o, [1, 4], 0.3),
    "exponential": lambda o: optim.lr_scheduler.ExponentialLR(o, 0.9),
    "linear": lambda o: optim.lr_scheduler.LinearLR(o, 0.2, total_iters=5),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "plateau": lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequence": lambda o: optim.lr_scheduler.SequentialLR(
        o,
        [optim.lr_scheduler.LinearLR(o, 0.1), optim.lr_scheduler.ExponentialLR(o, 0.5)],
        [3],
    ),
    "chain": lambda o: optim.lr_scheduler.ChainedScheduler(
        [optim.lr_scheduler.ExponentialLR(o, 0.9), optim.lr_scheduler.StepLR(o, 2)]
    ),
}


def train(parts: tuple[Any, Any, Any], steps: range) -> None:
    net, method, schedule = parts
    for t in steps:
        method.zero_grad()
        loss = ((net(tp.arange(6.0).reshape(2, 3)) - t) ** 2).mean()
        loss.backward()
        method.step()
        if isinstance(schedule, optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(1.0)
        else:
            schedule.step()


def made(method: str, schedule: str) -> tuple[Any, Any, Any]:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = METHODS[method](net.parameters())
    return net, optimizer, SCHEDULES[schedule](optimizer)


@given(
    st.sampled_from(sorted(METHODS)),
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from([*sorted(COPIES), "state", "file"]),
    st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
def test_training_goes_on_where_it_was(method: str, schedule: str, how: str, steps: int) -> None:
    parts = made(method, schedule)
    train(parts, range(steps))
    if how in COPIES:
        others = COPIES[how](parts)  # together, so that they belong together
        assert others[2].optimizer is others[1]
    else:
        others = made(method, schedule)
        for one, two in zip(parts, others, strict=True):
            state = one.state_dict()
            two.load_state_dict(through_file(state) if how == "file" else copy.deepcopy(state))
    for run in (parts, others):
        train(run, range(steps, steps + 4))
    for a, b in zip(parts[0].state_dict().values(), others[0].state_dict().values(), strict=True):
        assert tp.equal(a, b)
    assert parts[2].get_last_lr() == others[2].get_last_lr()

"""Modules as people extend them: derived containers, own `train`, hooks that are methods."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn
from tensorplay.nn import hooks


class Scaled(nn.Sequential):
    """A container with state besides its members."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.ReLU())
        self.register_buffer("seen", tp.zeros(()))
        self.gain = nn.Parameter(tp.ones(1))

    def forward(self, input: Any) -> Any:
        return super().forward(input) * self.gain


def test_parameters_of_a_derived_container_are_not_its_members() -> None:
    net = Scaled()
    assert len(net) == 2
    assert net(tp.ones(1, 2)).shape == (1, 2)
    net.append(nn.Tanh())
    net[1] = nn.SiLU()
    del net[0]
    assert [type(m).__name__ for m in net] == ["SiLU", "Tanh"]
    assert isinstance(net.gain, nn.Parameter)
    assert [name for name, _ in net.named_buffers()] == ["seen"]

    class Heads(nn.ModuleDict):
        def __init__(self) -> None:
            super().__init__({"a": nn.Linear(1, 1)})
            self.register_buffer("steps", tp.zeros(()))

    heads = Heads()
    assert list(heads) == ["a"]
    assert len(heads) == 1
    assert "steps" not in heads
    with pytest.raises(KeyError):
        heads["steps"]

    class Vectors(nn.ParameterList):
        def __init__(self) -> None:
            super().__init__([tp.ones(1)])
            self.map = nn.Linear(1, 1)

    assert len(Vectors().append(tp.ones(2))) == 2


def test_a_module_below_decides_on_its_mode() -> None:
    class Frozen(nn.Dropout):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(Frozen(0.5)))
    net.train()
    assert net.training
    assert net[1].training
    assert not net[1][0].training


def test_bases_that_both_initialise_forget_nothing() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.a = nn.Linear(1, 1)

    class Two(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.b = nn.Linear(1, 1)

    class Both(One, Two):
        def __init__(self) -> None:
            One.__init__(self)
            Two.__init__(self)

    assert [name for name, _ in Both().named_children()] == ["a", "b"]


def test_a_name_of_another_kind_is_refused() -> None:
    net = nn.Module()
    net.register_buffer("a", tp.ones(1))
    with pytest.raises(KeyError, match="'a' already exists"):
        net.register_parameter("a", nn.Parameter(tp.ones(1)))
    with pytest.raises(KeyError, match="'a' already exists"):
        net.add_module("a", nn.ReLU())
    net.register_buffer("a", tp.zeros(1))
    assert net.a.item() == 0


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.calls = 0
        self.register_forward_hook(self.count)

    def count(self, module: Any, args: Any, output: Any) -> None:
        self.calls += 1


def test_hooks_that_are_methods_belong_to_the_copy() -> None:
    net = Counting()
    twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for twin in twins:
        twin(tp.ones(1, 1))
        assert (net.calls, twin.calls) == (0, 1)


def test_hooks_of_a_loaded_module_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Counting()
    # Another process counts from the start.
    monkeypatch.setattr(hooks, "_numbers", iter(range(10**6)))
    handles = [net.register_forward_hook(lambda *_: None) for _ in range(3)]
    assert len(net._hooks.kinds["forward"]) == 4
    for handle in handles:
        handle.remove()
    net(tp.ones(1, 1))
    assert net.calls == 1


def test_modules_without_elements_are_pickled_and_filled() -> None:
    net = nn.Sequential(nn.Linear(2, 3, device="meta"), nn.BatchNorm1d(3, device="meta"))
    again = pickle.loads(pickle.dumps(net))
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in again.parameters())
    weight = again[0].weight
    assert again.to_empty(device="cpu") is again
    assert again[0].weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    assert not weight.is_meta
    for module in again:
        module.reset_parameters()
    again[1].reset_running_stats()
    assert again(tp.ones(2, 2)).shape == (2, 3)
    assert again[1].num_batches_tracked.item() == 1


def test_conversions_take_non_blocking() -> None:
    assert nn.Linear(1, 1).to("cpu", tp.float64, non_blocking=True).weight.dtype is tp.float64


def test_a_shared_parameter_stays_one_when_loaded_by_assignment(tmp_path: Any) -> None:
    def tied() -> Any:
        net = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
        net[1].weight = net[0].weight
        return net

    net = tied()
    tp.save(net.state_dict(), tmp_path / "tied.tp")
    for state in (net.state_dict(), tp.load(tmp_path / "tied.tp")):
        twin = tied()
        twin.load_state_dict(state, assign=True)
        assert twin[0].weight is twin[1].weight
        assert tp.equal(twin[0].weight, net[0].weight)
    apart = {name: value.clone() for name, value in net.state_dict().items()}
    twin.load_state_dict(apart, assign=True)
    assert len(list(twin.parameters())) == 2


def test_a_shared_module_with_a_shared_parameter_keeps_both_by_assignment() -> None:
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.weight = one.weight
    net = nn.Sequential(one, two, one)
    net.load_state_dict({n: t.clone() for n, t in net.state_dict().items()}, assign=True)
    assert one.weight is not two.weight  # the values lie apart
    net = copy.deepcopy(nn.Sequential(one, one))
    two = nn.Linear(2, 2)
    two.weight = net[0].weight
    net.insert(1, two)
    net.load_state_dict(net.state_dict(), assign=True)
    assert net[0] is net[2]
    assert net[0].weight is net[1].weight

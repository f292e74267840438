"""Modules: what they register, convert, save and load, and the hooks around their calls."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(tp.ones(4))
        self.register_buffer("count", tp.zeros(()))
        self.register_buffer("cache", tp.zeros(2), persistent=False)
        self.last = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x) * self.scale)


# --- parameters and buffers ---------------------------------------------------------------------


def test_a_parameter_is_a_marked_tensor() -> None:
    data = tp.tensor([1.0, 2.0])
    p = nn.Parameter(data)
    assert isinstance(p, nn.Parameter)
    assert isinstance(p, tp.Tensor)
    assert not isinstance(data, nn.Parameter)
    assert not isinstance(p * 1, nn.Parameter)
    assert not isinstance(p.detach(), nn.Parameter)
    assert p.requires_grad
    assert p.is_leaf
    assert p.data_ptr() == data.data_ptr()
    assert not nn.Parameter(data, requires_grad=False).requires_grad
    assert nn.Parameter().numel() == 0
    assert repr(p).startswith("Parameter containing:\ntensor([1., 2.], requires_grad=True)")


def test_a_mark_survives_copies_and_pickles() -> None:
    p = nn.Parameter(tp.tensor([1.0]))
    b = nn.Buffer(tp.tensor([1.0]), persistent=False)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert isinstance(twin, nn.Parameter)
        assert twin.requires_grad
        assert twin.data_ptr() != p.data_ptr()
    assert isinstance(copy.deepcopy(b), nn.Buffer)
    assert not isinstance(b, nn.Parameter)
    assert not isinstance(p, nn.Buffer)


def test_a_class_derived_from_parameter_has_its_own_instances() -> None:
    class Mine(nn.Parameter):
        pass

    mine = Mine(tp.ones(2))
    assert type(mine) is Mine
    assert isinstance(mine, nn.Parameter)
    assert not isinstance(nn.Parameter(tp.ones(2)), Mine)
    module = nn.Module()
    module.mine = mine
    assert dict(module.named_parameters())["mine"] is mine
    (mine * 2).sum().backward()
    assert mine.grad.tolist() == [2.0, 2.0]


def test_parameters_of_wrong_data_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"\[Parameter\] argument 'data': expected Tensor, got list"
    ):
        nn.Parameter([1.0])
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        nn.Parameter(tp.tensor([1]))
    assert nn.Parameter(tp.tensor([1]), requires_grad=False).dtype is tp.int64


# --- registration -------------------------------------------------------------------------------


def test_members_are_found_in_the_order_of_their_registration() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        "scale",
        "first.weight",
        "first.bias",
        "last.1.weight",
    ]
    assert [name for name, _ in net.named_buffers()] == ["count", "cache"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "last", "last.0", "last.1"]
    assert [name for name, _ in net.named_children()] == ["first", "last"]
    assert net.get_submodule("last.1") is net.last[1]
    assert net.get_parameter("last.1.weight") is net.last[1].weight
    assert net.get_buffer("count") is net.count
    assert net.get_submodule("") is net
    assert [name for name, _ in net.named_parameters(prefix="n", recurse=False)] == ["n.scale"]


def test_a_shared_parameter_counts_once() -> None:
    net = nn.Module()
    net.a, net.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    net.b.weight = net.a.weight
    net.again = net.a
    assert len(list(net.parameters())) == 1
    assert len(list(net.modules())) == 3
    assert [n for n, _ in net.named_parameters(remove_duplicate=False)] == [
        "a.weight",
        "b.weight",
        "again.weight",
    ]
    assert list(net.state_dict()) == ["a.weight", "b.weight", "again.weight"]


def test_assignment_before_init_says_so() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(tp.ones(1))

    with pytest.raises(AttributeError, match=r"before Module\.__init__\(\) call"):
        Early()

    class Plain(nn.Module):
        def __init__(self) -> None:
            self.size = 3  # no member: nothing to register
            super().__init__()

    assert Plain().size == 3


def test_missing_attributes_and_forward_are_named() -> None:
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'wieght'"):
        _ = nn.Linear(1, 1).wieght
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.Module()(1)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weight", tp.ones(1), "cannot assign 'Tensor' object as parameter 'weight'"),
        ("child", 3, "cannot assign 'int' object as module 'child'"),
        ("buffer", "text", "cannot assign 'str' object as buffer 'buffer'"),
    ],
)
def test_members_keep_their_kind(name: str, value: Any, words: str) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(tp.ones(1))
    module.child = nn.Identity()
    module.buffer = nn.Buffer(tp.ones(1))
    with pytest.raises(TypeError, match=words):
        setattr(module, name, value)
    assert len(module.state_dict()) == 2


def test_members_can_be_none_replaced_and_deleted() -> None:
    module = nn.Linear(2, 2)
    module.bias = None
    assert [n for n, _ in module.named_parameters()] == ["weight"]
    module.bias = nn.Parameter(tp.zeros(2))
    assert list(module.state_dict()) == ["weight", "bias"]
    del module.bias
    assert not hasattr(module, "bias")
    assert list(module.state_dict()) == ["weight"]
    module.weight = nn.Identity()  # of another kind
    assert list(module.parameters()) == []
    assert [n for n, _ in module.named_children()] == ["weight"]


def test_a_buffer_takes_a_tensor() -> None:
    module = nn.BatchNorm1d(2)
    module.running_mean = tp.ones(2)
    assert module.state_dict()["running_mean"].tolist() == [1.0, 1.0]


def test_registration_by_name_is_checked() -> None:
    module = nn.Module()
    with pytest.raises(KeyError, match="contains no"):
        module.register_parameter("a.b", None)
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        module.register_buffer("forward", tp.ones(1))
    with pytest.raises(TypeError, match="expected str, got int"):
        module.add_module(3, nn.Identity())
    with pytest.raises(TypeError, match="expected Parameter or None, got Tensor"):
        module.register_parameter("p", tp.ones(1))
    with pytest.raises(TypeError, match="expected Tensor or None, got float"):
        module.register_buffer("b", 1.0)
    with pytest.raises(TypeError, match="expected Module or None, got str"):
        module.add_module("m", "text")
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        module.get_submodule("x.y")
    with pytest.raises(AttributeError, match="is no parameter"):
        module.get_parameter("p")
    assert module.state_dict() == {}


# --- conversion ---------------------------------------------------------------------------------


def test_conversions_keep_the_parameters_themselves() -> None:
    net = Net()
    before = dict(net.named_parameters())
    net(tp.ones(1, 3)).sum().backward()
    assert net.double() is net
    for name, p in net.named_parameters():
        assert p is before[name]
        assert p.dtype is tp.float64
        assert p.grad.dtype is tp.float64
    assert net.count.dtype is tp.float64
    assert net(tp.ones(1, 3, dtype=tp.float64)).dtype is tp.float64
    assert net.to("cpu", tp.float32).scale.dtype is tp.float32
    assert net.bfloat16().scale.dtype is tp.bfloat16
    assert net.float().half().scale.dtype is tp.float16


def test_integer_buffers_keep_their_type() -> None:
    module = nn.BatchNorm1d(2).double()
    assert module.num_batches_tracked.dtype is tp.int64
    assert module.running_mean.dtype is tp.float64


def test_a_conversion_that_is_refused_changes_nothing() -> None:
    net = Net()
    with pytest.raises(TypeError, match="expected a floating or complex dtype, got"):
        net.to(tp.int64)
    with pytest.raises(TypeError, match="expected a device, a dtype or a Tensor, got int"):
        net.to(3)
    with pytest.raises(TypeError, match="unexpected argument 'devise'"):
        net.to(devise="cpu")
    assert net.scale.dtype is tp.float32


def test_gradients_after_a_conversion_are_of_the_new_type() -> None:
    module = nn.Linear(2, 1)
    module(tp.ones(1, 2)).sum().backward()
    module.zero_grad()
    module.double()
    module(tp.ones(1, 2, dtype=tp.float64)).sum().backward()
    assert module.weight.grad.dtype is tp.float64


def test_data_of_a_parameter_that_a_graph_saved_raises_at_backward() -> None:
    p = nn.Parameter(tp.ones(2))
    y = (p * p).sum()
    p.data = tp.zeros(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    assert p.tolist() == [0.0, 0.0]
    with pytest.raises(TypeError, match=r"\[data\] expected Tensor"):
        p.data = 3
    with pytest.raises(RuntimeError, match="no graph leaf"):
        (p * 2).data = tp.zeros(3)
    with pytest.raises(RuntimeError, match="needs floating point"):
        p.data = tp.zeros(2, dtype=tp.int64)


def test_meta_parameters_get_their_elements_by_assignment() -> None:
    module = nn.Linear(2, 3, device="meta")
    assert module.weight.is_meta
    assert module(tp.zeros(4, 2, device="meta")).shape == (4, 3)
    values = nn.Linear(2, 3).state_dict()
    with pytest.raises(RuntimeError, match="Pass assign=True"):
        module.load_state_dict(values)
    module.load_state_dict(values, assign=True)
    assert isinstance(module.weight, nn.Parameter)
    assert module(tp.zeros(4, 2)).shape == (4, 3)


def test_modes_and_gradients_reach_everything() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert net.training
    net.eval()
    assert [m.training for m in net.modules()] == [False] * 4
    net.train()
    assert all(m.training for m in net.modules())
    with pytest.raises(TypeError, match="expected bool, got str"):
        net.train("yes")
    full = Net()
    full(tp.ones(1, 3)).sum().backward()
    full.zero_grad(set_to_none=False)
    assert all(p.grad.abs().sum() == 0 for p in full.parameters())
    full.zero_grad()
    assert all(p.grad is None for p in full.parameters())
    full.requires_grad_(False)
    assert not full(tp.ones(1, 3)).requires_grad


def test_apply_goes_from_the_leaves_up() -> None:
    seen: list[str] = []
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
    assert net.apply(lambda m: seen.append(type(m).__name__)) is net
    assert seen == ["ReLU", "Tanh", "Sequential", "Sequential"]


# --- state --------------------------------------------------------------------------------------


def test_state_goes_from_one_module_to_another() -> None:
    one, two = Net(), Net()
    one.count.fill_(3)
    state = one.state_dict()
    assert list(state) == ["scale", "count", "first.weight", "first.bias", "last.1.weight"]
    assert not any(t.requires_grad for t in state.values())
    result = two.load_state_dict(state)
    assert repr(result) == "<All keys matched successfully>"
    x = tp.randn(2, 3)
    assert tp.equal(one(x), two(x))
    assert two.count.item() == 3
    assert one.state_dict(keep_vars=True)["scale"] is one.scale
    assert one.state_dict()["scale"].data_ptr() == one.scale.data_ptr()


def test_state_that_does_not_fit_changes_nothing() -> None:
    net = Net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = {k: v + 1 for k, v in before.items()}
    state["first.weight"] = tp.zeros(9, 9)
    state["strange"] = state.pop("scale")
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(state)
    text = str(caught.value)
    for words in (
        "loading state_dict for Net",
        "Missing key(s) in state_dict: 'scale'",
        "Unexpected key(s) in state_dict: 'strange'",
        "size mismatch for first.weight",
        "[9, 9]",
        "[4, 3]",
    ):
        assert words in text
    assert all(tp.equal(v, before[k]) for k, v in net.state_dict().items())
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict({"scale": tp.zeros(1)}, strict=False)
    with pytest.raises(TypeError, match="expected a mapping"):
        net.load_state_dict([1])
    with pytest.raises(RuntimeError, match="expected Tensor, got int"):
        net.load_state_dict({"scale": 1}, strict=False)


def test_loading_what_is_there_names_the_rest() -> None:
    net = Net()
    missing, unexpected = net.load_state_dict(
        {"scale": tp.zeros(4), "x": tp.zeros(1)}, strict=False
    )
    assert missing == ["count", "first.weight", "first.bias", "last.1.weight"]
    assert unexpected == ["x"]
    assert net.scale.abs().sum() == 0


def test_a_loaded_state_is_saved_and_read(tmp_path: Any) -> None:
    net, other = Net(), Net()
    tp.save(net.state_dict(), tmp_path / "net.tp")
    other.load_state_dict(tp.load(tmp_path / "net.tp"))
    assert all(tp.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_extra_state_goes_along() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    one, two = nn.Sequential(Counted()), nn.Sequential(Counted())
    one[0].calls = 5
    assert list(one.state_dict()) == ["0._extra_state"]
    two.load_state_dict(one.state_dict())
    assert two[0].calls == 5
    with pytest.raises(RuntimeError, match="Missing key"):
        two.load_state_dict({})


def test_hooks_of_the_state_dictionary() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    calls: list[str] = []
    net.register_state_dict_pre_hook(lambda m, prefix, keep: calls.append(f"pre {prefix!r} {keep}"))
    net.register_state_dict_post_hook(lambda m, state, prefix: state.pop("0.bias"))
    assert list(net.state_dict()) == ["0.weight"]
    assert calls == ["pre '' False"]

    def rename(module: Any, state: Any, prefix: str) -> None:
        state["0.bias"] = state.pop("0.old")

    net.register_load_state_dict_pre_hook(rename)
    given = {"0.weight": tp.ones(1, 1), "0.old": tp.ones(1)}
    net.register_load_state_dict_post_hook(lambda m, result: result[0].append("seen"))
    assert net.load_state_dict(given).missing_keys == ["seen"]
    assert list(given) == ["0.weight", "0.old"]
    assert net[0].bias.item() == 1


def test_a_module_can_be_copied_and_pickled() -> None:
    net = Net()
    x = tp.randn(2, 3)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert tp.equal(twin(x), net(x))
        assert twin.scale is not net.scale
        assert [n for n, _ in twin.named_parameters()] == [n for n, _ in net.named_parameters()]
    tied = nn.Module()
    tied.a = nn.Parameter(tp.ones(1))
    tied.b = tied.a
    twin = copy.deepcopy(tied)
    assert twin.a is twin.b


def test_functional_call_takes_modules() -> None:
    net = Net()
    new = {name: tp.zeros_like(p) for name, p in net.named_parameters()}
    found = tp.func.functional_call(net, new, (tp.ones(1, 3),))
    assert found.abs().sum() == 0
    assert net(tp.ones(1, 3)).abs().sum() != 0
    slopes = tp.func.grad(lambda p: tp.func.functional_call(net, p, (tp.ones(1, 3),)).sum())(
        {name: p.detach() for name, p in net.named_parameters()}
    )
    net(tp.ones(1, 3)).sum().backward()
    for name, p in net.named_parameters():
        assert tp.allclose(slopes[name], p.grad)


# --- hooks around calls -------------------------------------------------------------------------


def test_forward_hooks_see_and_replace() -> None:
    module = nn.Linear(2, 2)
    x = tp.ones(1, 2)
    plain = module(x)
    with module.register_forward_pre_hook(lambda m, args: args[0] * 0):
        assert tp.allclose(module(x), module.bias.unsqueeze(0))
    with module.register_forward_hook(lambda m, args, out: out + 1):
        assert tp.allclose(module(x), plain + 1)
    assert tp.equal(module(x), plain)


def test_forward_hooks_with_keywords_and_order() -> None:
    class Add(nn.Module):
        def forward(self, x: Any, *, by: Any = 0) -> Any:
            return x + by

    module, seen = Add(), []
    module.register_forward_pre_hook(lambda m, a, k: (a, {"by": 5}), with_kwargs=True)
    module.register_forward_hook(
        lambda m, a, k, out: seen.append(("second", dict(k), out)), with_kwargs=True
    )
    module.register_forward_hook(lambda m, a, out: seen.append(("first", a, out)), prepend=True)
    assert module(1, by=2) == 6
    assert seen == [("first", (1,), 6), ("second", {"by": 5}, 6)]
    module.register_forward_pre_hook(lambda m, a, k: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="None or a tuple of new args and kwargs"):
        module(1)
    with pytest.raises(TypeError, match="expected a function, got int"):
        module.register_forward_hook(3)


def test_a_hook_that_is_always_called_hears_of_failures() -> None:
    class Fails(nn.Module):
        def forward(self) -> Any:
            raise OSError("disk")

    module, seen = Fails(), []
    module.register_forward_hook(lambda m, a, out: seen.append(out), always_call=True)
    with pytest.raises(OSError, match="disk"):
        module()
    assert seen == [None]


def test_backward_hooks_see_gradients_of_outputs_and_inputs() -> None:
    module, seen = nn.Linear(2, 1, bias=False), []
    handle = module.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    x = tp.ones(1, 2, requires_grad=True)
    (module(x) * 3).sum().backward()
    ((given,), (out,)) = seen[0]
    assert out.tolist() == [[3.0]]
    assert tp.allclose(given, module.weight.detach() * 3)
    handle.remove()
    module(x).sum().backward()
    assert len(seen) == 1


def test_backward_hooks_replace_gradients() -> None:
    module = nn.Linear(2, 1, bias=False)
    module.register_full_backward_pre_hook(lambda m, go: (go[0] * 10,))
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0,))
    x = tp.ones(1, 2, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.abs().sum() == 0
    assert module.weight.grad.tolist() == [[10.0, 10.0]]
    module.register_full_backward_hook(lambda m, gi, go: (1, 2, 3))
    with pytest.raises(RuntimeError, match="returned 3 gradients, expected 1"):
        module(x).sum().backward()


def test_backward_hooks_without_gradients_of_inputs() -> None:
    module, seen = nn.Linear(2, 1), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    module(tp.ones(1, 2)).sum().backward()
    assert seen[0][0] == (None,)
    assert seen[0][1][0].tolist() == [[1.0]]


# --- repr, containers ---------------------------------------------------------------------------


def test_repr_nests() -> None:
    text = repr(nn.Sequential(OrderedDict(a=nn.Linear(1, 2), b=nn.Sequential(nn.ReLU()))))
    assert text == (
        "Sequential(\n"
        "  (a): Linear(in_features=1, out_features=2, bias=True)\n"
        "  (b): Sequential(\n"
        "    (0): ReLU()\n"
        "  )\n"
        ")"
    )


def test_sequential_keeps_names_and_slices() -> None:
    net = nn.Sequential(OrderedDict(a=nn.Linear(1, 2), b=nn.ReLU(), c=nn.Linear(2, 1)))
    assert list(net[1:].state_dict()) == ["c.weight", "c.bias"]
    assert net[-1] is net.c
    net[0] = nn.Linear(1, 2, bias=False)
    assert list(net.state_dict()) == ["a.weight", "c.weight", "c.bias"]
    net.append(nn.Tanh())
    assert [n for n, _ in net.named_children()] == ["a", "b", "c", "3"]
    assert isinstance(net.pop(), nn.Tanh)
    del net[1]
    assert [n for n, _ in net.named_children()] == ["a", "c"]
    with pytest.raises(IndexError, match="index 5 is out of range"):
        net[5]
    with pytest.raises(TypeError, match="expected Module, got int"):
        nn.Sequential(3)


def test_module_lists_are_lists() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.ReLU()])
    layers.insert(1, nn.Tanh())
    layers += [nn.Identity()]
    layers.extend([nn.Sigmoid()])
    names = [type(m).__name__ for m in layers]
    assert names == ["Linear", "Tanh", "ReLU", "Identity", "Sigmoid"]
    assert [n for n, _ in layers.named_children()] == ["0", "1", "2", "3", "4"]
    assert [type(m).__name__ for m in layers[1:3]] == ["Tanh", "ReLU"]
    assert len(layers + [nn.ReLU()]) == 6  # noqa: RUF005 - the operator is the test
    assert layers[0] in layers
    layers.reverse()
    assert type(layers[0]).__name__ == "Sigmoid"
    with pytest.raises(NotImplementedError, match="forward"):
        layers(1)
    before = list(layers)
    with pytest.raises(TypeError, match="expected Module, got str"):
        layers.extend([nn.ReLU(), "text"])
    assert list(layers) == before


def test_module_dicts_are_dicts() -> None:
    choices = nn.ModuleDict({"relu": nn.ReLU(), "lin": nn.Linear(1, 1)})
    assert list(choices) == ["relu", "lin"]
    assert list(choices.state_dict()) == ["lin.weight", "lin.bias"]
    choices.update(tanh=nn.Tanh())
    assert "tanh" in choices
    assert isinstance(choices.pop("relu"), nn.ReLU)
    assert len(choices) == 2
    with pytest.raises(KeyError, match="already exists"):
        choices["forward"] = nn.ReLU()
    with pytest.raises(KeyError, match="nothing"):
        choices["nothing"]
    with pytest.raises(TypeError, match="expected str"):
        choices[3] = nn.ReLU()


def test_parameter_containers() -> None:
    items = nn.ParameterList([tp.ones(2), nn.Parameter(tp.zeros(1))])
    assert all(isinstance(p, nn.Parameter) for p in items)
    assert [n for n, _ in items.named_parameters()] == ["0", "1"]
    assert "Parameter of size [2], tensorplay.float32" in repr(items)
    named = nn.ParameterDict({"a": tp.ones(1)})
    named["b"] = tp.zeros(2)
    assert [n for n, _ in named.named_parameters()] == ["a", "b"]
    with pytest.raises(TypeError, match="expected Tensor, got int"):
        items.append(3)


def test_modules_leave_no_cycles_that_only_the_collector_frees() -> None:
    gc.collect()
    gc.disable()
    try:
        import weakref

        net = Net()
        net(tp.ones(1, 3)).sum().backward()
        gone = weakref.ref(net)
        del net
        assert gone() is None
    finally:
        gc.enable()

"""Training: losses step by step as PyTorch has them, and models that reach their accuracy."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import nn, optim
from tensorplay.utils.data import DataLoader, TensorDataset

STEPS = 50


@pytest.fixture(scope="module")
def torch() -> Any:
    found = pytest.importorskip("torch", reason="compares with PyTorch where it is installed")
    found.set_num_threads(1)  # small models gain nothing by more, and other tests may run
    return found


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int64)


def text() -> Any:
    """Return the licence of Python as numbers of its characters, a text that every machine has."""
    for folder in (Path(sysconfig.get_path("stdlib")), Path(__file__).parents[2]):
        for name in ("LICENSE.txt", "LICENSE"):
            if (folder / name).exists():
                letters = (folder / name).read_text(encoding="utf-8")[:6000]
                known = sorted(set(letters))
                return np.array([known.index(c) for c in letters]), len(known)
    raise AssertionError


def batches(count: int, size: int) -> list[Any]:
    order = np.random.default_rng(0)
    return [order.integers(0, count, size) for _ in range(STEPS)]


def mlp(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(64, 32), lib.Tanh(), lib.Linear(32, 10))


def normed(lib: Any) -> Any:
    return lib.Sequential(
        lib.Linear(64, 32), lib.BatchNorm1d(32), lib.GELU(), lib.LayerNorm(32), lib.Linear(32, 10)
    )


def cnn(lib: Any) -> Any:
    return lib.Sequential(
        lib.Unflatten(1, (1, 8, 8)),
        lib.Conv2d(1, 6, 3, padding=1),
        lib.GroupNorm(2, 6),
        lib.SiLU(),
        lib.MaxPool2d(2),
        lib.Conv2d(6, 8, 3),
        lib.ReLU(),
        lib.AdaptiveAvgPool2d(1),
        lib.Flatten(),
        lib.Linear(8, 10),
    )


def copied(ours: Any, theirs: Any, torch: Any) -> None:
    """Give both the same parameters."""
    state = {k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()}
    theirs.load_state_dict(state)


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda lib, p: lib.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True),
    "adam": lambda lib, p: lib.Adam(p, 1e-3),
    "adamw": lambda lib, p: lib.AdamW(p, 1e-3, amsgrad=True),
    "rmsprop": lambda lib, p: lib.RMSprop(p, 1e-3, momentum=0.5, centered=True),
    "adagrad": lambda lib, p: lib.Adagrad(p, 1e-2, lr_decay=1e-3),
}
SETUPS = [
    *[(mlp, method, None) for method in METHODS],
    (normed, "sgd", lambda s, o: s.CosineAnnealingLR(o, STEPS)),
    (normed, "adamw", lambda s, o: s.OneCycleLR(o, 1e-2, total_steps=STEPS + 1)),
    (cnn, "adam", lambda s, o: s.StepLR(o, 10, 0.5)),
]


@pytest.mark.parametrize(("make", "method", "schedule"), SETUPS)
def test_losses_on_digits_are_those_of_pytorch(
    make: Any, method: str, schedule: Any, torch: Any
) -> None:
    x, y = digits()
    tp.manual_seed(0)
    ours, theirs = make(nn), make(torch.nn)
    copied(ours, theirs, torch)
    found, expected = [], []
    for losses, lib, net, opt in (
        (found, tp, ours, optim),
        (expected, torch, theirs, torch.optim),
    ):
        optimizer = METHODS[method](opt, net.parameters())
        scheduler = None if schedule is None else schedule(opt.lr_scheduler, optimizer)
        criterion = lib.nn.CrossEntropyLoss(label_smoothing=0.05)
        for chosen in batches(len(x), 32):
            loss = criterion(net(lib.from_numpy(x[chosen])), lib.from_numpy(y[chosen]))
            optimizer.zero_grad()
            loss.backward()
            lib.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("make", [mlp, normed, cnn])
def test_digits_are_learnt_as_well_as_by_pytorch(make: Any, torch: Any) -> None:
    x, y = digits()
    tp.manual_seed(0)
    ours, theirs = make(nn), make(torch.nn)
    copied(ours, theirs, torch)
    reached = []
    for lib, net in ((tp, ours), (torch, theirs)):
        optimizer = lib.optim.AdamW(net.parameters(), 3e-3)
        order = np.random.default_rng(0)
        for _ in range(300):
            chosen = order.integers(0, 1400, 64)
            logits = net(lib.from_numpy(x[chosen]))
            loss = lib.nn.functional.cross_entropy(logits, lib.from_numpy(y[chosen]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with lib.no_grad():
            logits = net(lib.from_numpy(x[1400:]))
            loss = lib.nn.functional.cross_entropy(logits, lib.from_numpy(y[1400:])).item()
        reached.append([loss, (logits.argmax(1).numpy() == y[1400:]).mean()])
    assert reached[0][1] > 0.8
    # Six times as many steps let rounding grow: of the 397, a few near a border may differ.
    np.testing.assert_allclose(reached[0][0], reached[1][0], rtol=0.02)
    assert abs(reached[0][1] - reached[1][1]) <= 0.02


class Characters:
    """A model of the next character, for either library."""

    def __init__(self, lib: Any, kind: str, size: int) -> None:
        self.lib = lib
        self.embed = lib.Embedding(size, 16)
        self.body = (
            lib.TransformerEncoder(
                lib.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 1
            )
            if kind == "transformer"
            else getattr(lib, kind)(16, 24, batch_first=True)
        )
        self.head = lib.Linear(16 if kind == "transformer" else 24, size)
        self.all = lib.ModuleList([self.embed, self.body, self.head])

    def __call__(self, x: Any, mask: Any) -> Any:
        y = self.embed(x)
        y = (
            self.body(y, mask)
            if isinstance(self.body, self.lib.TransformerEncoder)
            else self.body(y)[0]
        )
        return self.head(y)


def character_losses(
    lib: Any, net: Any, numbers: Any, size: int, *, steps: int, rows: int, rounds: int
) -> list[float]:
    """Train on random pieces of a text, `rows` of `steps` characters a round; return the losses."""
    optimizer = lib.optim.Adam(net.all.parameters(), 5e-3)
    order = np.random.default_rng(1)
    later = lib.from_numpy(np.triu(np.full((steps, steps), -np.inf, np.float32), 1))
    losses = []
    for _ in range(rounds):
        starts = order.integers(0, len(numbers) - steps - 1, rows)
        pieces = np.stack([numbers[at : at + steps + 1] for at in starts])
        logits = net(lib.from_numpy(pieces[:, :-1].copy()), later)
        target = lib.from_numpy(pieces[:, 1:].reshape(-1).copy())
        loss = lib.nn.functional.cross_entropy(logits.reshape(-1, size), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "transformer"])
def test_losses_on_characters_are_those_of_pytorch(kind: str, torch: Any) -> None:
    numbers, size = text()
    tp.manual_seed(0)
    ours, theirs = Characters(nn, kind, size), Characters(torch.nn, kind, size)
    copied(ours.all, theirs.all, torch)
    found, expected = (
        character_losses(lib, net, numbers, size, steps=12, rows=8, rounds=STEPS)
        for lib, net in ((tp, ours), (torch, theirs))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[-1] < found[0] * 0.8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "transformer"])
def test_characters_are_learnt_as_well_as_by_pytorch(kind: str, torch: Any) -> None:
    numbers, size = text()
    tp.manual_seed(0)
    ours, theirs = Characters(nn, kind, size), Characters(torch.nn, kind, size)
    copied(ours.all, theirs.all, torch)
    ours_found, theirs_found = (
        character_losses(lib, net, numbers, size, steps=16, rows=16, rounds=250)
        for lib, net in ((tp, ours), (torch, theirs))
    )
    ours_last, theirs_last = np.mean(ours_found[-50:]), np.mean(theirs_found[-50:])
    assert ours_last < ours_found[0] * 0.75
    # Rounding grows over so many steps, so the means of the last losses are compared.
    assert ours_last == pytest.approx(theirs_last, rel=0.02)


def test_lbfgs_follows_pytorch(torch: Any) -> None:
    start = np.array([-1.2, 1.0, -0.5, 0.8])
    found = []
    for lib in (tp, torch):
        x = lib.nn.Parameter(lib.from_numpy(start.copy()))
        optimizer = lib.optim.LBFGS([x], lr=0.01, max_iter=10)

        def closure(lib: Any = lib, x: Any = x, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(5)]
        found.append(losses)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_a_model_learns_the_digits(tmp_path: Any) -> None:
    x, y = digits()
    tp.manual_seed(1)
    train = TensorDataset(tp.from_numpy(x[:1400]), tp.from_numpy(y[:1400]))
    net = normed(nn)
    optimizer = optim.AdamW(net.parameters(), 1e-2)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=8 * 22 + 1)
    loader = DataLoader(train, 64, shuffle=True, generator=tp.Generator().manual_seed(0))
    net.train()
    for _ in range(8):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            scheduler.step()
    net.eval()
    with tp.no_grad():
        right = (net(tp.from_numpy(x[1400:])).argmax(1) == tp.from_numpy(y[1400:])).float().mean()
    assert right > 0.9
    tp.save(net.state_dict(), tmp_path / "digits.tp")
    again = normed(nn).eval()
    again.load_state_dict(tp.load(tmp_path / "digits.tp"))
    assert tp.equal(again(tp.from_numpy(x[:5])), net(tp.from_numpy(x[:5])))

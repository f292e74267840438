"""Optimisers: they change parameters by their gradients."""

from __future__ import annotations

from tensorplay.optim import lr_scheduler
from tensorplay.optim.adaptive import Adagrad, Adam, AdamW, RMSprop
from tensorplay.optim.lbfgs import LBFGS
from tensorplay.optim.optimizer import Optimizer
from tensorplay.optim.sgd import SGD

__all__ = [
    "LBFGS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
]

"""Automatic differentiation."""

from __future__ import annotations

from tensorplay.autograd import forward_ad, functional, graph
from tensorplay.autograd.anomaly_mode import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from tensorplay.autograd.backward import backward, grad
from tensorplay.autograd.function import Function, once_differentiable
from tensorplay.autograd.functional import jvp
from tensorplay.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tensorplay.autograd.gradcheck import (
    GradcheckError,
    GradcheckReport,
    gradcheck,
    gradcheck_report,
    gradgradcheck,
)

__all__ = [
    "Function",
    "GradcheckError",
    "GradcheckReport",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "functional",
    "grad",
    "gradcheck",
    "gradcheck_report",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "jvp",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]

"""What people do with the parameters of a module besides training them."""

from __future__ import annotations

from tensorplay.nn.utils.gradients import clip_grad_norm_, clip_grad_value_, get_total_norm
from tensorplay.nn.utils.vectors import parameters_to_vector, vector_to_parameters
from tensorplay.nn.utils.weight_norm import remove_weight_norm, weight_norm

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "remove_weight_norm",
    "vector_to_parameters",
    "weight_norm",
]

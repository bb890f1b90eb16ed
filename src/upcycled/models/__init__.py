"""Logistic, mlp, lstm, and any torch module: everything that maps samples to logits."""

from __future__ import annotations

from upcycled.models.builtin import Lstm, logistic, lstm, mlp
from upcycled.models.prepare import KINDS, as_input, has_batch_norm, is_linear_softmax, prepare_model, takes_tokens

__all__ = [
    "KINDS",
    "Lstm",
    "as_input",
    "has_batch_norm",
    "is_linear_softmax",
    "logistic",
    "lstm",
    "mlp",
    "prepare_model",
    "takes_tokens",
]

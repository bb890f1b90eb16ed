"""Logistic, mlp, lstm, and any torch module: everything that maps samples to logits."""

from __future__ import annotations

from upcycled.models.builtin import Lstm, logistic, lstm, mlp
from upcycled.models.prepare import KINDS

__all__ = ["KINDS", "Lstm", "logistic", "lstm", "mlp"]

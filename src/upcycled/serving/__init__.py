"""Trained models at work: the folder they are kept in, and answers for new samples."""

from __future__ import annotations

from upcycled.serving.predictor import Predictor, load

__all__ = ["Predictor", "load"]

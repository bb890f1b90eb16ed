"""Mechanisms that decide what leaves a client."""

from __future__ import annotations

from upcycled.privacy.clipping import ModelClipping

__all__ = ["ModelClipping"]

"""The round loop and what surrounds it."""

from __future__ import annotations

from upcycled.runtime.history import History, Record
from upcycled.runtime.observe import Observer
from upcycled.runtime.result import Result
from upcycled.runtime.train import train

__all__ = ["History", "Observer", "Record", "Result", "train"]

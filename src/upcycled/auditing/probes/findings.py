"""What a probe found, and what it can find at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from upcycled.support.formats import significant

ROUNDING = 2.0**-20
"""Of a model's norm: models in float32 that lie closer together may differ by the rounding of their steps alone."""


@dataclass(frozen=True)
class Finding:
    """What one probe looked at, and whether that is wrong."""

    probe: str
    looked_at: str
    """What was gone through, in words."""
    wrong: str | None = None
    """What is wrong, in a sentence; None if nothing was found."""
    p_value: float | None = None
    """Of the worst test, corrected for their number; None where nothing is left to chance."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"probe": self.probe, "looked_at": self.looked_at, "wrong": self.wrong, "p_value": self.p_value}


@dataclass(frozen=True)
class Power:
    """The smallest fault of a kind that is found with probability 0.95."""

    probe: str
    fault: str
    least: float
    """How large it must be; infinite where none of this kind can be found, 0 where each is found for certain."""
    unit: str = ""
    """What ``least`` counts: "times", or "of the variance"."""

    @property
    def words(self) -> str:
        """The fault that is just large enough, in words."""
        if math.isinf(self.least):
            return "cannot be found here"
        if self.least == 0:
            return "any"
        return f"{significant(self.least, 3)} {self.unit}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; None stands for infinity."""
        least = None if math.isinf(self.least) else self.least
        return {"probe": self.probe, "fault": self.fault, "least": least, "unit": self.unit}

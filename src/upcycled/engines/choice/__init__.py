"""Which engine ``"auto"`` takes: by the seconds that a run is expected to need, from fixed constants."""

from __future__ import annotations

"""Rules that set an upcycled iteration from what was released already, one file each: free of privacy cost and tuning.

To add one: a frozen dataclass with ``depth``, ``start`` and ``move`` (see ``contract.py``) and its line here.
"""

from __future__ import annotations

from upcycled.core.rules.anderson import Anderson
from upcycled.core.rules.fedexp import FedExP
from upcycled.core.rules.hypergradient import Hypergradient
from upcycled.core.rules.repeated import Repeated
from upcycled.core.rules.trend import Trend

__all__ = ["Anderson", "FedExP", "Hypergradient", "Repeated", "Trend"]

"""Upcycled federated learning: half of all iterations without data, messages or privacy cost.

>>> import upcycled as up
>>> data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
>>> result = up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=20, progress=False)
>>> len(result.history)
20
"""

from __future__ import annotations

from typing import Any

import lazy_loader

__version__ = "0.1.0"

# The stub lists the names. They are imported when first used: torch alone takes over a second, `--help` should not.
_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _attached(name)
    near = _nearest(name)
    hint = f". Did you mean: {near!r}?" if near else ""
    raise AttributeError(f"module 'upcycled' has no attribute {name!r}{hint}")


def _nearest(name: str) -> str | None:
    """Return the public name that was meant, whatever its capitals."""
    import difflib

    known = {one.lower(): one for one in __all__}
    found = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return known[found[0]] if found else None

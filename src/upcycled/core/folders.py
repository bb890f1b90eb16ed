"""Where on this machine things are kept that can be made or fetched again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path | None:
    """Return UPCYCLED_CACHE, else the platform's folder for caches; None for a user without a home."""
    chosen = os.environ.get("UPCYCLED_CACHE")
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "upcycled"
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or home / ".cache") / "upcycled"

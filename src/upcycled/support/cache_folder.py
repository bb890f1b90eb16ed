"""Where on this machine things are kept that can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path | None:
    """Return UPCYCLED_CACHE, else the platform's folder for caches; None for a user without a home."""
    chosen = os.environ.get("UPCYCLED_CACHE")
    if chosen:
        return Path(chosen)
    try:
        Path.home()  # without one platformdirs would answer with a folder named "~"
    except RuntimeError:
        return None
    return user_cache_path("upcycled", appauthor=False, opinion=False)

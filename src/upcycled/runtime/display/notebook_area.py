"""A place in a notebook's output whose content is replaced as a run goes on."""

from __future__ import annotations

import html
import importlib
import sys
from typing import Any

from upcycled.support.formats import fixed


def in_notebook() -> bool:
    """Say whether a Jupyter kernel runs this process; IPython in a terminal is a terminal."""
    # Whoever runs in a kernel has IPython loaded: nothing is imported to find out.
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask is not None and hasattr(ask(), "kernel")


class NotebookArea:
    """Shows a bar and a line of words, always in the same place of one cell's output."""

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def is_shown(self) -> bool:
        return self._handle is not None

    def show(self, share: float, words: str) -> None:
        """Show how much is done, from 0 to 1, and what is to be said of it."""
        # By name: a kernel brings IPython, this package neither needs nor installs it.
        display = importlib.import_module("IPython.display").display
        content = {
            "text/plain": words,
            "text/html": f'<progress max="1" value="{fixed(share, 3)}"></progress> {html.escape(words)}',
        }
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

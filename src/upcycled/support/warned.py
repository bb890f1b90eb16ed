"""Warnings as values, for the place where they are shown."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_warnings(kind: type[Warning] = UserWarning) -> Iterator[list[str]]:
    """Collect warnings, once each; the list is filled at the end.

    >>> with collected_warnings() as texts:
    ...     warnings.warn("mind the gap", stacklevel=1)
    >>> texts
    ['mind the gap']
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", kind)
        yield texts
    texts.extend(dict.fromkeys(str(one.message) for one in caught))

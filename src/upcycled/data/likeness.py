"""Names of clients that are nearly the same: another spelling, a copy of a file, the export of another year."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_WORD = re.compile(r"[^\W\d_]+|\d+")
_SIGN = re.compile(r"[^\w\s.()\[\]-]")


class Likeness:
    """Names to hold others against.

    Two are alike if they differ in spaces, capitals or the signs between words, or if one has all words of the other
    and then more. Numbers are words: 'site1' is neither 'site2' nor 'site10'.

    >>> known = Likeness(["kings", "lyon", "site1"])
    >>> [known.nearest(name) for name in ("Kings", "lyon_2026", "Lyon (copy)", "site2", "site10")]
    ['kings', 'lyon', 'lyon', None, None]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._whole: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        for name in self._names:
            *beginnings, whole = _spellings(name)
            self._whole.setdefault(whole, name)
            for part in beginnings:
                self._begun.setdefault(part, name)

    def nearest(self, name: str) -> str | None:
        """Return a name that another is nearly the same as; None where there is none."""
        spellings = _spellings(name)
        found = next((self._whole[one] for one in reversed(spellings) if one in self._whole), None)
        return self._begun.get(spellings[-1]) if found is None else found

    @property
    def groups(self) -> list[list[str]]:
        """Those of the names that are nearly the same as others, together."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._names:
            found[next(one for one in _spellings(name) if one in self._whole)].append(name)
        return [alike for alike in found.values() if len(alike) > 1]


def _spellings(name: str) -> tuple[str, ...]:
    """Return how a name's first words are compared, then its first two, and all of them last.

    >>> _spellings("St. Gallen (2)"), _spellings(" 7-1"), _spellings("A+")
    (('st', 'stgallen', 'stgallen2'), ('7-1',), ('a+',))
    """
    plain = " ".join(name.split()).casefold()
    words = _WORD.findall(plain)
    # Where a number comes first, or a sign means something, signs are no ornament: '-1' is not '1', and 'A+' not 'A-'.
    if not words or words[0].isdigit() or _SIGN.search(plain):
        return (plain,)
    found, joined = [], ""
    for word in words:
        joined += f" {word}" if word.isdigit() and joined[-1:].isdigit() else word
        found.append(joined)
    return tuple(found)

"""What is allowed in data and yet is often a slip: names that are nearly the same, copies, empty classes.

Names of clients that are nearly the same: another spelling, a copy of a file, the export of another year.

What is allowed in data and yet is often a slip, each in one sentence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from upcycled._utils.formats import count
from upcycled.data.federated import FederatedData
from upcycled.data.splits import leaders, row_hashes

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


_LISTED = 5
_WITH_REAL_NOISE = (
    "a run with real noise on private data does not look for them: they may be trained on and held out at once, and "
    "its epsilon is for one record, not for all its copies"
)


def hints(data: FederatedData, *, is_repaired: bool = False) -> list[str]:
    """Return sentences about classes nobody has, clients with nearly the same name, and samples that occur twice.

    Args:
        data: as it was read.
        is_repaired: whether it was read as private data are, whose splits look for no copies.

    >>> hints(FederatedData.from_arrays([[[0.1], [0.2]]], [[1, 2]]))
    ['no sample has the label 0 of the 3 classes (labels count from 0)']
    """
    return [*_empty_classes(data), *similar_names(data.client_names or ()), *_copies(data, is_repaired)]


def _empty_classes(data: FederatedData) -> list[str]:
    if data.targets != "classes":
        return []
    parts = [part.y for part in (data.train, data.test, data.validation) if part is not None]
    counts = sum(np.bincount(y, minlength=data.num_classes) for y in parts)
    empty = np.flatnonzero(np.asarray(counts) == 0)
    if not empty.size:
        return []
    more = f" and {empty.size - _LISTED} more" if empty.size > _LISTED else ""
    listed = ", ".join(str(label) for label in empty[:_LISTED])
    return [f"no sample has the label {listed}{more} of the {data.num_classes} classes (labels count from 0)"]


def similar_names(names: Iterable[str]) -> list[str]:
    """Return a sentence about clients whose names are nearly the same, where there are some."""
    groups = Likeness(names).groups
    if not groups:
        return []
    more = f" (and {len(groups) - 1} more such names)" if len(groups) > 1 else ""
    listed = ", ".join(repr(name) for name in groups[0][:_LISTED])
    return [f"{listed} are different clients{more}, though their names are nearly the same"]


def _copies(data: FederatedData, is_repaired: bool) -> list[str]:
    if data.has_copies is False and not is_repaired:
        return []
    own = row_hashes(data.train.x)
    equal = copies = len(own) - len(np.unique(own))
    if not data.has_copies:
        leader = leaders(own[:, None])  # equal hashes are equal samples, and shorter
        copies = 0 if leader is None else int(np.count_nonzero(leader != np.arange(len(own))))
    found = []
    of = f"of {count(len(own))} training samples are"
    if copies:
        together = "" if is_repaired else "copies are held out together, but "
        found.append(f"{count(copies)} {of} copies of another; {together}{_WITH_REAL_NOISE}")
    if equal > copies:
        found.append(
            f"{count(equal - copies)} {of} equal to another, too many to be taken for copies: each is held out by "
            "itself"
        )
    for title, part in (("test", data.test), ("validation", data.validation)):
        known = 0 if part is None else int(np.count_nonzero(np.isin(row_hashes(part.x), own)))
        if part is not None and known:
            found.append(f"{count(known)} of {count(part.num_rows)} {title} samples are equal to a training sample")
    return found

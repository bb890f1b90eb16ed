"""What is allowed in data and yet is often a slip, each in one sentence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from upcycled.data.copies import leaders, row_hashes
from upcycled.data.federated import FederatedData
from upcycled.data.likeness import Likeness
from upcycled.support.formats import count

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

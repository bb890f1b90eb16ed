"""Facts about data that are said and not read off: what everybody may know, whatever the samples are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from upcycled.core.errors import COUNT, InputError, Limits, unknown
from upcycled.core.objective import TargetKind

CLASSES = Limits(at_least=2, integer=True)


@dataclass(frozen=True)
class Declared:
    """What a user says of data before anybody looks at them; None is read off."""

    num_classes: int | None = None
    label_names: tuple[str, ...] | None = None
    vocabulary: int | None = None
    """How many token ids there are: features are then ids from 0 on."""
    targets: TargetKind = "classes"
    repair: bool = False
    """Whether values that do not fit count as 0, so that data of any content load alike."""

    @property
    def classes(self) -> int | None:
        return self.num_classes if self.label_names is None else len(self.label_names)


def declare(
    num_classes: int | None = None,
    label_names: Sequence[str] | None = None,
    vocabulary: int | None = None,
    repair: bool = False,
    targets: TargetKind = "classes",
) -> Declared:
    """Return the declarations, checked against one another."""
    count = None if num_classes is None else CLASSES.check("num_classes", num_classes)
    names = unique_names("label_names", label_names)
    if names is not None and count is not None and len(names) != count:
        raise InputError(f"has {len(names)} names, but there are {count} classes", field="label_names")
    if names is not None and len(names) < 2:
        raise InputError(field="label_names", value=list(names), must="the names of two classes or more")
    ids = None if vocabulary is None else COUNT.check("vocabulary", vocabulary)
    if targets not in ("classes", "labels", "numbers"):
        raise unknown("targets", targets, ["classes", "labels", "numbers"])
    if targets != "classes" and (count is not None or names is not None):
        what = "num_classes" if names is None else "label_names"
        raise InputError(
            field=what, value=count if names is None else list(names), must=f"left out: targets are {targets}"
        )
    return Declared(count, names, ids, targets, bool(repair))


def unique_names(field: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names, or refuse one that occurs twice."""
    if names is None:
        return None
    result = tuple(names)
    if len(set(result)) != len(result):
        name, count = Counter(result).most_common(1)[0]
        raise InputError(f"holds {name!r} {count} times, but every name must be unique", field=field)
    return result

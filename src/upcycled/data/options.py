"""The options of data, declared once: for the constructors of ``FederatedData``, for ``load`` and for config files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

from upcycled.core.errors import COUNT, FRACTION, SEED, InputError, Limits, check_fields, unknown
from upcycled.core.objective import TargetKind

CLASSES = Limits(at_least=2, integer=True)
TARGETS: tuple[TargetKind, ...] = ("classes", "labels", "numbers")


class DataKeywords(TypedDict, total=False):
    """The fields of :class:`DataOptions` as keyword arguments."""

    num_classes: int | None
    label_names: Sequence[str] | None
    vocabulary: int | None
    targets: TargetKind | None
    client_names: Sequence[str] | None
    test_fraction: float
    seed: int
    repair: bool
    public: bool


@dataclass(frozen=True)
class DataOptions:
    """What a user declares about data before anything is read; a fact that is None is inferred from the samples.

    A new option is a field here and a keyword in :class:`DataKeywords`; a config file's [data] tables take it from
    here.

    >>> DataOptions(label_names=("no", "yes")).classes, DataOptions().kind
    (2, 'classes')
    """

    num_classes: Annotated[int, CLASSES] | None = None
    """The number of classes; one more than the largest label if left out."""
    label_names: tuple[str, ...] | None = None
    """The names of the classes, which labels may be written as."""
    vocabulary: Annotated[int, COUNT] | None = None
    """The number of token ids: features are then ids from 0 on."""
    targets: TargetKind | None = None
    """``"classes"``, ``"numbers"`` for regression, or ``"labels"``, several a sample, each 0 or 1.

    None is what an .npz says of itself, else classes.
    """
    client_names: tuple[str, ...] | None = None
    """The names of the clients 0, 1, 2, ..."""
    test_fraction: Annotated[float, FRACTION] = 0.0
    """The part of every client's samples to hold out, as :meth:`FederatedData.split` does."""
    seed: Annotated[int, SEED] = 0
    """The seed of ``test_fraction``."""
    repair: bool = False
    """Whether invalid values count as 0 (labels as class 0), so that data of any content load alike."""
    public: bool = False
    """Whether everybody may know the samples."""

    def __post_init__(self) -> None:
        for field in ("label_names", "client_names"):
            names = getattr(self, field)
            if names is not None:
                object.__setattr__(self, field, _unique(field, names))
        check_fields(self, of="")
        count, names = self.num_classes, self.label_names
        if names is not None and count is not None and len(names) != count:
            raise InputError(f"has {len(names)} names, but there are {count} classes", field="label_names")
        if names is not None and len(names) < 2:
            raise InputError(field="label_names", value=list(names), must="the names of two classes or more")
        if self.kind not in TARGETS:
            raise unknown("targets", self.kind, TARGETS)
        if self.kind != "classes" and self.classes is not None:
            what, value = ("num_classes", count) if names is None else ("label_names", list(names))
            raise InputError(field=what, value=value, must=f"left out: targets are {self.kind}")

    @classmethod
    def of(cls, keywords: DataKeywords) -> DataOptions:
        """Return the options that keyword arguments give."""
        return cls(**keywords)  # type: ignore[arg-type]  # sequences become tuples

    @property
    def kind(self) -> TargetKind:
        """What a sample's target is."""
        return "classes" if self.targets is None else self.targets

    @property
    def classes(self) -> int | None:
        """How many classes there are, where that was declared."""
        return self.num_classes if self.label_names is None else len(self.label_names)


def _unique(field: str, names: Sequence[str]) -> tuple[str, ...]:
    result = tuple(names)
    if len(set(result)) != len(result):
        name, count = Counter(result).most_common(1)[0]
        raise InputError(f"holds {name!r} {count} times, but every name must be unique", field=field)
    return result

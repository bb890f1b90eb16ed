"""What a federated data set looks like, in a dozen numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from upcycled._utils.formats import Overview, count, fixed, shortened
from upcycled.core.objective import TargetKind
from upcycled.core.vectors import Ints, Shards

_BLOCK_VALUES = 1 << 20
_CLASSES_SHOWN = 20
_LONGEST_NAME = 24
FROM_DATA = " (from the data)"
"""Said behind a public fact that was not given."""


@dataclass(frozen=True)
class Description:
    """Sizes and labels of the training part; sd is the population's, as in the paper's table.

    ``label_skew`` is the mean over clients of the total-variation distance between a client's label
    distribution and the pooled one: 0 when all clients look alike, towards 1 when each has rare classes only.
    """

    clients: int
    samples: int
    mean: float
    sd: float
    min: int
    max: int
    test_samples: int
    validation_samples: int
    features: tuple[int, ...]
    feature_type: str
    classes: int
    class_counts: tuple[int, ...]
    label_skew: float | None
    label_names: tuple[str, ...] | None = None
    inferred: tuple[str, ...] = ()
    """Facts that were read off the samples."""
    targets: TargetKind = "classes"
    """What ``classes`` counts: numbers or labels of a target have no counts and no skew."""

    def rows(self) -> list[tuple[str, str]]:
        """Return (what, value) pairs for a table."""
        labels = self.label_names or tuple(str(i) for i in range(self.classes))
        first = zip(labels[:_CLASSES_SHOWN], self.class_counts, strict=False)
        counts = [f"{shortened(name, _LONGEST_NAME)}: {count(n)}" for name, n in first]
        if len(self.class_counts) > _CLASSES_SHOWN:
            counts.append(f"and {len(self.class_counts) - _CLASSES_SHOWN} more")
        mean, sd = fixed(self.mean, 1), fixed(self.sd, 1)
        rows = [
            ("clients", count(self.clients)),
            ("training samples", count(self.samples)),
            ("per client", f"mean {mean}, sd {sd}, min {count(self.min)}, max {count(self.max)}"),
            ("test samples", count(self.test_samples)),
            ("validation samples", count(self.validation_samples)),
            ("one sample", f"{' x '.join(map(str, self.features))} {self.feature_type}"),
        ]
        if self.targets == "classes":
            rows += [("classes", str(self.classes)), ("samples per class", "; ".join(counts))]
            rows += [("label skew", fixed(self.label_skew, 3))]
        else:
            rows += [("one target", f"{self.classes} {self.targets}")]
        rows = [(what, value + self._from_data(what)) for what, value in rows]
        return rows if self.validation_samples else [row for row in rows if row[0] != "validation samples"]

    def _from_data(self, what: str) -> str:
        """Return a word on where a fact comes from, if it was read off the samples."""
        fact = {"per client": "sizes", "one sample": "dtype", "classes": "classes"}.get(what)
        return FROM_DATA if fact in self.inferred else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(what) for what, _ in rows)
        return "\n".join(f"{what:<{width}}  {value}" for what, value in rows)

    def __repr__(self) -> str:
        return f"<Description of {count(self.clients)} clients with {count(self.samples)} training samples>"

    def _repr_html_(self) -> str:
        return Overview("What the data look like", tuple(self.rows())).html


def describe(
    train: Shards,
    test: Shards | None,
    validation: Shards | None,
    num_classes: int,
    label_names: tuple[str, ...] | None = None,
    inferred: Iterable[str] = (),
    targets: TargetKind = "classes",
) -> Description:
    sizes = train.sizes
    counts, skew = label_statistics(train, num_classes) if targets == "classes" else (np.zeros(0, np.int64), None)
    return Description(
        clients=train.num_clients,
        samples=train.num_rows,
        mean=float(sizes.mean()),
        sd=float(sizes.std()),
        min=int(sizes.min()),
        max=int(sizes.max()),
        test_samples=0 if test is None else test.num_rows,
        validation_samples=0 if validation is None else validation.num_rows,
        features=tuple(int(n) for n in train.x.shape[1:]),
        feature_type=str(train.x.dtype),
        classes=num_classes,
        class_counts=tuple(int(n) for n in counts),
        label_skew=skew,
        label_names=label_names,
        inferred=tuple(sorted(inferred)),
        targets=targets,
    )


def label_statistics(train: Shards, num_classes: int) -> tuple[Ints, float]:
    """Return the pooled count of every class, and the label skew.

    >>> y = np.array([0, 0, 1, 1])
    >>> counts, skew = label_statistics(Shards(np.zeros((4, 1)), y, np.array([0, 2, 4])), 2)
    >>> counts.tolist(), skew  # each client has one class, the pool half of each
    ([2, 2], 0.5)
    """
    pooled = np.zeros(num_classes, dtype=np.int64)
    # Blocks of clients: a table of all clients by all classes could be larger than the data.
    step = max(1, _BLOCK_VALUES // num_classes)
    starts = range(0, train.num_clients, step)
    for start in starts:
        pooled += _counts(train, start, step, num_classes).sum(axis=0)
    share = pooled / pooled.sum()
    distance = 0.0
    for start in starts:
        counts = _counts(train, start, step, num_classes)
        own = counts / counts.sum(axis=1, keepdims=True)
        distance += float(0.5 * np.abs(own - share).sum())
    return pooled, distance / train.num_clients


def _counts(train: Shards, start: int, step: int, num_classes: int) -> Ints:
    offsets = train.offsets[start : start + step + 1]
    labels = train.y[int(offsets[0]) : int(offsets[-1])]
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    counts = np.bincount(owner * num_classes + labels, minlength=(len(offsets) - 1) * num_classes)
    return counts.reshape(-1, num_classes)

"""What happened in each iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, overload

import numpy as np

from upcycled._utils.extras import needs
from upcycled._utils.formats import Overview, count, fixed, score_digits, score_title, shortened
from upcycled.core.upcycling import Kind
from upcycled.core.vectors import Ints
from upcycled.training import plots

ENDS_SHOWN = 3
"""Records of its beginning and of its end by which a history is shown."""
METRICS_SHOWN = 3


def _nobody() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Record:
    """One iteration. Bytes are the vectors' float32 payload; seconds are the iteration's own, without scoring.

    What a private run keeps to its holder is None (see :mod:`upcycled.training.publication`).
    """

    iteration: int
    kind: Kind
    data_round: int
    """Data rounds done so far."""
    accuracy: float | None
    """Test accuracy; of the personal models where the algorithm has them. None when not evaluated."""
    loss: float | None
    global_accuracy: float | None
    """Test accuracy of the global model; the same as ``accuracy`` without personal models."""
    global_loss: float | None
    coefficient: float | None
    """The coefficient of an upcycled iteration, where its rule is a scalar one."""
    bytes_up: int | None
    bytes_down: int | None
    messages: int | None
    """Downloads and uploads."""
    gradient_steps: int | None
    """Minibatch gradients computed by all clients together."""
    seconds: float | None
    eval_seconds: float | None
    clients: Ints | None = field(default_factory=_nobody, repr=False)
    """Who took part."""
    client_steps: Ints | None = field(default_factory=_nobody, repr=False)
    """K_i of each of them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else was measured of the iteration, by name: the run's ``metrics`` where it was evaluated, but for those
    that are not defined there, and what callbacks measure (see ``Probe.measure``). Of an algorithm with personal models
    metrics are theirs, and ``global_...`` the global model's."""


SCALARS = tuple(f.name for f in fields(Record) if f.name not in ("clients", "client_steps", "metrics"))


@dataclass(frozen=True)
class History:
    """The records of a run, in order."""

    records: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> History: ...
    def __getitem__(self, place: int | slice) -> Record | History:
        found = self.records[place]
        return History(found) if isinstance(found, tuple) else found

    def column(self, name: str) -> list[Any]:
        """Return one scalar field, or one metric, over all records; None where it was not measured."""
        if name in SCALARS:
            return [getattr(record, name) for record in self.records]
        return [record.metrics.get(name) for record in self.records]

    def total(self, name: str) -> float | None:
        """Return the sum of one scalar field over all records; None where one of them keeps it to its holder."""
        values = self.column(name)
        return None if None in values else sum(values)

    def last_scored(self) -> Record | None:
        """Return the last record with scores."""
        return next((r for r in reversed(self.records) if r.loss is not None), None)

    def rows(self) -> list[dict[str, Any]]:
        """Return the scalar fields and the metrics as one dict per record."""
        return [{name: getattr(record, name) for name in SCALARS} | dict(record.metrics) for record in self.records]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of the scalar fields (needs the extra ``data``)."""
        needs("to_frame", "pandas")
        import pandas

        rows = self.rows()
        return pandas.DataFrame(rows, columns=list(dict.fromkeys([*SCALARS, *(name for row in rows for name in row)])))

    def plot(self, metric: str | None = None, *, against: str = "data_round", ax: Any = None) -> Any:
        """Draw a metric over the run (needs the extra ``report``).

        Args:
            metric: ``"accuracy"``, ``"loss"`` or the name of another one that was measured; left out, the first of
                them that was.
            against: ``"data_round"``, which is what costs, or ``"iteration"``.
            ax: matplotlib's axes to draw on; left out, those of a new figure.

        Returns:
            The axes.

        Raises:
            InputError: in one sentence, if that was not measured.
        """
        found = plots.chosen(metric, [self], [None])
        lines = [(None, [plots.points(self, found, against)])]
        return plots.draw(ax, plots.titled(found, None), against, lines)

    @property
    def overview(self) -> Overview:
        """Its first and its last records."""
        names = [name for name in plots.measured(self) if not name.startswith("global_")]
        shown = names[: METRICS_SHOWN + 2]
        places = range(len(self))
        if len(self) > 2 * ENDS_SHOWN + 1:
            places_shown: list[int | None] = [*places[:ENDS_SHOWN], None, *places[-ENDS_SHOWN:]]
        else:
            places_shown = [*places]
        rows = tuple(
            ("…", *[""] * (2 + len(shown))) if place is None else _cells(self.records[place], shown)
            for place in places_shown
        )
        head = ("iteration", "kind", "data round", *(shortened(score_title(name), 20) for name in shown))
        return Overview(f"History of {count(len(self))} iterations", rows, head if rows else ())

    def __repr__(self) -> str:
        return f"<History of {count(len(self))} iterations>"

    def __str__(self) -> str:
        return self.overview.text

    def _repr_html_(self) -> str:
        return self.overview.html


def _cells(record: Record, names: list[str]) -> tuple[str, ...]:
    values = [getattr(record, name) if name in SCALARS else record.metrics.get(name) for name in names]
    scores = (fixed(value, *score_digits(name)) for name, value in zip(names, values, strict=True))
    return (count(record.iteration), record.kind, count(record.data_round), *scores)

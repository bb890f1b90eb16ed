"""What a command will cost, before it starts: runs that are missing, and core-seconds from measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from upcycled.experiments.paper.choose import Cell
from upcycled.experiments.paper.spec import Spec
from upcycled.experiments.paper.store import Sources, Store
from upcycled.runtime.many import train_many
from upcycled.runtime.result import Result

SAFE_LR = 1e-3
"""With a small step nothing diverges, and the work is the same."""

Kind = tuple[str, str, str | None, bool]
"""Runs of one kind cost the same for each sample and epoch: data set, algorithm, mechanism, whose solver."""


@dataclass(frozen=True)
class Budget:
    """Runs to do, and what they are expected to take on one core."""

    runs: int
    seconds: float
    calibrated: int
    """Kinds of runs that were measured just now; others have a rate from cells that are there."""

    def __str__(self) -> str:
        if not self.runs:
            return "nothing to do: all runs are there"
        times = (
            f"{self.seconds / 60:.1f} core-minutes" if self.seconds < 7200 else f"{self.seconds / 3600:.1f} core-hours"
        )
        source = f" ({self.calibrated} short runs measured just now)" if self.calibrated else ""
        return f"{self.runs} runs to do, about {times}{source}"


def budget(store: Store, sources: Sources, missing: Sequence[Spec], known: Iterable[Spec]) -> Budget:
    """Estimate missing runs; ``known`` are specs that may be there and tell a rate."""
    rates = measured(known, store, sources) if missing else {}
    needed = {kind_of(spec): spec for spec in missing if kind_of(spec) not in rates}
    for kind, spec in needed.items():
        rates[kind] = calibrate(spec, sources)
    seconds = sum(rates[kind_of(spec)] * sample_epochs(spec, sources) for spec in missing)
    return Budget(len(missing), seconds, len(needed))


def kind_of(spec: Spec) -> Kind:
    """Return what a run's rate depends on."""
    return spec.data, spec.algorithm, spec.mechanism, spec.lr is None


def sample_epochs(spec: Spec, sources: Sources) -> float:
    """Return how many samples all clients are expected to pass over; a straggler makes half the epochs on average."""
    samples = sources.data(spec.data, "test").train.num_rows * spec.participation
    return spec.data_rounds * samples * spec.epochs * (1 - spec.stragglers / 2)


def measured(known: Iterable[Spec], cell: Cell, sources: Sources) -> dict[Kind, float]:
    """Return seconds for each sample and epoch, from cells that are there."""
    seconds: dict[Kind, float] = {}
    work: dict[Kind, float] = {}
    for spec in known:
        found = cell(spec)
        if found is not None and found.get("seconds"):
            kind = kind_of(spec)
            seconds[kind] = seconds.get(kind, 0.0) + found["seconds"] + found.get("eval_seconds", 0.0)
            work[kind] = work.get(kind, 0.0) + sample_epochs(spec, sources)
    return {kind: seconds[kind] / work[kind] for kind in seconds}


def calibrate(spec: Spec, sources: Sources) -> float:
    """Measure two data rounds of two epochs; the first one warms up and is not counted."""
    short = replace(spec, iterations=2, rho=None, stragglers=0.0)
    if spec.lr is not None:
        short = replace(short, lr=SAFE_LR, epochs=2)
    arguments = short.arguments(sources.data(spec.data, "test"), sources.model(spec.data), short.iterations)
    result = train_many([arguments], progress=False)[0]
    if not isinstance(result, Result):
        raise result.error
    return result.history[-1].seconds / sample_epochs(replace(short, iterations=1), sources)

"""What a command will cost, before it starts: runs that are missing, and core-seconds from measured rates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from studies.paper.sources import Sources, Store
from studies.paper.spec import Spec
from upcycled.algorithms import ALGORITHMS
from upcycled.training.executor import train_many
from upcycled.training.result import Result

FEW = 0.1
"""The share of clients in a measured round of an LSTM."""

SAFE_LR = 1e-3
"""With a small step nothing diverges, and the work is the same."""

NEWEST = 16
"""Cells of a kind that its rate is the median of: older ones may be from a busier day, or another machine."""

Kind = tuple[str, str, bool, str | None, bool]
"""Runs of one kind cost the same for each sample and epoch: data, model, inner loop or not, mechanism, whose solver."""


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


def budget(store: Store, sources: Sources, missing: Sequence[Spec]) -> Budget:
    """Estimate missing runs, from the cells that are there or from short runs."""
    rates = measured(store, sources, {spec.data for spec in missing})
    needed = {kind_of(spec, sources): spec for spec in missing if kind_of(spec, sources) not in rates}
    for kind, spec in needed.items():
        rates[kind] = calibrate(spec, sources)
    seconds = sum(rates[kind_of(spec, sources)] * sample_epochs(spec, sources) for spec in missing)
    return Budget(len(missing), seconds, len(needed))


def kind_of(spec: Spec, sources: Sources) -> Kind:
    """Return what a run's rate depends on; algorithms differ by pFedMe's inner loop only."""
    data = sources.settings.data[spec.data]
    return data.source, data.model, ALGORITHMS[spec.algorithm]().is_personal, spec.mechanism, spec.lr is None


def sample_epochs(spec: Spec, sources: Sources) -> float:
    """Return how many samples all clients are expected to pass over; a straggler makes half the epochs on average."""
    samples = sources.data(spec.data, "test").train.num_rows * spec.participation
    return spec.data_rounds * samples * spec.epochs * (1 - spec.stragglers / 2)


def measured(store: Store, sources: Sources, data: Collection[str]) -> dict[Kind, float]:
    """Return seconds for each sample and epoch, from the newest cells of some data sets."""
    rates: dict[Kind, list[float]] = {}
    for spec, found in store.known(data):
        if found.get("seconds"):
            taken = found["seconds"] + found.get("eval_seconds", 0.0)
            rates.setdefault(kind_of(spec, sources), []).append(taken / sample_epochs(spec, sources))
    return {kind: median(found[-NEWEST:]) for kind, found in rates.items()}


def calibrate(spec: Spec, sources: Sources) -> float:
    """Measure two data rounds, of which the first warms up and is not counted."""
    short = replace(spec, iterations=2, rho=None, stragglers=0.0)
    if sources.settings.data[spec.data].model == "lstm":
        short = replace(short, participation=FEW)
    if spec.lr is not None:
        short = replace(short, lr=SAFE_LR, epochs=1)
    data = sources.data(spec.data, "test")
    result = train_many([short.arguments(data, sources.model(spec.data), short.iterations)], progress=False)[0]
    if result.error is not None:
        raise result.error
    assert isinstance(result, Result)
    last = result.history[-1]
    assert last.seconds is not None
    assert last.clients is not None
    return last.seconds / (float(data.sizes[last.clients].sum()) * short.epochs)

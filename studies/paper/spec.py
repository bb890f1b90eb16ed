"""One run of the reproduction: what it is called among the cells, and what it asks of ``train``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from studies.paper.settings import Method, Settings
from upcycled.algorithms import ALGORITHMS
from upcycled.core.errors import InputError
from upcycled.core.solvers import LocalSGD
from upcycled.data import FederatedData
from upcycled.privacy import MECHANISMS
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.training import Result

DELTA = 1e-5
"""Of all epsilons that are kept with a run."""

LISTS = ("rounds", "accuracies", "losses", "epsilon", "paper_epsilon")
"""What a cell has several numbers of."""

Values = tuple[tuple[str, float], ...]
"""Names and numbers (or True), as part of a spec."""


@dataclass(frozen=True)
class Spec:
    """A run, completely: equal specs are the same run, whichever table asks for it."""

    data: str
    part: str
    """What it is for.

    "test", "time", and "seeds", of which only the end is kept: trained on all training samples. "validation": on what a
    choice leaves.
    """
    algorithm: str
    own: Values
    lr: float | None
    """None for mechanisms that bring their own solver."""
    rho: float | None
    iterations: int
    stragglers: float
    participation: float
    epochs: int
    batch_size: int
    momentum: float
    seed: int
    mechanism: str | None = None
    noise: Values = ()

    @property
    def key(self) -> str:
        """The name of the run's cell: all that makes the run."""
        words = [self.data, self.part, self.algorithm, *(f"{name}={value:g}" for name, value in self.own)]
        words += ["lr=own" if self.lr is None else f"lr={self.lr:g}"]
        words += ["vanilla" if self.rho is None else f"rho={self.rho:g}", f"T={self.iterations}"]
        words += [f"stragglers={self.stragglers:g}", f"clients={self.participation:g}", f"epochs={self.epochs}"]
        words += [f"batch={self.batch_size}", f"momentum={self.momentum:g}"]
        if self.mechanism is not None:
            words += [self.mechanism, *(f"{name}={value:g}" for name, value in self.noise)]
        return "|".join([*words, f"seed={self.seed}"])

    @classmethod
    def from_key(cls, key: str) -> Spec:
        """Return the run that a cell is about.

        >>> run = "syn_iid|test|fedavg|lr=0.1|vanilla|T=80"
        >>> key = run + "|stragglers=0.9|clients=0.3|epochs=10|batch=32|momentum=0.5|seed=0"
        >>> Spec.from_key(key).key == key, Spec.from_key(key).iterations
        (True, 80)
        """
        data, part, algorithm, *words = key.split("|")
        at = next(i for i, word in enumerate(words) if word.startswith("lr="))
        lr, rho, *counts = words[at : at + 8]
        private = words[at + 8 : -1]
        of = dict(word.split("=") for word in counts)
        return cls(
            data=data,
            part=part,
            algorithm=algorithm,
            own=_values(words[:at]),
            lr=None if lr == "lr=own" else float(lr[3:]),
            rho=None if rho == "vanilla" else float(rho[4:]),
            iterations=int(of["T"]),
            stragglers=float(of["stragglers"]),
            participation=float(of["clients"]),
            epochs=int(of["epochs"]),
            batch_size=int(of["batch"]),
            momentum=float(of["momentum"]),
            seed=int(words[-1][5:]),
            mechanism=private[0] if private else None,
            noise=_values(private[1:]),
        )

    @property
    def data_rounds(self) -> int:
        """How many iterations touch data."""
        return self.iterations if self.rho is None else -(-self.iterations // 2)

    def arguments(self, data: FederatedData, model: Mapping[str, Any], score_every: int) -> dict[str, Any]:
        """Return ``train``'s arguments; scores are taken after every so many data rounds and what follows them."""
        made = ALGORITHMS[self.algorithm]
        return {
            "data": data,
            **model,
            "algorithm": made(**dict(self.own)),
            "upcycle": self.rho,
            "iterations": self.iterations,
            "local": self._local(),
            "participation": self.participation,
            "stragglers": self.stragglers,
            "privacy": None if self.mechanism is None else MECHANISMS[self.mechanism](**dict(self.noise)),
            "seed": self.seed,
            "eval_every": score_every * (1 if self.rho is None else 2),
        }

    def _local(self) -> LocalSGD | None:
        if self.lr is None:
            return None
        return LocalSGD(lr=self.lr, momentum=self.momentum, epochs=self.epochs, batch_size=self.batch_size)


def usual(settings: Settings, method: Method, **rest: Any) -> Spec:
    """Return a run of a method with what all runs have in common, unless the rest says otherwise."""
    common = {
        "algorithm": method.algorithm,
        "participation": settings.participation,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "momentum": settings.momentum if method.momentum is None else method.momentum,
    }
    return Spec(**{**common, **rest})


def check_cell(key: str, cell: Mapping[str, Any]) -> None:
    """Raise ValueError where a line of a file of cells cannot be what `brief` or `full` kept of a run, or its error.

    >>> check_cell("hello", {"accuracy": 0.5, "loss": 1.0})
    Traceback (most recent call last):
    ...
    ValueError: 'hello' is no run's key
    """
    try:
        is_run = _is_possible(Spec.from_key(key))
    except (ValueError, KeyError, AttributeError, StopIteration):
        is_run = False
    if not is_run:
        raise ValueError(f"{key!r} is no run's key")
    if isinstance(cell.get("error"), str):
        return
    if "accuracy" not in cell or "loss" not in cell:
        raise ValueError("a cell has an accuracy and a loss, or an error")
    for name, value in cell.items():
        are_numbers = all(map(_is_number, value)) if name in LISTS and isinstance(value, list) else _is_number(value)
        if not are_numbers:
            raise ValueError(f"{name} is {value!r}")


def _is_possible(spec: Spec) -> bool:
    """Whether somebody can have carried a run out: what is counted of it later is not zero."""
    is_some_work = spec.iterations > 0 and spec.participation > 0 and spec.epochs > 0
    return spec.algorithm in ALGORITHMS and is_some_work and 0 <= spec.stragglers <= 1


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (float, int) and math.isfinite(value))


def _values(words: Sequence[str]) -> Values:
    return tuple((name, float(value)) for name, value in (word.split("=") for word in words))


def brief(result: Result) -> dict[str, Any]:
    """Return what is kept of a run whose end is all that counts."""
    last = result.history.last_scored()
    assert last is not None
    return {
        "accuracy": rounded(last.accuracy),
        "loss": rounded(last.loss),
        "seconds": rounded(sum(result.history.column("seconds")), 3),
    }


def full(result: Result) -> dict[str, Any]:
    """Return what is kept of a table's run: its end, its curve over data rounds, what it cost."""
    last = result.history.last_scored()
    assert last is not None
    scored = {record.data_round: record for record in result.history if record.accuracy is not None}
    return {
        "accuracy": last.accuracy,
        "loss": rounded(last.loss, 8),
        "global_accuracy": last.global_accuracy,
        "seconds": rounded(sum(result.history.column("seconds"))),
        "eval_seconds": rounded(sum(result.history.column("eval_seconds")), 3),
        "bytes": sum(result.history.column("bytes_up")) + sum(result.history.column("bytes_down")),
        "rounds": list(scored),
        "accuracies": [rounded(record.accuracy, 4) for record in scored.values()],
        "losses": [rounded(record.loss, 4) for record in scored.values()],
        **({} if result.privacy is None else _spent(result.privacy)),
    }


def _spent(ledger: Ledger) -> dict[str, Any]:
    """Return proven epsilons and, where it states some, the paper's: the mean over clients, and the worst."""
    found = {"epsilon": ledger.epsilon(DELTA)}
    with suppress(InputError):  # the paper has no number for some mechanisms
        found["paper_epsilon"] = ledger.paper_epsilon(DELTA)
    return {name: [rounded(float(values.mean())), rounded(float(values.max()))] for name, values in found.items()}


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Return so many significant digits; None for what is not a finite number, which JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")

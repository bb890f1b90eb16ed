"""Which tables a config file may have, and how the kind of each is chosen: one place to look things up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from upcycled.algorithms import ALGORITHMS
from upcycled.core.coefficients import (
    Anderson,
    Auto,
    Constant,
    Decaying,
    FedExP,
    Hypergradient,
    LambdaHalf,
    Proximal,
    Trend,
)
from upcycled.core.cohort import Participation
from upcycled.core.errors import COUNT, NOT_NEGATIVE, InputError, suggest
from upcycled.core.sampler import SAMPLERS
from upcycled.core.solvers import LocalSGD
from upcycled.experiments.sentences import one_of
from upcycled.experiments.sources import MODELS, SOURCES, Factory
from upcycled.experiments.tables import AsTuple, BuiltTable, Table, table_of
from upcycled.privacy import MECHANISMS
from upcycled.runtime.spec import NOISES

_LAM = (float | Annotated[tuple[float, ...], AsTuple], f"{NOT_NEGATIVE.phrase}, or a list of them, one per data round")
_NOISE = Field("seeded", description="'seeded', which simulates and protects nobody, or 'system', which is real")

LOCAL = table_of(LocalSGD, types={"batch_size": (int | Literal["full"], f"{COUNT.phrase}, or 'full'")})
CLIENTS = table_of(
    Participation,
    renamed={"fraction": "participation"},
    types={
        "fraction": (float, "a finite number > 0 and <= 1"),
        "sampling": (Literal[tuple(SAMPLERS)], " or ".join(f"'{name}'" for name in SAMPLERS)),
    },
)
UPCYCLES: dict[str, type[BuiltTable]] = {
    "constant": table_of(Constant, tag=("kind", "constant"), renamed={"c": "coefficient"}),
    "lambda_half": table_of(LambdaHalf, tag=("kind", "lambda_half"), types={"lam": _LAM}),
    "proximal": table_of(Proximal, tag=("kind", "proximal"), types={"lam": _LAM}),
    "decaying": table_of(Decaying, tag=("kind", "decaying")),
    "auto": table_of(Auto, tag=("kind", "auto")),
    "trend": table_of(Trend, tag=("kind", "trend")),
    "hypergradient": table_of(Hypergradient, tag=("kind", "hypergradient")),
    "fedexp": table_of(FedExP, tag=("kind", "fedexp")),
    "anderson": table_of(Anderson, tag=("kind", "anderson")),
}


@dataclass(frozen=True)
class Choice:
    """A table whose keys depend on one of them, the tag."""

    tag: str
    tables: Mapping[str, type[Table]]
    default: str | None = None
    others: Mapping[str, type[Table]] = field(default_factory=dict)
    """Tables for values that are not names, by a character that only they have."""

    def choose(self, key: str, raw: Mapping[str, Any]) -> type[Table]:
        """Return the kind of table that ``raw`` is."""
        value = raw.get(self.tag, self.default)
        tag, known = f"{key}.{self.tag}", one_of(self.tables)
        if value is None:
            raise InputError(field=tag, must=known)
        if not isinstance(value, str):
            raise InputError(field=tag, value=value, must=known)
        for character, table in self.others.items():
            if character in value:
                return table
        if value not in self.tables:
            raise InputError(field=tag, value=value, must=f"a known name{suggest(value, self.tables)}")
        return self.tables[value]


def _algorithm(name: str, made: type[Any]) -> type[BuiltTable]:
    return table_of(made, tag=("name", name))


def _mechanism(name: str, made: type[Any]) -> type[BuiltTable]:
    return table_of(made, tag=("mechanism", name), extra={"noise": (Literal[NOISES], _NOISE)})


TABLES: dict[str, Choice | type[Table]] = {
    "data": Choice("source", SOURCES),
    "model": Choice("kind", MODELS, others={":": Factory}, default="logistic"),
    "algorithm": Choice("name", {name: _algorithm(name, made) for name, made in ALGORITHMS.items()}),
    "upcycle": Choice("kind", UPCYCLES, default="constant"),
    "local": LOCAL,
    "clients": CLIENTS,
    "privacy": Choice("mechanism", {name: _mechanism(name, made) for name, made in MECHANISMS.items()}),
}


def places() -> dict[str, str]:
    """Return where keys belong that somebody wrote into another table, quoted for a sentence."""
    found: dict[str, str] = {}
    for name, choice in TABLES.items():
        for table in choice.tables.values() if isinstance(choice, Choice) else [choice]:
            for key in table.model_fields:
                found.setdefault(key, f"'{name}.{key}'")
    return found

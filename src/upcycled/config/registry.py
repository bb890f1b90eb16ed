"""Which tables a config file may have, and how the kind of each is chosen: one place to look things up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializeAsAny

from upcycled.aggregators import AGGREGATORS
from upcycled.algorithms import ALGORITHMS
from upcycled.coefficients import COEFFICIENTS
from upcycled.config.sources import MODELS, SOURCES, Factory
from upcycled.config.toml_tables import AsTuple, BuiltTable, Table, table_of, within
from upcycled.config.wording import one_of
from upcycled.core.errors import COUNT, NOT_NEGATIVE, SHARE, InputError, limits_of, suggest
from upcycled.core.lookup import looked_up, names_code
from upcycled.core.sampler import SAMPLERS, Participation
from upcycled.core.solvers import LocalSGD
from upcycled.privacy import MECHANISMS, Budget, ChargedScores
from upcycled.runtime.spec import NOISES

_LAM = (float | Annotated[tuple[float, ...], AsTuple], f"{NOT_NEGATIVE.phrase}, or a list of them, one per data round")


LIMITS = limits_of(Budget)


def _known_sampling(name: str) -> str:
    if name not in SAMPLERS and not names_code(name):
        raise ValueError("neither a known name nor code of one's own")
    return name


def _known_noise(name: str) -> str:
    if name not in NOISES:
        raise ValueError("not a known name")
    return name


class BudgetTable(Table):
    """The most a client may spend."""

    epsilon: Annotated[float, within(LIMITS["epsilon"])] = Field(description=LIMITS["epsilon"].phrase)
    delta: Annotated[float, within(LIMITS["delta"])] = Field(description=LIMITS["delta"].phrase)

    def build(self) -> Budget:
        return Budget(self.epsilon, self.delta)


SCORES = table_of(ChargedScores)


class PrivacyTable(BuiltTable):
    """A mechanism, where its noise comes from, and the most that a client may spend."""

    mechanism: str
    noise: Annotated[str, AfterValidator(_known_noise)] = Field(
        "seeded", description="'seeded', which simulates and protects nobody, or 'system', which is real"
    )
    budget: BudgetTable | None = Field(
        None,
        description="a table such as { epsilon = 2.0, delta = 1e-5 }, with an epsilon > 0 and a delta >= 0 and < 1",
    )
    scores: SerializeAsAny[SCORES] | None = Field(  # type: ignore[valid-type]
        None,
        description="a table such as { noise_std = 10.0, every = 5 } (scores that are charged), with a noise_std > 0",
    )


LOCAL = table_of(LocalSGD, types={"batch_size": (int | Literal["full"], f"{COUNT.phrase}, or 'full'")})
CLIENTS = table_of(
    Participation,
    renamed={"fraction": "participation"},
    types={
        "fraction": (Annotated[float, within(SHARE)], SHARE.phrase),
        "sampling": (
            Annotated[str, AfterValidator(_known_sampling)],
            f"{' or '.join(f'{name!r}' for name in SAMPLERS)}, or 'package.module:Name'",
        ),
    },
)
UPCYCLES: dict[str, type[BuiltTable]] = {
    name: table_of(
        made,
        tag=("kind", name),
        renamed={"c": "coefficient"} if name == "constant" else None,
        types={"lam": _LAM} if name in ("lambda_half", "proximal") else None,
    )
    for name, made in COEFFICIENTS.items()
}


@dataclass(frozen=True)
class Choice:
    """A table whose keys depend on one of them, the tag."""

    tag: str
    tables: Mapping[str, type[Table]]
    own: Callable[[str, str], type[Table]]
    """Makes the table of somebody's own code from (where it is named, its name)."""
    default: str | None = None

    def choose(self, key: str, raw: Mapping[str, Any]) -> type[Table]:
        """Return the kind of table that ``raw`` is."""
        value = raw.get(self.tag, self.default)
        tag, known = f"{key}.{self.tag}", one_of(self.tables)
        if value is None:
            raise InputError(field=tag, must=known)
        if not isinstance(value, str):
            raise InputError(field=tag, value=value, must=known)
        if names_code(value):
            return self.own(tag, value)
        if value not in self.tables:
            raise InputError(field=tag, value=value, must=f"a known name{suggest(value, self.tables)}")
        return self.tables[value]


def _own(key: str, base: type[BuiltTable] = BuiltTable) -> Callable[[str, str], type[Table]]:
    """Return what makes tables of dataclasses of the user's, whose fields are then the table's keys."""

    def table(field: str, name: str) -> type[Table]:
        made = looked_up(name, field)
        if not isinstance(made, type) or not is_dataclass(made):
            raise InputError(field=field, value=name, must="the name of a dataclass, whose fields are the table's keys")
        return table_of(made, tag=(key, name), base=base)

    return table


def _no_own(field: str, name: str) -> type[Table]:
    raise InputError(field=field, value=name, must=one_of(SOURCES))


TABLES: dict[str, Choice | type[Table]] = {
    "data": Choice("source", SOURCES, _no_own),
    "model": Choice("kind", MODELS, lambda field, name: Factory, default="logistic"),
    "algorithm": Choice(
        "name", {name: table_of(made, tag=("name", name)) for name, made in ALGORITHMS.items()}, _own("name")
    ),
    "aggregation": Choice(
        "kind", {name: table_of(made, tag=("kind", name)) for name, made in AGGREGATORS.items()}, _own("kind")
    ),
    "upcycle": Choice("kind", UPCYCLES, _own("kind"), default="constant"),
    "local": LOCAL,
    "clients": CLIENTS,
    "privacy": Choice(
        "mechanism",
        {name: table_of(made, tag=("mechanism", name), base=PrivacyTable) for name, made in MECHANISMS.items()},
        _own("mechanism", PrivacyTable),
    ),
}


def places() -> dict[str, str]:
    """Return where keys belong that somebody wrote into another table, quoted for a sentence."""
    found: dict[str, str] = {}
    for name, choice in TABLES.items():
        for table in choice.tables.values() if isinstance(choice, Choice) else [choice]:
            for key in table.model_fields:
                found.setdefault(key, f"'{name}.{key}'")
    return found

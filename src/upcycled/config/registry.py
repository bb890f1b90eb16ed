"""Which tables a config file may have, and how the kind of each is chosen: one place to look things up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny

from upcycled.aggregators import AGGREGATORS
from upcycled.algorithms import ALGORITHMS
from upcycled.coefficients import COEFFICIENTS
from upcycled.config.sources import MODELS, SOURCES, Factory
from upcycled.config.tables import (
    AsTuple,
    BuiltTable,
    Count,
    Table,
    Word,
    checked_number,
    one_of,
    table_of,
    table_of_code,
    within,
)
from upcycled.core.errors import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Absent, InputError, limits_of, suggest
from upcycled.core.sampling import SAMPLERS, Participation
from upcycled.core.solvers import LocalAdam, LocalAdamW, LocalOptimizer, LocalSGD
from upcycled.core.user_code import looked_up, names_code
from upcycled.losses import OBJECTIVES
from upcycled.privacy import MECHANISMS, Budget, ChargedScores
from upcycled.schedules import SCHEDULES
from upcycled.training.spec import NOISES

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
    """A mechanism, where its noise comes from, the most that a client may spend, and the account that pays."""

    mechanism: str
    noise: Annotated[str, AfterValidator(_known_noise)] = Field(
        "seeded", description="'seeded', which simulates and protects nobody, or 'system', which is real"
    )
    budget: BudgetTable | None = Field(
        None,
        description="a table such as { epsilon = 2.0, delta = 1e-5 }, with an epsilon > 0 and a delta >= 0 and < 1",
    )
    account: Word | None = Field(None, description="the path of an account's folder")
    scores: SerializeAsAny[SCORES] | None = Field(  # type: ignore[valid-type]
        None,
        description="a table such as { noise_std = 10.0, every = 5 } (scores that are charged), with a noise_std > 0",
    )


def _rate(value: Any) -> Any:
    """Return a learning rate of the file: a number, or the table of a schedule, which is checked already."""
    return value if isinstance(value, BuiltTable) else checked_number(value, POSITIVE)


_BATCH_SIZE = (int | Literal["full"], f"{COUNT.phrase}, or 'full'")
_OPTIMISER_TYPES: dict[str, tuple[Any, str]] = {
    "lr": (Annotated[Any, BeforeValidator(_rate)], f"{POSITIVE.phrase}, or a table [local.lr] with a kind"),
    "batch_size": _BATCH_SIZE,
    "betas": (Annotated[tuple[float, float], AsTuple], "a list of two numbers >= 0 and < 1"),
}


class OptimizerTable(BuiltTable):
    """An optimiser of the user's, and the local work around it."""

    epochs: Count = Field(1, description=COUNT.phrase)
    batch_size: _BATCH_SIZE[0] = Field(32, description=_BATCH_SIZE[1])  # type: ignore[valid-type]
    max_grad_norm: Annotated[float, within(POSITIVE)] | None = Field(None, description=POSITIVE.phrase)

    def build(self) -> LocalOptimizer:
        batch_size = None if self.batch_size == "full" else self.batch_size
        return LocalOptimizer(super().build(), self.epochs, batch_size, self.max_grad_norm)


LOCALS: dict[str, type[BuiltTable]] = {
    "sgd": table_of(LocalSGD, tag=("kind", "sgd"), types=_OPTIMISER_TYPES),
    "adam": table_of(LocalAdam, tag=("kind", "adam"), types=_OPTIMISER_TYPES, left_out=["decoupled"]),
    "adamw": table_of(
        LocalAdam,
        tag=("kind", "adamw"),
        types=_OPTIMISER_TYPES,
        left_out=["decoupled"],
        defaults={"weight_decay": 0.01},
        makes=LocalAdamW,
    ),
}
_CLASS_WEIGHT = (
    Annotated[tuple[float, ...], AsTuple] | Literal["balanced"] | None,
    "a list with a number > 0 for each class, or 'balanced'",
)
LOSSES: dict[str, type[BuiltTable]] = {
    name: table_of(made, tag=("name", name), types={"class_weight": _CLASS_WEIGHT}) for name, made in OBJECTIVES.items()
}
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
    has_short_form: bool = False
    """Whether a text in the table's place is its tag: ``loss = "mse"``."""

    def choose(self, key: str, raw: Mapping[str, Any]) -> type[Table]:
        """Return the kind of table that ``raw`` is."""
        value = raw.get(self.tag, self.default)
        tag, known = f"{key}.{self.tag}", one_of(self.tables)
        if not isinstance(value, str):
            raise InputError(field=tag, value=raw.get(self.tag, Absent.MISSING), must=known)
        if names_code(value):
            return self.own(tag, value)
        if value not in self.tables:
            raise InputError(field=tag, value=value, must=f"a known name{suggest(value, self.tables)}")
        return self.tables[value]


def _own(
    key: str, base: type[BuiltTable] = BuiltTable, takes_functions: bool = False
) -> Callable[[str, str], type[Table]]:
    """Return what makes tables of dataclasses of the user's, whose fields are then the table's keys.

    Where functions are taken too, such a table has no keys for them.
    """

    def table(field: str, name: str) -> type[Table]:
        made = looked_up(name, field)
        if takes_functions and callable(made) and not isinstance(made, type):
            return table_of_code(made, (key, name), base)
        if not isinstance(made, type) or not is_dataclass(made):
            what = "a function, or of a dataclass" if takes_functions else "a dataclass"
            raise InputError(field=field, value=name, must=f"the name of {what}, whose fields are the table's keys")
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
    "loss": Choice("name", LOSSES, _own("name", takes_functions=True), has_short_form=True),
    "local": Choice("kind", LOCALS, _own("kind", OptimizerTable, takes_functions=True), default="sgd"),
    "local.lr": Choice(
        "kind",
        {name: table_of(made, tag=("kind", name)) for name, made in SCHEDULES.items()},
        _own("kind", takes_functions=True),
    ),
    "clients": CLIENTS,
    "privacy": Choice(
        "mechanism",
        {name: table_of(made, tag=("mechanism", name), base=PrivacyTable) for name, made in MECHANISMS.items()},
        _own("mechanism", PrivacyTable),
    ),
}
"""A dotted one is a table within a table, in the place of a plain value."""


def keys_within(table: str) -> list[str]:
    """Return the keys that some kind of a table has.

    >>> keys_within("upcycle")[:3]
    ['kind', 'coefficient', 'lam']
    """
    choice = TABLES.get(table)
    if choice is None:
        return []
    kinds = choice.tables.values() if isinstance(choice, Choice) else [choice]
    return list(dict.fromkeys(key for kind in kinds for key in kind.model_fields))


def places() -> dict[str, str]:
    """Return where keys belong that somebody wrote into another table, quoted for a sentence."""
    found: dict[str, str] = {}
    for name, choice in TABLES.items():
        for table in choice.tables.values() if isinstance(choice, Choice) else [choice]:
            for key in table.model_fields:
                found.setdefault(key, f"'{name}.{key}'")
    return found

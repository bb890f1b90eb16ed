"""Which tables a config file may have, and how the kind of each is chosen: one place to look things up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, create_model

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
    default_of,
    one_of,
    table_of,
    table_of_code,
)
from upcycled.core.errors import COUNT, NOT_NEGATIVE, POSITIVE, Absent, InputError, suggest
from upcycled.core.sampling import Participation
from upcycled.core.solvers import LocalAdam, LocalAdamW, LocalOptimizer, LocalSGD
from upcycled.core.user_code import looked_up, names_code
from upcycled.losses import OBJECTIVES
from upcycled.privacy import MECHANISMS
from upcycled.schedules import SCHEDULES
from upcycled.training.spec import HINTS, OPTIONS, Option, RunSpec

_LAM = (float | Annotated[tuple[float, ...], AsTuple], f"{NOT_NEGATIVE.phrase}, or a list of them, one per data round")


def _key_type(hint: Any) -> Any:
    """Return the part of a field's type that a file has values for; None if it has none."""
    if hasattr(hint, "__metadata__"):
        checks = [part for part in hint.__metadata__ if not isinstance(part, Option)]
        inner = _key_type(hint.__origin__)
        return Annotated[inner, *checks] if checks else inner
    if get_origin(hint) is tuple:
        return Annotated[hint, AsTuple]
    if get_origin(hint) is Literal or hint in (bool, int, float, str):
        return hint
    if is_dataclass(hint):
        return SerializeAsAny[table_of(hint)]  # type: ignore[arg-type, misc]
    parts = get_args(hint)
    found = [Word if part is str and Path in parts else _key_type(part) for part in parts]
    return Union[tuple(one for one in found if one is not None)] if any(found) else None  # noqa: UP007


def keys_of_run(table: str = "") -> dict[str, Any]:
    """Return the keys of a table whose values are fields of a run's spec, as pydantic takes them; "" is the file."""
    found: dict[str, Any] = {}
    for f in fields(RunSpec):
        option = OPTIONS[f.name]
        *above, key = option.path
        if option.is_table or f.name == "seed" or above != ([table] if table else []):
            continue
        kind = HINTS[f.name] if option.form is None else Annotated[option.form, option]
        default = default_of(f)
        found[key] = _key(
            _key_type(kind), option, () if default is None and option.form == tuple[str, ...] else default
        )
    return found


def _key(kind: Any, option: Option, default: Any) -> tuple[Any, Any]:
    if option.left_out:
        return Annotated[Any, BeforeValidator(partial(_refused, option))], Field(default, description=option.left_out)
    checked = kind if option.check is None else Annotated[kind, AfterValidator(partial(_checked, option.check))]
    return checked | None if default is None else checked, Field(default, description=option.must or None)


def _refused(option: Option, value: Any) -> Any:
    raise InputError(field=option.key, value=value, must=option.left_out)


def _checked(check: Callable[[Any], object], value: Any) -> Any:
    check(value)
    return value


PrivacyTable: type[BuiltTable] = create_model(
    "PrivacyTable",
    __base__=BuiltTable,
    __doc__="A mechanism, where its noise comes from, the most that a client may spend, and the account that pays.",
    mechanism=(str, ...),
    **keys_of_run("privacy"),
)
CLIENTS: type[BuiltTable] = create_model("ClientsTable", __base__=BuiltTable, **keys_of_run("clients"))
CLIENTS.makes = Participation
CLIENTS.names = {"participation": "fraction", "sampling": "sampling", "stragglers": "stragglers"}


def _rate(value: Any) -> Any:
    """Return a learning rate of the file: a number, or the table of a schedule, which is checked already."""
    return value if isinstance(value, BuiltTable) else POSITIVE.checked(value)


_BATCH_SIZE = (int | Literal["full"], f"{COUNT.phrase}, or 'full'")
_OPTIMISER_TYPES: dict[str, tuple[Any, str]] = {
    "lr": (Annotated[Any, BeforeValidator(_rate)], f"{POSITIVE.phrase}, or a table [local.lr] with a kind"),
    "batch_size": _BATCH_SIZE,
    "betas": (Annotated[tuple[float, float], AsTuple], "a list of two numbers >= 0 and < 1"),
}


class OptimizerTable(BuiltTable):
    """An optimiser of the user's, and the local work around it."""

    epochs: Count = 1
    batch_size: _BATCH_SIZE[0] = Field(32, description=_BATCH_SIZE[1])  # type: ignore[valid-type]
    max_grad_norm: Annotated[float, POSITIVE] | None = None

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
UPCYCLES: dict[str, type[BuiltTable]] = {
    name: table_of(
        made,
        tag=("kind", name),
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
    is_always_there: bool = False
    """Whether a file without the table has that of the default kind."""
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
    "model": Choice("kind", MODELS, lambda field, name: Factory, default="logistic", is_always_there=True),
    "algorithm": Choice(
        "name", {name: table_of(made, tag=("name", name)) for name, made in ALGORITHMS.items()}, _own("name")
    ),
    "aggregation": Choice(
        "kind", {name: table_of(made, tag=("kind", name)) for name, made in AGGREGATORS.items()}, _own("kind")
    ),
    "upcycle": Choice("kind", UPCYCLES, _own("kind"), default="constant"),
    "loss": Choice("name", LOSSES, _own("name", takes_functions=True), has_short_form=True),
    "local": Choice(
        "kind", LOCALS, _own("kind", OptimizerTable, takes_functions=True), default="sgd", is_always_there=True
    ),
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


def table_keys() -> dict[str, Any]:
    """Return the tables of a file that hold a run's objects, as pydantic takes them.

    One that the run's spec has a default for may be left out.
    """
    found: dict[str, Any] = {}
    for f in fields(RunSpec):
        [name, *_], kind = OPTIONS[f.name].path, TABLES.get(OPTIONS[f.name].path[0])
        if kind is None or name in found:
            continue
        default: Any = None if default_of(f) is not ... else ...
        if not isinstance(kind, Choice):
            default, what = kind(), ""
        else:
            default = kind.tables[kind.default]() if kind.is_always_there and kind.default else default
            what = f" with a {kind.tag}"
        short = "the name of a loss, or " if name == "loss" else ""
        held = SerializeAsAny[Table] if default is not None else SerializeAsAny[Table] | None
        found[name] = held, Field(default, description=f"{short}a table [{name}]{what}")
    return found


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

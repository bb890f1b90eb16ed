"""The settings files of this folder, as frozen values: data sets, methods, grids, tables; and what --only leaves."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError, suggest

STRATEGIES = ("vanilla", "upcycled")
SAME = "same"
"""Vanilla at the settings that were chosen for upcycled: what is left of a gain is rho's alone."""


@dataclass(frozen=True)
class Grid:
    """What is tried before a table's runs, and how the tries are scored."""

    kind: str
    """"complete": every combination; "staged": first the learning rate, then rho at the best one."""
    seeds: tuple[int, ...]
    rounds: int
    lr: tuple[float, ...]
    rho: tuple[float, ...]
    like: str | None = None
    """The method whose learning rate and rho all methods take, where a grid for each is out of reach."""


@dataclass(frozen=True)
class DataSet:
    """One of the paper's data sets, and what is trained on it."""

    name: str
    title: str
    group: str
    """Sets of one group share a grid and a file of cells."""
    rounds: int
    model: str
    source: str
    """The set's name where it is read from."""
    score_every: int = 1
    """Data rounds between two scores."""


@dataclass(frozen=True)
class Method:
    """One of the seven methods, or the ablation beside them."""

    name: str
    title: str
    algorithm: str
    default: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    momentum: float | None = None
    is_ablation: bool = False
    is_costly: bool = False
    """Whether its runs come last."""

    @property
    def strategies(self) -> tuple[str, ...]:
        """The ablation has no upcycled runs: it stands beside FedAvg's."""
        return STRATEGIES[:1] if self.is_ablation else STRATEGIES


@dataclass(frozen=True)
class Column:
    """A column of a table: a data set and a share of stragglers, and whose grid decides its settings."""

    name: str
    data: str
    stragglers: float
    chosen_data: str
    chosen_stragglers: float
    printed: tuple[str, str]
    """The paper's table and column that it is set beside."""


@dataclass(frozen=True)
class Table:
    name: str
    about: str
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    part: str = "test"
    """What its runs are for (see `Spec.part`)."""
    has_same: bool = False
    """Whether vanilla runs at upcycled's settings stand beside."""

    @property
    def title(self) -> str:
        return f"Test accuracy (%), {self.about}"


@dataclass(frozen=True)
class Settings:
    data: Mapping[str, DataSet]
    methods: Mapping[str, Method]
    grids: Mapping[str, Grid]
    tables: Mapping[str, Table]
    participation: float
    epochs: int
    batch_size: int
    momentum: float
    confidence: float
    validation_fraction: float
    is_quick: bool = False


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def paper_numbers() -> dict[str, Any]:
    return read_toml("numbers.toml")


def load_settings(quick: bool = False) -> Settings:
    """Return the settings of the whole reproduction, or of its small version.

    >>> settings = load_settings()
    >>> [column.name for column in settings.tables["table3"].columns], settings.tables["table3"].seeds
    (['femnist26_30', 'femnist26_90'], (0, 1, 2, 3))
    """
    raw_data, raw_methods, raw = (read_toml(f"settings/{name}.toml") for name in ("data", "methods", "tables"))
    fraction = raw_data.pop("validation_fraction")
    settings = Settings(
        data={name: DataSet(name=name, **{"source": name, **values}) for name, values in raw_data.items()},
        methods={name: _method(name, values) for name, values in raw_methods.items()},
        grids={name: _grid(values) for name, values in raw["grids"].items()},
        tables={name: _table(name, values, raw["seeds"], raw_methods) for name, values in raw["tables"].items()},
        participation=raw["participation"],
        epochs=raw["epochs"],
        batch_size=raw["batch_size"],
        momentum=raw["momentum"],
        confidence=raw["confidence"],
        validation_fraction=fraction,
    )
    return _made_small(settings, read_toml("settings/quick.toml")) if quick else settings


def _method(name: str, values: Mapping[str, Any]) -> Method:
    own = {key: tuple(tried) for key, tried in values.get("own", {}).items()}
    return Method(name=name, **{"algorithm": name, **values, "own": own})


def _grid(values: Mapping[str, Any]) -> Grid:
    lists: dict[str, Any] = {key: tuple(values[key]) for key in ("seeds", "lr", "rho")}
    return Grid(**{**values, **lists})


def _table(name: str, values: Mapping[str, Any], seeds: Iterable[int], methods: Iterable[str]) -> Table:
    columns = []
    for column in values["columns"]:
        chosen, printed = column.get("chosen", column), tuple(column.get("printed", (name, column["name"])))
        columns.append(
            Column(column["name"], column["data"], column["stragglers"], chosen["data"], chosen["stragglers"], printed)
        )
    seeds = range(values["num_seeds"]) if "num_seeds" in values else values.get("seeds", seeds)
    methods = values.get("methods", methods)
    part, has_same = values.get("part", "test"), values.get("has_same", False)
    return Table(name, values["about"], tuple(columns), tuple(seeds), tuple(methods), part, has_same)


def _made_small(settings: Settings, quick: Mapping[str, Any]) -> Settings:
    """Return the small version: fewer seeds, rounds and tries, and the data sets that take minutes only."""
    data = {name: replace(one, rounds=quick["rounds"][one.group], score_every=1) for name, one in settings.data.items()}
    lr, rho = tuple(quick["lr"]), tuple(quick["rho"])
    grids = {
        name: replace(grid, seeds=grid.seeds[:1], rounds=quick["rounds"][name], lr=lr, rho=rho)
        for name, grid in settings.grids.items()
    }
    methods = {
        name: replace(one, own={key: tried[:: len(tried) - 1] for key, tried in one.own.items()})
        for name, one in settings.methods.items()
    }
    tables = {
        name: replace(
            one,
            columns=tuple(c for c in one.columns if settings.data[c.data].group not in quick["left_out"]),
            seeds=tuple(quick["seeds"]),
        )
        for name, one in settings.tables.items()
    }
    return replace(settings, data=data, grids=grids, methods=methods, tables=tables, is_quick=True)


@dataclass(frozen=True)
class Selected:
    data: frozenset[str]
    methods: frozenset[str]


def select(settings: Settings, only: Sequence[str] = ()) -> Selected:
    """Return what names leave: those of methods restrict methods, those of data sets or groups restrict data.

    Where names of a kind are given, nothing else of that kind is left, whether a table has them or not.

    >>> found = select(load_settings(), ["femnist", "fedavg"])
    >>> sorted(found.data), sorted(found.methods)
    (['femnist', 'femnist_linear'], ['fedavg'])
    """
    names = set(only)
    methods = names & set(settings.methods)
    by_set = {name: _names(name, one) for name, one in settings.data.items()}
    is_of_data = bool(names & set().union(*by_set.values()))
    return Selected(
        frozenset(name for name, known in by_set.items() if known & names or not is_of_data),
        frozenset(methods or settings.methods),
    )


def check_only(settings: Settings, only: Sequence[str]) -> None:
    of_data = [known for name, one in settings.data.items() for known in sorted(_names(name, one))]
    known = dict.fromkeys([*settings.methods, *of_data])
    for name in only:
        if name not in known:
            raise InputError(f"--only is {name!r}, but it must be a data set or a method{suggest(name, known)}")


def _names(name: str, one: DataSet) -> set[str]:
    """Return what a set may be called: Sent140 in its reduced form is Sent140 too."""
    return {name, one.group, one.source}

"""What ``--only`` leaves of what was asked for: one rule for tables, times and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upcycled.core.errors import InputError, suggest
from upcycled.experiments.paper.settings import DataSet, Settings


@dataclass(frozen=True)
class Selected:
    """Data sets and methods that may take part."""

    data: frozenset[str]
    methods: frozenset[str]


def select(settings: Settings, only: Sequence[str] = ()) -> Selected:
    """Return what names leave: those of methods restrict methods, those of data sets or groups restrict data.

    Where names of a kind are given, nothing else of that kind is left, whether a table has them or not.

    >>> from upcycled.experiments.paper.settings import load_settings
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
    """Refuse names that are no data set, group or method."""
    of_data = [known for name, one in settings.data.items() for known in sorted(_names(name, one))]
    known = dict.fromkeys([*settings.methods, *of_data])
    for name in only:
        if name not in known:
            raise InputError(field="--only", value=name, must=f"a data set or a method{suggest(name, known)}")


def _names(name: str, one: DataSet) -> set[str]:
    """Return what a set may be called: Sent140 in its reduced form is Sent140 too."""
    return {name, one.group, one.source}

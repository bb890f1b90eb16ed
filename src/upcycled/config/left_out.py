"""What of a file no longer fits after a change on the command line: options of another kind, and what was swept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from upcycled.config.overrides import value_at, without
from upcycled.config.registry import TABLES, Choice
from upcycled.core.errors import InputError

Path = tuple[str, ...]


def fitted_to_changes(
    file: dict[str, Any], changed: dict[str, Any], given: Collection[Path], removed: Collection[Path]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the changed content without what no longer fits, and a sentence about that.

    An option goes if its table has become another kind, which does not have it, and nobody gave it with the change. A
    swept key goes with what it belonged to.

    Args:
        file: the content as it was read.
        changed: with what was given and removed.
        given: the keys that were given, whose values stay: a wrong one is an error.
        removed: the keys that were removed.

    >>> file = {"algorithm": {"name": "fedprox", "mu": 0.5}, "sweep": {"algorithm.mu": [0.1, 1.0]}}
    >>> changed = {**file, "algorithm": {"name": "fedavg", "mu": 0.5}}
    >>> content, words = fitted_to_changes(file, changed, [("algorithm", "name")], [])
    >>> content["algorithm"], content["sweep"]
    ({'name': 'fedavg'}, {})
    >>> print(*words)
    algorithm.name is 'fedavg' now: algorithm.mu, sweep."algorithm.mu" of the file are left out
    """
    sentences = []
    for key, old, new, known in _other_kinds(file, changed):
        table = tuple(key.split("."))
        options = [(*table, name) for name in value_at(changed, table) if name in old and name not in known]
        gone = [path for path in options if path not in given]
        swept = [path for path in _swept(changed, table) if path[1].split(".")[len(table)] not in known]
        for path in (*gone, *(path for path in swept if path not in given)):
            changed = without(changed, path)
        names = [".".join(path) for path in gone] + [f'sweep."{path[1]}"' for path in swept]
        if names:
            verb = "is" if len(names) == 1 else "are"
            sentences.append(f"{new}: {', '.join(names)} of the file {verb} left out")
    for table in removed:
        swept = [path for path in _swept(changed, table) if path not in given]
        for path in swept:
            changed = without(changed, path)
        if swept:
            names = [f'sweep."{path[1]}"' for path in swept]
            sentences.append(f"{'.'.join(table)} is unset: {', '.join(names)} of the file goes with it")
    return changed, tuple(sentences)


def _other_kinds(
    file: Mapping[str, Any], changed: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], str, Collection[str]]]:
    """Yield the tables whose kind is another now: key, old table, words on the new kind, its options."""
    for key, kind in TABLES.items():
        path = tuple(key.split("."))
        old, new = value_at(file, path), value_at(changed, path)
        if not isinstance(kind, Choice) or not isinstance(old, dict) or not isinstance(new, dict):
            continue
        before, now = old.get(kind.tag, kind.default), new.get(kind.tag, kind.default)
        if before == now:
            continue
        try:
            known = kind.choose(key, new).model_fields
        except InputError:  # the check of the whole content says it better
            continue
        yield key, old, f"{key}.{kind.tag} is {now!r} now", known


def _swept(content: Mapping[str, Any], table: Path) -> list[Path]:
    """Return the swept keys that are this one, or stand within it."""
    sweep = content.get("sweep")
    if not isinstance(sweep, dict):
        return []
    return [("sweep", key) for key in sweep if tuple(key.split("."))[: len(table)] == table]

"""``key=value`` and ``~key`` on the command line, and ranges in the table [sweep].

Ranges in the table [sweep]: ``"local.lr" = {low = 0.001, high = 0.1, log = true}``, for draws, not for grids.

``key=value`` and ``~key`` on the command line: dotted keys, values as in the file, bare words as texts.

What of a file no longer fits after a change on the command line: options of another kind, and what was swept.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from upcycled.config.registry import TABLES, Choice
from upcycled.core.errors import InputError, Limits, check_number, shown, suggest

NAMES = ("low", "high", "log", "integer")
_LIKE = "such as {low = 0.001, high = 0.1, log = true}"


class Range(BaseModel):
    """Numbers from low to high, both included; with ``log`` each order of magnitude is as likely as the next."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_number("low", self.low, integer=self.integer)
        check_number("high", self.high, integer=self.integer, above=self.low)
        if self.log:
            check_number("low", self.low, above=0)
        return self

    @property
    def examples(self) -> tuple[float, ...]:
        """Both ends and one between: what is wrong with the others is wrong with one of these."""
        return self.low, self.high, float(f"{self.at(0.41):.3g}") if not self.integer else self.at(0.41)

    def at(self, share: float) -> float:
        """Return the number at a share of the way, 0 <= share < 1; as an integer where they are.

        >>> Range(low=1, high=100, log=True).at(0.5), Range(low=1, high=3, integer=True).at(0.99)
        (10.0, 3)
        """
        # A draw of integers gives each the same share: the top one too.
        low, high = float(self.low), float(self.high) + (1 if self.integer else 0)
        found = low * (high / low) ** share if self.log else low + share * (high - low)
        return min(math.floor(found), int(self.high)) if self.integer else min(max(found, low), high)

    def as_file(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return {key: value for key, value in self.model_dump().items() if value is not False}


def is_range(value: object) -> bool:
    """Say whether a table is meant as a range; no table of the file has keys of these names."""
    return isinstance(value, Mapping) and any(name in value for name in NAMES)


def as_values(key: str, value: Any) -> tuple[Any, ...] | Range:
    """Return a list of the table [sweep] as a tuple, and a range as one.

    Raises:
        InputError: one sentence.
    """
    name = f'sweep."{key}"'
    if isinstance(value, list) and value:
        return tuple(value)
    if not is_range(value):
        raise InputError(field=name, value=value, must=f"a list of one or more values, or a range {_LIKE}")
    for word in value:
        if word not in NAMES:
            raise InputError(f"has the key {word!r}, which a range has not{suggest(word, NAMES)}", field=name)
    try:
        return Range(**value)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    own = found.get("ctx", {}).get("error")
    if isinstance(own, InputError):
        raise own.at(name)
    word = str(found["loc"][0])
    if found["type"] == "missing":
        raise InputError(f"has no {word}, but a range must have low and high, {_LIKE}", field=name)
    must = "true or false" if word in ("log", "integer") else Limits().phrase
    raise InputError(field=word, value=value[word], must=must, where=(name,))


UNSET = "~"
_BARE = re.compile(r"[^\s\"'\[\]{},=#][^\"'\[\]{},=#\n]*")


@dataclass(frozen=True)
class Overrides:
    """What a command line changes in a file: keys that are given, and keys that are unset."""

    given: tuple[tuple[tuple[str, ...], Any], ...] = ()
    removed: tuple[tuple[str, ...], ...] = ()

    def applied(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the file's content with the changes; the content passed in stays as it is.

        What is unset goes first: ``~upcycle upcycle.kind=signal`` is a table of that kind and nothing else.

        >>> parse_overrides(["local.lr=0.2", "~upcycle"]).applied({"local": {"lr": 0.1}, "upcycle": {}})
        {'local': {'lr': 0.2}}
        """
        for path in self.removed:
            raw = without(raw, path)
        for path, value in self.given:
            raw = put(raw, path, value)
        return raw


def parse_overrides(texts: Iterable[str]) -> Overrides:
    """Return what the words of a command line change.

    >>> parse_overrides(["local.lr=0.2", "~algorithm.mu"])
    Overrides(given=((('local', 'lr'), 0.2),), removed=(('algorithm', 'mu'),))
    """
    words = tuple(texts)
    removed = tuple(_removed(text) for text in words if text.startswith(UNSET))
    return Overrides(tuple(parse_override(text) for text in words if not text.startswith(UNSET)), removed)


def _removed(text: str) -> tuple[str, ...]:
    key = text.removeprefix(UNSET).strip()
    if not key or "=" in key:
        raise InputError(f"override {shown(text)} must have the form ~key, such as ~upcycle or ~algorithm.mu")
    return _path(key, text)


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Return the key's parts and the value.

    >>> parse_override("upcycle.coefficient=0.7"), parse_override('sweep."local.lr"=[0.1, 1]')
    ((('upcycle', 'coefficient'), 0.7), (('sweep', 'local.lr'), [0.1, 1]))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise InputError(f"override {shown(text)} must have the form key=value, such as local.lr=0.1")
    return _path(key.strip(), text), _value(value.strip(), text)


def put(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy with one value replaced; tables on the way are made where they are missing."""
    first, rest = path[0], path[1:]
    if not rest:
        return {**raw, first: value}
    inner = raw.get(first, {})
    if not isinstance(inner, dict):
        raise InputError(field=first, value=inner, must=f"a table to have a key {'.'.join(rest)}")
    return {**raw, first: put(inner, rest, value)}


def without(raw: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a copy without one key; the same content where it is not there.

    >>> without({"algorithm": {"name": "fedprox", "mu": 1.0}}, ("algorithm", "mu"))
    {'algorithm': {'name': 'fedprox'}}
    """
    first, rest = path[0], path[1:]
    if not rest:
        return {key: value for key, value in raw.items() if key != first}
    inner = raw.get(first)
    return {**raw, first: without(inner, rest)} if isinstance(inner, dict) else raw


def value_at(raw: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value of a key; None where it is not there.

    >>> value_at({"local": {"lr": 0.1}}, ("local", "lr")), value_at({"local": 3}, ("local", "lr"))
    (0.1, None)
    """
    value: Any = raw
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _path(key: str, text: str) -> tuple[str, ...]:
    """Return the parts of a TOML key, which may quote parts that have dots in them."""
    try:
        nested: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        nested = {}
    parts: list[str] = []
    while isinstance(nested, dict) and len(nested) == 1:
        part, nested = next(iter(nested.items()))
        parts.append(part)
    if nested != 0:
        raise InputError(
            f"override {shown(text)} has the key {shown(key)}, but it must be a name of the file such as local.lr"
        )
    return tuple(parts)


def _value(value: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        parsed = {}
    if len(parsed) == 1:
        return parsed["value"]
    if _BARE.fullmatch(value):
        return value
    raise InputError(
        f"override {shown(text)} has the value {shown(value)}, but it must be a TOML value such as 0.1, true or [1, 2]"
    )


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

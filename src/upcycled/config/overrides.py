"""``key=value`` and ``~key`` on the command line: dotted keys, values as in the file, bare words as texts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from upcycled.core.errors import InputError, shown

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

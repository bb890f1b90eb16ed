"""The public API as lines of text, and which of its changes the changelog tells."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from pathlib import Path
from typing import get_origin

ROOT = Path(__file__).parents[2]
CHANGELOG = ROOT / "CHANGELOG.md"
NAMES = Path(__file__).with_name("public_api.txt")
TOLD = Path(__file__).with_name("told.txt")


def listed(exported):
    """Name -> how it is called: of functions and classes what they take, of dataclasses what they show, too."""
    found = {}
    for name, value in exported:
        found[name] = _shape(value)
        if inspect.isclass(value):
            for method, member in _members(value):
                found[f"{name}.{method}"] = _shape(member)
    return dict(sorted(found.items()))


def _members(kind):
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name, member in vars(kind).items():
        if name.startswith("_") or name in fields:  # a field is an argument of its class
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield name, member.__func__
        elif isinstance(member, property) or inspect.isfunction(member):
            yield name, member


def _shape(value):
    if isinstance(value, property):
        return "property"
    if not callable(value):
        return type(value).__name__
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "error"
    if inspect.isclass(get_origin(value)):  # the name of a type, which some versions of Python give a signature
        return "class"
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return "class"
    return f"({', '.join(_parameter(one) for one in parameters if one.name not in ('self', 'cls'))})"


def _parameter(one):
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    # Whether there is a default is part of how a function is called; what it is may be repaired.
    return f"{stars}{one.name}{'' if one.default is one.empty else '=...'}"


def read_names(path=NAMES):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def bullets(text):
    """The entries of a changelog, each in one line of single spaces."""
    found = re.findall(r"^- .*(?:\n  .*)*", text, flags=re.MULTILINE)
    return [" ".join(entry.split()) for entry in found]


def mark(entry):
    return hashlib.sha256(entry.encode()).hexdigest()[:12]


def read_told(path=TOLD):
    return set(path.read_text(encoding="utf-8").split())


def changes(now, before):
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


def untold(changed, changelog, told):
    """The changes that no new entry of the changelog names: by the last part of the name, as a word."""
    new = " ".join(entry for entry in bullets(changelog) if mark(entry) not in told)
    words = set(re.findall(r"\w+", new))
    return [name for name in changed if not _names(name) & words]


def _names(name):
    """What an entry may call a change: a member also by its class, since a new class brings its members."""
    parts = name.split(".")
    return {part for part in parts[-2:] if part not in ("up",) and not (part.islower() and part in MODULES)}


MODULES = frozenset(
    [
        "aggregators",
        "coefficients",
        "data",
        "losses",
        "metrics",
        "models",
        "privacy",
        "schedules",
        "theory",
        "partition",
        "audit",
    ]
)

"""The public API as lines of text."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import get_origin

NAMES = Path(__file__).with_name("public_api.txt")


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

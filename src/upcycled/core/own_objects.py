"""What an object of the user's must have to stand for one of the package's: asked before a run calls it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from upcycled.core.errors import InputError


def check_members(field: str, value: object, values: Iterable[str], methods: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an object that lacks a member of a contract, or has a method that takes other arguments.

    Args:
        field: where it was given.
        value: the object.
        values: the names of what is no method.
        methods: the names of methods, each with what it is called with.

    >>> class Late:
    ...     def rho(self, data_round):
    ...         return 0.5
    >>> check_members("upcycle", Late(), (), {"rho": ("data_round", "horizon")})
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: upcycle is a Late, whose rho takes (data_round), but it is called as rho(data_ro...
    """
    if isinstance(value, type):
        raise InputError(field=field, value=value, must=f"an object of this class, such as {value.__name__}()")
    kind = type(value).__name__
    for name in (*values, *methods):
        if not hasattr(value, name):
            raise InputError(f"is a {kind}, which has no '{name}', but must have one", field=field)
    for name, arguments in methods.items():
        called = f"{name}({', '.join(arguments)})"
        method = getattr(value, name)
        try:
            found = inspect.signature(method)
        except (TypeError, ValueError):  # it does not say what it takes
            continue
        try:
            found.bind(*arguments)
        except TypeError:
            raise InputError(
                f"is a {kind}, whose {name} takes {found}, but it is called as {called}", field=field
            ) from None


def check_names(value: object, names: Iterable[str]) -> None:
    """Refuse members that must be lists of names and are something else, such as a name alone."""
    for name in names:
        held = getattr(value, name)
        if not isinstance(held, tuple | list) or not all(isinstance(one, str) for one in held):
            raise InputError(field=f"algorithm.{name}", value=held, must="a tuple of names, such as ('momentum',)")

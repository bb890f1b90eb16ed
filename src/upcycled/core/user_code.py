"""Code of the user's: found by its name, and checked for the members that it must have.

What an object of the user's must have to stand for one of the package's: asked before a run calls it.

Code of the user's that a file names: ``"package.module:Name"``.

It is looked up among installed packages and in the folders that a command was given with ``--path``. Importing it runs
it: a file that names code is to be trusted like code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from upcycled.core.errors import InputError, reason_of


def check_members(field: str, value: object, values: Iterable[str], methods: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an object that lacks a member of a contract, or has a method that takes other arguments.

    Args:
        field: where it was given.
        value: the object.
        values: the names of what is no method.
        methods: the names of methods, each with what it is called with.

    >>> class Late:
    ...     def coefficient_at(self, data_round):
    ...         return 0.5
    >>> check_members("upcycle", Late(), (), {"coefficient_at": ("data_round", "horizon")})
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: upcycle is a Late, whose coefficient_at takes (data_round), but it is...
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


_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def names_code(value: object) -> bool:
    """Say whether a text names code.

    >>> names_code("my_module:FedNova"), names_code("fedavg")
    (True, False)
    """
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def looked_up(name: str, field: str) -> Any:
    """Return what a name stands for; ``field`` is where it was written, for the sentence that says why it cannot be.

    >>> looked_up("math:sqrt", "field")(9.0)
    3.0
    """
    module_name, _, path = name.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            reason = f"there is no module {error.name!r} among the installed packages"
            raise InputError(
                field=field, value=name, but=reason, hint="; a folder with code of your own is named by --path DIR"
            ) from error
        raise _failed(field, name, module_name, error) from error
    except Exception as error:
        raise _failed(field, name, module_name, error) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise InputError(field=field, value=name, but=f"module {module_name!r} has no {path!r}")
        found = getattr(found, part)
    return found


def name_of(value: Any) -> str | None:
    """Return the name under which :func:`looked_up` finds a function or class; None where there is none (a lambda).

    >>> name_of(names_code), name_of(lambda: 0)
    ('upcycled.core.user_code:names_code', None)
    """
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or "<" in name:
        return None
    return f"{module}:{name}"


def _failed(field: str, name: str, module: str, error: Exception) -> InputError:
    reason = f"importing {module} failed with {type(error).__name__}: {reason_of(error)}"
    return InputError(field=field, value=name, but=reason)

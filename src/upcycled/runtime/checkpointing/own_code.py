"""The user's own code in a run, by hashes of its source: a name stays the same when what it stands for is edited."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from upcycled.core.lookup import name_of, names_code
from upcycled.runtime.spec import RunSpec

_MAIN = "__main__"
_VERSIONED = frozenset({__name__.partition(".")[0], "numpy", "torch", "numba"}) | sys.stdlib_module_names
"""What versions tell apart already."""
_LOADED: dict[str, tuple[object, str]] = {}
"""The hash of each module as it was first seen, and its loading, which ``importlib.reload`` makes anew: a file that is
edited later is not what this process runs."""


def own_code(spec: RunSpec) -> dict[str, str]:
    """Return a hash of the source of everything in a spec that is neither this package's nor of a counted version.

    Of a module it is the whole file, helpers in it included, but nothing that it imports; of a script it is each
    function or class alone, since a script is edited to ask for something else of the same code.

    >>> import upcycled as up
    >>> own_code(up.RunSpec(algorithm=up.FedAvg()))
    {}
    """
    names = {*_names_in(spec.plain()), *_classes_of(spec.settings())}
    found = {}
    for name in sorted(names):
        module = name.partition(":")[0]
        what = name if module == _MAIN else module
        source = None if module.partition(".")[0] in _VERSIONED - {_MAIN} else _source_hash(name)
        if source is not None:
            found[what] = source
    return found


def changed_code(now: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    """Return what was edited since, such as ``module 'my_module'``; None where nothing was.

    >>> changed_code({"mine": "a", "other": "b"}, {"mine": "c"})
    "module 'mine'"
    """
    for name in now:
        if name in before and before[name] != now[name]:
            return repr(name.partition(":")[2]) if name.startswith(f"{_MAIN}:") else f"module {name!r}"
    return None


def _names_in(form: Any) -> Iterator[str]:
    """Yield what a plain form says of code by its name."""
    if isinstance(form, str):
        if names_code(form):
            yield form
    elif isinstance(form, Mapping):
        for inner in form.values():
            yield from _names_in(inner)
    elif isinstance(form, list):
        for inner in form:
            yield from _names_in(inner)


def _classes_of(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes of torch modules, whose plain form is their structure and weights."""
    for value in settings.values():
        for part in value.modules() if isinstance(value, nn.Module) else ():
            name = name_of(type(part))
            if name is not None:
                yield name


def _source_hash(name: str) -> str | None:
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None:
        return None
    try:
        if module_name == _MAIN:
            found: Any = module
            for part in path.split("."):
                found = getattr(found, part)
            return _hash(inspect.getsource(found).encode())
        loading, known = module.__spec__, _LOADED.get(module_name)
        if known is None or known[0] is not loading:
            file = inspect.getsourcefile(module)
            if file is None:
                return None
            known = _LOADED[module_name] = (loading, _hash(Path(file).read_bytes()))
        return known[1]
    except (AttributeError, OSError, TypeError):  # no source: compiled, typed into a prompt, or gone
        return None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()

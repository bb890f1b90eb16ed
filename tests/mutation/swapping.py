"""A mutant in the place of what it is a mutant of: in functions that are loaded, or in a module that is not."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutation.mutants import mutated


def outside_of_functions(path: Path, number: int | None) -> bool:
    """Tell whether a mutant changes what runs when the module is loaded: constants, defaults, class bodies."""
    return _changed(path, number) is None


def replace_code(package: Path, path: Path, number: int | None) -> None:
    """Give the loaded function that a mutant lies in the mutant's code; whoever holds the function has it then."""
    name, code = _changed(path, number)  # type: ignore[misc]
    found: object = importlib.import_module(_module(package, path))
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    _function(found).__code__ = code


def load_anew(package: Path, path: Path, number: int | None) -> None:
    """Have the mutant loaded in the place of the module, by whoever imports it first."""
    assert "upcycled" not in sys.modules
    sys.meta_path.insert(0, Swap(_module(package, path), path, number))


class Swap(importlib.machinery.SourceFileLoader):
    """A finder and a loader for the one module."""

    def __init__(self, module: str, path: Path, number: int | None) -> None:
        super().__init__(module, str(path))
        self.number = number

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        within = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=within)

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(mutated(Path(self.path), self.number), Path(self.path))


def _module(package: Path, path: Path) -> str:
    dotted = ".".join(path.relative_to(package.parent).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


def _compiled(tree: ast.Module, path: Path) -> CodeType:
    return compile(tree, str(path), "exec", dont_inherit=True)


def _changed(path: Path, number: int | None) -> tuple[str, CodeType] | None:
    """Return the outermost function that a mutant lies in, with its new code; None if it lies in no function."""
    sound, other = _compiled(mutated(path, None), path), _compiled(mutated(path, number), path)
    pairs = list(zip(_functions(sound), _functions(other), strict=True))
    changed = [(new.co_qualname, new) for old, new in pairs if old != new]
    return changed[0] if len(changed) == 1 and _without_functions(sound) == _without_functions(other) else None


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions and methods, without what is inside of them."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & inspect.CO_OPTIMIZED:  # a function's, and no class body's
                if not const.co_name.startswith("<"):
                    yield const
            else:
                yield from _functions(const)


def _without_functions(code: CodeType) -> tuple[object, ...]:
    inner = [
        _without_functions(const) if not const.co_flags & inspect.CO_OPTIMIZED else const.co_name
        for const in code.co_consts
        if isinstance(const, CodeType)
    ]
    plain = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    return code.co_code, tuple(plain), tuple(inner)


def _function(found: object) -> FunctionType:
    """Return the plain function in a method, property or wrapper."""
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        match found:
            case property():
                found = found.fget
            case functools.cached_property():
                found = found.func
            case staticmethod() | classmethod():
                found = found.__func__
            case _:
                found = found.__wrapped__  # type: ignore[attr-defined]
    return found

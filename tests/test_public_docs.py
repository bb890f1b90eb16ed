"""What users call says what it takes, what it gives, what it refuses, and shows itself at work."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import upcycled as up
from upcycled.algorithms import ALGORITHMS
from upcycled.core.errors import InputError, Limits

HANDED_OVER = {
    # Values that a run, a function or a hook gets or gives: shown by the examples of what makes them, and of what
    # takes them (Algorithm, Mechanism, Rule, Callback).
    *("Cohort", "Comparison", "Constants", "Description", "Facts", "Failed", "Fitted", "History", "Move"),
    *("Combination", "Received"),
    *("NoiseSource", "Observed", "OneRun", "Plan", "Problem", "Promise", "Record", "Release", "Result"),
    *("RoundResult", "Run", "Server", "Setting", "Step", "Trained", "TwoWorlds", "ScalarRule", "Lstm"),
    # Errors are raised.
    *("BudgetSpentError", "DivergedError", "UpcycledError"),
}
REFUSES_NOTHING = {"train_many"}  # a run that cannot start comes back as Failed
IS_OURS = "upcycled"


def exported(module: types.ModuleType = up, path: str = "up") -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from exported(value, f"{path}.{name}")
        else:
            yield f"{path}.{name}", value


def once(named: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """The names, each value under its first one."""
    found: dict[int, tuple[str, Any]] = {}
    for name, value in named:
        found.setdefault(id(value), (name, value))
    return dict(found.values())


EXPORTED = once(exported())
CLASSES = {name: value for name, value in EXPORTED.items() if inspect.isclass(value)}


def functions() -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in EXPORTED.items() if inspect.isfunction(value))
    for name, kind in CLASSES.items():
        for method, value in vars(kind).items():
            is_maker = isinstance(value, classmethod)
            if not method.startswith("_") and (is_maker or (kind is up.FederatedData and inspect.isfunction(value))):
                yield f"{name}.{method}", value.__func__ if is_maker else value


FUNCTIONS = dict(functions())


def section(doc: str, title: str) -> str:
    """The indented lines below ``title:``."""
    found = re.search(rf"^{title}:\n((?:(?: .*)?\n)+)", f"{doc}\n", flags=re.MULTILINE)
    return "" if found is None else textwrap.dedent(found[1])


def documented(doc: str, title: str) -> set[str]:
    return {found.lstrip("*") for found in re.findall(r"^(\*{0,2}\w+):", section(doc, title), flags=re.MULTILINE)}


def refuses(function: Any, looked_at: set[Any] | None = None) -> bool:
    """Whether a function, or one of this package's that it calls by name, makes an InputError or checks a number."""
    looked_at = set() if looked_at is None else looked_at
    function = inspect.unwrap(function)
    if function in looked_at:
        return False
    looked_at.add(function)
    codes = [function.__code__]
    for code in codes:
        codes.extend(one for one in code.co_consts if inspect.iscode(one))
    used = [function.__globals__.get(name) for code in codes for name in code.co_names]
    if any(value is InputError or value is Limits or isinstance(value, Limits) for value in used):
        return True
    for value in used:
        if inspect.isclass(value) and value.__module__.startswith(IS_OURS):
            value = vars(value).get("__post_init__")
        if inspect.isfunction(value) and value.__module__.startswith(IS_OURS) and refuses(value, looked_at):
            return True
    return False


def lacks(function: Any) -> list[str]:
    doc, taken = inspect.getdoc(function) or "", inspect.unwrap(function)
    code = taken.__code__
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
    wanted = [name for name in names if name not in ("self", "cls")]
    found = [f"Args: {name}" for name in wanted if name not in documented(doc, "Args")]
    found += [f"Args has {name}" for name in documented(doc, "Args") - set(names)]
    if taken.__annotations__.get("return") not in (None, "None") and not section(doc, "Returns"):
        found.append("Returns")
    if taken.__name__ not in REFUSES_NOTHING and refuses(taken) and "InputError" not in documented(doc, "Raises"):
        found.append("Raises")
    return found if ">>> " in doc else [*found, "an example"]


def is_set_by_users(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and kind.__name__ not in HANDED_OVER


@functools.cache
def described_fields(kind: type) -> frozenset[str]:
    """The fields of a dataclass that its docstring explains, or a string below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    below = {
        one.target.id
        for one, after in itertools.pairwise(body)
        if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    doc = inspect.getdoc(kind) or ""
    return frozenset(below | documented(doc, "Args") | documented(doc, "Attributes"))


def test_the_walk_finds_what_users_call() -> None:
    assert {"up.train", "up.compare", "up.train_many", "up.data.load", "up.data.partition.iid"} <= FUNCTIONS.keys()
    assert {"up.FederatedData.from_arrays", "up.FederatedData.split", "up.privacy.Ledger.read"} <= FUNCTIONS.keys()
    assert {"up.privacy.gdp_epsilon", "up.privacy.audit.one_run", "up.theory.constants"} <= FUNCTIONS.keys()
    missing = {f"up.{kind.__name__}" for kind in ALGORITHMS.values()} - CLASSES.keys()
    assert not missing, f"export {sorted(missing)} in upcycled/__init__.pyi"


def test_the_readme_and_the_tests_by_hand_have_every_algorithm() -> None:
    root = Path(__file__).parents[1]
    listed = (root / "README.md").read_text().partition("- **Algorithms**:")[2].partition("\n- **")[0]
    by_hand = (root / "tests/algorithms/test_hand_derived.py").read_text()
    for kind in ALGORITHMS.values():
        assert kind.__name__.lower() in listed.lower(), f"README's list of algorithms lacks {kind.__name__}"
        assert kind.__name__ in by_hand, f"two rounds of {kind.__name__} by hand belong into test_hand_derived.py"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_users_function_documents_what_it_takes_gives_and_refuses_and_has_an_example(name: str) -> None:
    assert lacks(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_users_class_has_an_example_unless_it_is_handed_over(name: str) -> None:
    doc = CLASSES[name].__doc__ or ""
    assert ">>> " in doc or name.rpartition(".")[2] in HANDED_OVER


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if is_set_by_users(kind)])
def test_every_field_that_a_user_sets_is_explained(name: str) -> None:
    kind = CLASSES[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - described_fields(kind) == set()


def test_nothing_is_excused_that_is_not_there_or_needs_no_excuse() -> None:
    named = {name.rpartition(".")[2]: kind for name, kind in CLASSES.items()}
    assert named.keys() >= HANDED_OVER
    assert [name for name in HANDED_OVER if ">>> " in (named[name].__doc__ or "")] == []


def checks_deeply(width: int) -> int:
    return checks(width)


def checks(width: int) -> int:
    if width < 1:
        raise InputError(field="width", value=width, must="at least 1")
    return width


checks.__module__ = checks_deeply.__module__ = "upcycled.example"


def test_a_function_without_the_sections_is_told_what_it_lacks() -> None:
    assert lacks(checks_deeply) == ["Args: width", "Returns", "Raises", "an example"]

    def half(width: int, **options: int) -> None:
        """Halve.

        Args:
            width: what to halve.
            depth: nothing takes this.

        >>> half(2)
        """

    assert lacks(half) == ["Args: options", "Args has depth"]

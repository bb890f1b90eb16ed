"""The extras: what is imported is declared, and each is asked for where it is used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.wording import has_all
from upcycled._utils.extras import EXTRAS, missing, needs
from upcycled.core.errors import InputError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "upcycled"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CALLED = {"mlflow": "mlflow-skinny", "sklearn": "scikit-learn"}
"""Name in an import -> name of the package, where they differ by more than a dash."""
ALONG = {"llvmlite": "numba", "markupsafe": "jinja2", "starlette": "flwr"}
"""Imported without being declared, because another package stands on it."""


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9_.-]+", words).group() for words in requirements}


def declared(module: str) -> str:
    return CALLED.get(module, module.replace("_", "-"))


BASE = names(PROJECT["dependencies"])
OPTIONAL = {extra: names(words) for extra, words in PROJECT["optional-dependencies"].items()}
MODULES = sorted(
    {
        (path.relative_to(SOURCE).as_posix(), name.split(".")[0])
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
        if name.split(".")[0] not in {*sys.stdlib_module_names, "upcycled"}
    }
)


def asked_for(path: str) -> set[str]:
    """Return the packages that a file asks for."""
    calls = [node for node in ast.walk(ast.parse((SOURCE / path).read_text())) if isinstance(node, ast.Call)]
    asking = [call for call in calls if getattr(call.func, "id", "") in ("needs", "missing")]
    return {node.value for call in asking for node in ast.walk(call) if isinstance(node, ast.Constant)}


def test_whatever_the_package_imports_is_in_the_base_or_is_asked_for():
    assert {"torch", "pandas", "tomli_w"} <= {module for _, module in MODULES}
    for path, module in MODULES:
        asked = ALONG.get(module, module)
        if declared(asked) in BASE:
            continue
        assert asked in EXTRAS, f"{path} imports {module}, which neither the base nor an extra brings"
        assert asked in asked_for(path), f"{path} imports {module} and asks nowhere whether it is there"


def test_every_package_is_in_the_extra_that_its_sentence_names():
    for module, extra in EXTRAS.items():
        assert declared(module) in OPTIONAL[extra]
        assert declared(module) not in BASE


def test_everything_in_the_base_is_used():
    assert {declared(module) for _, module in MODULES} >= BASE


def test_all_is_all_but_flower_and_the_developers_tools():
    (words,) = PROJECT["optional-dependencies"]["all"]
    assert words == f"upcycled-fl[{','.join(sorted(set(OPTIONAL) - {'all', 'dev', 'flower'}))}]"


def test_the_tests_have_every_package_that_the_package_may_import_but_flower():
    brought = re.search(r"upcycled-fl\[(.*)\]", " ".join(PROJECT["optional-dependencies"]["dev"])).group(1).split(",")
    assert set(EXTRAS.values()) - {"flower"} <= set(brought)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert missing("pandas") == ""
    with pytest.raises(InputError) as raised:
        needs("a.parquet", "pandas", "pyarrow")
    assert has_all(str(raised.value), "a.parquet", "'.[data]'")
    assert raised.value.field == "a.parquet"


def test_a_package_without_what_it_needs_itself_is_cured_by_the_same_line(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "markupsafe", None)
    assert missing("jinja2").startswith("needs jinja2: pip install '.[report]'")


def test_a_history_without_pandas_says_how_to_get_it(monkeypatch):
    from upcycled.training.history import History

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"^to_frame.*'\.\[data\]'"):
        History(()).to_frame()

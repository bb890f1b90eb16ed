"""Who may import whom: walked over the real imports of every file."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "upcycled"
PICTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def drawn() -> dict[str, set[str]]:
    """Return who may import whom, as the picture of the rooms has it."""
    text = PICTURE.read_text().split("<!-- rooms -->")[1].split("<!-- end -->")[0]
    rows = [line.split("->") for line in text.splitlines() if "->" in line]
    return {room.strip(): set(below.split()) for room, below in rows}


BELOW = drawn()
FACE = {"config", "auditing", "report", "experiments", "cli"}
"""Rooms that may use the package as its users do."""
HEAVY = {
    "numba",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy.stats",
    "dp_accounting",
    "loky",
    "flwr",
    "optuna",
    "rich",
    "sklearn",
    "mlflow",
    "tensorboard",
    "playwright",
}


@cache
def imports(path: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


FILES = [p for p in sorted(SOURCE.rglob("*.py")) if layer(p) not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_imports_only_from_the_layers_below_it(path):
    own = layer(path)
    assert own in BELOW, f"{own} is a new room: docs/architecture.md must say what it may import"
    for name in imports(path):
        if name == "upcycled" or name.startswith("upcycled."):
            parts = name.split(".")
            target = parts[1] if len(parts) > 1 else "upcycled"
            if target in BELOW:
                assert target == own or target in BELOW[own], f"{path.name} in {own} imports {name}"
            elif target == "upcycled":
                assert own in FACE, f"{path.name} in {own} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if layer(p) == "core"], ids=lambda p: p.name)
def test_core_needs_nothing_but_torch_and_numpy(path):
    outside = {name.split(".")[0] for name in imports(path)} - {"upcycled", "torch", "numpy"}
    standard = {
        "__future__",
        "collections",
        "contextlib",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "importlib",
        "inspect",
        "itertools",
        "linecache",
        "math",
        "multiprocessing",
        "numbers",
        "operator",
        "os",
        "pathlib",
        "re",
        "resource",
        "sys",
        "traceback",
        "typing",
        "unicodedata",
    }
    assert outside <= standard


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    # These are, or make, Numba functions, and are themselves imported lazily.
    where = path.relative_to(SOURCE).as_posix()
    if where.startswith("engines/fused/") or where in ("support/kernel_cache.py", "privacy/sampling/kernels.py"):
        return
    for name in imports(path, top_level_only=True):
        assert not any(name == heavy or name.startswith(heavy + ".") for heavy in HEAVY), f"{path.name} imports {name}"


def test_the_picture_has_every_room_and_no_arrow_that_nobody_takes():
    rooms = {layer(path) for path in FILES}
    assert rooms == set(BELOW)
    taken = {room: set() for room in rooms}
    for path in FILES:
        names = [name.split(".") for name in imports(path) if name.startswith("upcycled.")]
        taken[layer(path)] |= {parts[1] for parts in names if parts[1] in BELOW} - {layer(path)}
    assert taken == BELOW


def test_no_room_below_another_imports_it_back():
    for room, below in BELOW.items():
        assert not any(room in BELOW[other] for other in below), room


def test_only_the_flower_layer_knows_flower():
    knowing = {layer(path) for path in FILES if any(n.split(".")[0] == "flwr" for n in imports(path))}
    assert knowing <= {"flower"}


COMPOSES = {
    "gaussian_epsilon",
    "gdp_epsilon",
    "objective_epsilon",
    "pure_composition_epsilon",
    "sampled_gaussian_epsilon",
}
CALCULATORS = "auditing/formulas.py"
"""The command line's, which answer questions about formulas, not about runs."""
HOMES = ("upcycled.privacy.accounting", "upcycled.privacy.ledger.composition")


def composed_in(path: Path) -> set[str]:
    """Return what a file names of the functions and modules that turn charges into an epsilon."""
    attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    names = {name.rsplit(".", 1)[-1] for name in imports(path)}
    modules = {
        n for n in imports(path) if n.startswith(("upcycled.privacy.accounting", "upcycled.privacy.ledger.composition"))
    }
    return ((attributes | names) & COMPOSES) | modules


@pytest.mark.parametrize("path", [p for p in FILES if layer(p) != "privacy"], ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_outside_privacy_composes_epsilon(path):
    found = composed_in(path)
    assert not found or path.relative_to(SOURCE).as_posix() == CALCULATORS, f"{path.name} uses {found}: ask the Ledger"


def test_the_walk_sees_who_composes():
    assert composed_in(SOURCE / CALCULATORS)
    assert composed_in(SOURCE / "privacy" / "ledger" / "composition.py")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_package_knows_nothing_of_the_repository_around_it(path):
    assert not {name.split(".")[0] for name in imports(path)} & {"studies", "tests", "benchmarks", "examples"}


def test_the_walk_sees_a_wrong_import(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from upcycled.algorithms import FedAvg\n    return FedAvg\n")
    assert "upcycled.algorithms" in imports(wrong)

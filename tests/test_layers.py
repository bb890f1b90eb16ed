"""Who may import whom: walked over the real imports of every file."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "upcycled"
PICTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def drawn() -> dict[str, set[str]]:
    """Return who may import whom, as the picture of the rooms has it."""
    text = PICTURE.read_text().split("<!-- rooms -->")[1].split("<!-- end -->")[0]
    rows = [line.split("->") for line in text.splitlines() if "->" in line]
    return {room.strip(): set(below.split()) for room, below in rows}


BELOW = drawn()
FACE = {"config", "audit", "report", "experiments", "cli"}
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
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path, top_level_only: bool = False) -> set[str]:
    nodes = nodes_of(path)[0].body if top_level_only else nodes_of(path)
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


def where(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_files_import_only_from_the_layers_below_them():
    wrong = []
    for path in FILES:
        own = layer(path)
        assert own in BELOW, f"{own} is a new room: docs/architecture.md must say what it may import"
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "upcycled":
                continue
            target = parts[1] if len(parts) > 1 else "upcycled"
            allowed = own in FACE if target == "upcycled" else target not in BELOW or target in BELOW[own] | {own}
            wrong += [] if allowed else [f"{where(path)} imports {name}"]
    assert not wrong


def test_core_needs_nothing_but_torch_numpy_and_the_standard_library():
    known = {"upcycled", "torch", "numpy", *sys.stdlib_module_names}
    outside = {where(path): {name.split(".")[0] for name in imports(path)} - known for path in FILES}
    assert not {path: names for path, names in outside.items() if names and path.startswith("core/")}


def test_heavy_libraries_are_imported_where_they_are_used():
    # The exceptions are, or make, Numba functions, and are themselves imported lazily.
    light = [
        path
        for path in FILES
        if not where(path).startswith("engines/fused/")
        and where(path) not in ("_utils/compilation.py", "privacy/noise/kernels.py")
    ]
    wrong = [(where(path), name) for path in light for name in imports(path, top_level_only=True) if is_heavy(name)]
    assert not wrong


def is_heavy(name: str) -> bool:
    return any(name == heavy or name.startswith(heavy + ".") for heavy in HEAVY)


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
    assert knowing <= {"federation"}


COMPOSES = {
    "all_epsilons",
    "epsilons",
    "gaussian_epsilon",
    "gdp_epsilon",
    "objective_epsilon",
    "pure_composition_epsilon",
    "sampled_gaussian_epsilon",
}
CALCULATORS = "audit/explain.py"
"""The command line's, which answer questions about formulas, not about runs."""
HOMES = ("upcycled.privacy.accounting", "upcycled.privacy.ledger.composition")


def composed_in(path: Path) -> set[str]:
    """Return what a file names of the functions and modules that turn charges into an epsilon."""
    attributes = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    names = {name.rsplit(".", 1)[-1] for name in imports(path)}
    modules = {
        n for n in imports(path) if n.startswith(("upcycled.privacy.accounting", "upcycled.privacy.ledger.composition"))
    }
    return ((attributes | names) & COMPOSES) | modules


def test_nothing_outside_privacy_composes_epsilon():
    found = {where(path): composed_in(path) for path in FILES if layer(path) != "privacy"}
    assert {path for path, names in found.items() if names} == {CALCULATORS}, f"{found}: ask the Ledger"


def test_the_walk_sees_who_composes():
    assert composed_in(SOURCE / CALCULATORS)
    assert composed_in(SOURCE / "privacy" / "charge_kinds.py")


def test_the_package_knows_nothing_of_the_repository_around_it():
    around = {"studies", "tests", "benchmarks", "examples"}
    wrong = [where(path) for path in SOURCE.rglob("*.py") if {name.split(".")[0] for name in imports(path)} & around]
    assert not wrong


def test_the_walk_sees_a_wrong_import(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from upcycled.algorithms import FedAvg\n    return FedAvg\n")
    assert "upcycled.algorithms" in imports(wrong)

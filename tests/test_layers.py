"""Who may import whom: walked over the real imports of every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "upcycled"
PARTS = {"algorithms", "coefficients", "privacy", "models", "data"}
"""Rooms side by side: each knows the contracts, none knows another."""
BELOW = {
    "core": set(),
    "support": {"core"},
    **{room: {"core", "support"} for room in PARTS},
    "theory": {"core", "models"},
    "engines": {"core", "support", "models"},
    "runtime": {"core", "support", "engines", "theory"} | PARTS - {"algorithms"},
    "config": {"core", "support", "engines", "runtime", "upcycled"} | PARTS,
    "auditing": {"core", "support", "coefficients", "privacy", "models", "runtime", "config", "upcycled"},
    "report": {"core", "support", "algorithms", "privacy", "config", "upcycled"},
    "experiments": {"core", "support", "engines", "theory", "runtime", "config", "report", "auditing", "upcycled"}
    | PARTS,
    "integrations": {"core", "support", "runtime", "config", "experiments"},
    "flower": {"core", "runtime", "config"} | PARTS,
    "cli": {
        "core",
        "support",
        "runtime",
        "data",
        "config",
        "experiments",
        "auditing",
        "report",
        "integrations",
        "upcycled",
    },
}
"""Who may import whom; docs/architecture.md draws it."""
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
    "mlflow",
    "tensorboard",
    "playwright",
}


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
    assert own in BELOW, f"{own} is a new layer: say in this test what it may import"
    for name in imports(path):
        if name == "upcycled" or name.startswith("upcycled."):
            parts = name.split(".")
            target = parts[1] if len(parts) > 1 else "upcycled"
            if target in BELOW or target == "upcycled":
                assert target == own or target in BELOW[own], f"{path.name} in {own} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if layer(p) == "core"], ids=lambda p: p.name)
def test_core_needs_nothing_but_torch_and_numpy(path):
    outside = {name.split(".")[0] for name in imports(path)} - {"upcycled", "torch", "numpy"}
    standard = {
        "__future__",
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "importlib",
        "math",
        "numbers",
        "operator",
        "os",
        "pathlib",
        "re",
        "sys",
        "typing",
    }
    assert outside <= standard


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    # The fused kernels are Numba functions; their module is itself imported lazily.
    if path.relative_to(SOURCE).parts[:2] == ("engines", "fused"):
        return
    for name in imports(path, top_level_only=True):
        assert not any(name == heavy or name.startswith(heavy + ".") for heavy in HEAVY), f"{path.name} imports {name}"


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

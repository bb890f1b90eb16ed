"""The private parts of other people's libraries that we use, by name: who moves them is told here, and first."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from torch import nn

from upcycled.core.layout import layout_of
from upcycled.engines.fused.supported import stack_of

SOURCE = Path(__file__).parents[2] / "src" / "upcycled"

# What Numba has no public place for, and what each of our files would need in its stead.
NUMBA = {
    ("numba.core", "cgutils"): ["alloca_once_value", "for_range", "for_range_slice", "get_or_insert_function"],
    ("numba.core", "event"): ["install_recorder"],
}
HOOKS = {
    "_forward_hooks": "register_forward_hook",
    "_forward_pre_hooks": "register_forward_pre_hook",
    "_backward_hooks": "register_full_backward_hook",
    "_backward_pre_hooks": "register_full_backward_pre_hook",
}


@pytest.mark.parametrize(("place", "names"), NUMBA.items(), ids=".".join)
def test_numba_still_has_what_the_fused_kernels_are_made_with(place, names):
    try:
        module = importlib.import_module(".".join(place))
    except ImportError:
        pytest.fail(f"Numba moved {'.'.join(place)}, which the fused engine imports: look for its new place")
    for name in names:
        assert hasattr(module, name), f"Numba moved {'.'.join(place)}.{name}, which the fused engine calls"


def test_numba_still_reads_its_cache_folder_where_a_function_is_decorated(tmp_path, monkeypatch):
    import numba

    assert hasattr(numba.config, "CACHE_DIR"), "Numba moved config.CACHE_DIR, which names the kernels' cache folder"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    made = numba.njit(cache=True)(by_itself)
    monkeypatch.undo()
    assert Path(made.stats.cache_path).is_relative_to(tmp_path), "Numba reads config.CACHE_DIR at another time now"


def by_itself(x):
    return x


@pytest.mark.parametrize("register", HOOKS.values())
def test_torch_still_keeps_hooks_where_the_fused_engine_looks_for_them(register):
    module = nn.Linear(2, 2)
    assert not isinstance(stack_of(module, layout_of(module)), str)
    getattr(module, register)(lambda *_: None)
    found = stack_of(module, layout_of(module))
    assert found == "the fused engine does not run module hooks", f"torch keeps what {register} gets elsewhere now"


THEIRS = ("torch", "numba", "nn")


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def private_names(path: Path) -> set[str]:
    """Return what a file takes from numba.core, and underscored names of torch and Numba."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute) and root_of(node) in THEIRS:
            found.add(ast.unparse(node))
    theirs = {name for name in found if name.split(".")[0] in THEIRS}
    return {n for n in theirs if n.startswith("numba.core.") or any(p[0] == "_" and p[1] != "_" for p in n.split("."))}


def test_no_other_private_name_of_torch_or_numba_is_used():
    used = set().union(*(private_names(path) for path in SOURCE.rglob("*.py")))
    assert used == {".".join(place) for place in NUMBA}


@pytest.mark.parametrize(
    "line",
    [
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "torch.autograd.Variable._execution_engine.run_backward()",
        "from numba.core import types",
        "import numba.core.datamodel",
        "import torch._dynamo",
    ],
)
def test_the_walk_sees_a_private_name(tmp_path, line):
    (tmp_path / "wrong.py").write_text(line)
    assert private_names(tmp_path / "wrong.py")

"""Mutants of a module: every small change of an expression that a test ought to notice, one at a time.

A mutant is named by where it is and what it becomes. Annotations, docstrings, error texts and what stands in ``raise``
change no number and are left alone.
"""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
            ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
           "sum": "max", "floor": "ceil", "ceil": "floor", "exp": "expm1", "log": "log1p", "log1p": "log",
           "expm1": "exp", "cumsum": "cumprod", "argmin": "argmax", "argmax": "argmin", "sqrt": "square"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: str
    """Of the module, from the repository's folder."""
    number: int | None
    """Among all mutants of the module, in the order of its syntax tree."""
    line: int
    column: int
    was: str
    becomes: str
    function: str
    """Qualified name of the function it lies in; empty outside of functions."""
    before: str
    """The statement that it changes; of one with a body, the head."""
    after: str
    nth: int
    """Among the mutants of the module with this function, before and after."""

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.was} -> {self.becomes}"

    @property
    def edit(self) -> Edit:
        return Edit(self.function, self.before, self.after, self.nth)


class Edit(NamedTuple):
    """A mutant without its place: it is found again after its function moved to another module."""

    function: str
    before: str
    after: str
    nth: int


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return all mutants of a module."""
    tree = ast.parse(path.read_text())
    homes = dict(_homes(tree, tree, ()))
    made: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for number, (node, change) in enumerate(_changes(tree)):
        was, replaced = ast.unparse(node), change(copy.deepcopy(node))
        function, statement = homes[node]
        texts = function, _head(statement), _head(statement, node, replaced)
        made.append(
            Mutant(
                *(path.relative_to(root).as_posix(), number, node.lineno, node.col_offset, was, ast.unparse(replaced)),
                *(*texts, seen[texts]),
            )
        )
        seen[texts] += 1
    return made


def found_again(edits: Iterable[Edit], paths: Iterable[Path], root: Path) -> dict[Edit, Mutant | None]:
    """Return the mutants that make these edits, wherever their functions are now; None where one is gone."""
    now: dict[Edit, Mutant] = {}
    for path in paths:
        for mutant in mutants_of(path, root):
            now.setdefault(mutant.edit, mutant)
    return {edit: now.get(edit) for edit in edits}


def mutated(path: Path, number: int | None) -> ast.Module:
    """Return the module's syntax tree with one mutant in it; None stands for the sound module."""
    tree = ast.parse(path.read_text())
    if number is None:
        return tree
    node, change = list(_changes(tree))[number]
    replaced = change(copy.deepcopy(node))
    ast.copy_location(replaced, node)

    class Replace(ast.NodeTransformer):
        def visit(self, seen: ast.AST) -> ast.AST:
            return replaced if seen is node else self.generic_visit(seen)

    return ast.fix_missing_locations(Replace().visit(tree))


def drawn(paths: Sequence[Path], root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw so many mutants of all of the modules', each equally likely."""
    every = [mutant for path in paths for mutant in mutants_of(path, root)]
    return random.Random(seed).sample(every, min(count, len(every)))


def _homes(node: ast.AST, statement: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[ast.AST, tuple[str, ast.AST]]]:
    """Yield every node with the name of its function and the smallest statement around it."""
    for child in ast.iter_child_nodes(node):
        inside = child if isinstance(child, ast.stmt) else statement
        yield child, (".".join(names), inside)
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from _homes(child, inside, (*names, child.name) if named else names)


def _head(statement: ast.AST, node: ast.AST | None = None, replaced: ast.AST | None = None) -> str:
    """Return the text of a statement without the statements inside it, with one node replaced."""
    shell = copy.deepcopy(statement, {} if node is None else {id(node): replaced})
    for part in ast.walk(shell):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(value := getattr(part, name, None), list) and value:
                setattr(part, name, [ast.Pass()])
    return ast.unparse(ast.fix_missing_locations(shell))


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[ast.AST], ast.AST]]]:
    """Yield nodes and what changes a copy of them; always in the same order."""
    for node in _computing(tree):
        match node:
            case ast.Compare(ops=[op]) if type(op) in COMPARED:
                yield node, _compared
            case ast.BinOp(op=op) if type(op) in COMPUTED:
                yield node, _computed
            case ast.BoolOp():
                yield node, _other_connective
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
                yield node, lambda seen: seen.operand
            case ast.Constant(value=bool()):
                yield node, lambda seen: ast.Constant(not seen.value)
            case ast.Constant(value=int() | float()):
                yield node, lambda seen: ast.Constant(_more(seen.value))
                if node.value:
                    yield node, lambda seen: ast.Constant(_less(seen.value))
            case ast.IfExp():
                yield node, lambda seen: ast.IfExp(seen.test, seen.orelse, seen.body)
            case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
                yield node, _swapped_name
            case ast.Call(func=ast.Attribute(attr=name)) if name in SWAPPED:
                yield node, _swapped_attribute
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield node, lambda seen: ast.Return(ast.Constant(None))


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below that compute something, outermost first."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
                continue
            if isinstance(child, ast.FunctionDef) and "overload" in map(ast.unparse, child.decorator_list):
                continue  # a signature
            if (
                isinstance(child, ast.AnnAssign)
                and isinstance(child.annotation, ast.Name)
                and child.annotation.id == "TypeAlias"
            ):
                continue
            yield child
            yield from _computing(child)


def _more(value: float) -> float:
    return value + 1 if value + 1 != value else 2 * value


def _less(value: float) -> float:
    return value - 1 if value - 1 != value else value / 2


def _compared(seen: ast.AST) -> ast.AST:
    assert isinstance(seen, ast.Compare)
    seen.ops = [COMPARED[type(seen.ops[0])]()]
    return seen


def _computed(seen: ast.AST) -> ast.AST:
    assert isinstance(seen, ast.BinOp)
    seen.op = COMPUTED[type(seen.op)]()
    return seen


def _other_connective(seen: ast.AST) -> ast.AST:
    assert isinstance(seen, ast.BoolOp)
    seen.op = ast.Or() if isinstance(seen.op, ast.And) else ast.And()
    return seen


def _swapped_name(seen: ast.AST) -> ast.AST:
    assert isinstance(seen, ast.Call)
    assert isinstance(seen.func, ast.Name)
    seen.func.id = SWAPPED[seen.func.id]
    return seen


def _swapped_attribute(seen: ast.AST) -> ast.AST:
    assert isinstance(seen, ast.Call)
    assert isinstance(seen.func, ast.Attribute)
    seen.func.attr = SWAPPED[seen.func.attr]
    return seen

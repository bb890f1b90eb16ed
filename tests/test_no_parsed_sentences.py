"""No code of the package looks for facts in the text of an error: an error that is to be understood has fields."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import upcycled

SOURCE = Path(upcycled.__file__).parent
SHOWS = {("core/errors.py", "reason_of")}
"""What makes one line of somebody else's error, for a person to read."""


def caught_names(function: ast.AST) -> set[str]:
    """Names of exceptions: caught ones, and arguments whose type says so."""
    caught = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    arguments = [node for node in ast.walk(function) if isinstance(node, ast.arg) and node.annotation is not None]
    return caught | {node.arg for node in arguments if ast.unparse(node.annotation).endswith(("Error", "Exception"))}


def is_text_of(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Say whether an expression is an error's text: str(error), f"{error}", error.args, or a name for one of them."""
    if isinstance(node, ast.Name):
        return node.id in texts
    if isinstance(node, ast.Attribute):
        return node.attr == "args" and isinstance(node.value, ast.Name) and node.value.id in errors
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) and is_error(part.value, errors) for part in node.values)
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
    return is_call and bool(node.args) and is_error(node.args[0], errors)


def is_error(node: ast.AST, errors: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in errors


def parsed_lines(function: ast.AST) -> list[int]:
    """Lines that take an error's text apart, search it, or compare it."""
    errors = caught_names(function)
    if not errors:
        return []
    nodes = list(ast.walk(function))
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and is_text_of(node.value, errors, set())]
    texts = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}

    def is_text(node: ast.AST) -> bool:
        return is_text_of(node, errors, texts)

    found = []
    for node in nodes:
        is_method = isinstance(node, ast.Attribute) and is_text(node.value)
        is_part = isinstance(node, ast.Subscript) and is_text(node.value)
        is_compared = isinstance(node, ast.Compare) and any(map(is_text, [node.left, *node.comparators]))
        is_matched = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("search", "match", "fullmatch", "split", "findall", "finditer", "sub")
            and any(map(is_text, node.args))
        )
        if is_method or is_part or is_compared or is_matched:
            found.append(node.lineno)
    return found


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_nobody_takes_the_text_of_an_error_apart():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            if (name, function.name) not in SHOWS:
                found += [f"{name}:{line}" for line in parsed_lines(function)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "str(error).partition(' is ')",
        "str(error).startswith('lr')",
        "'lr' in str(error)",
        "str(error) == 'lr'",
        "f'{error}'.split()",
        "str(error)[3:]",
        "error.args[0]",
        "re.search('lr', str(error))",
        "PATTERN.match(str(error))",
    ],
)
def test_the_search_finds_each_way_to_do_it(line):
    caught = f"def f():\n    try:\n        g()\n    except ValueError as error:\n        found = {line}\n"
    given = f"def f(error: InputError):\n    return {line}\n"
    by_name = "def f(error: InputError):\n    text = str(error)\n    return text.partition(' is ')\n"
    assert [parsed_lines(functions(ast.parse(code))[0]) != [] for code in (caught, given, by_name)] == [True] * 3


@pytest.mark.parametrize("line", ["f'{error}'", "str(error)", "error.strerror or str(error)", "one_line(str(error))"])
def test_showing_an_error_is_fine(line):
    code = f"def f(error: OSError):\n    return {line}\n"
    assert parsed_lines(functions(ast.parse(code))[0]) == []

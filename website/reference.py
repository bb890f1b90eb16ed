"""The reference, from the docstrings: a page for each module that ``upcycled`` exports, and one for the commands."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
MOST = 88
"""Characters of a signature in one line."""


def pages() -> dict[str, str]:
    """Return path below ``reference`` -> Markdown."""
    import upcycled as up

    modules = dict(_modules(up, "up"))
    found = {f"{path}.md": module_page(path, module) for path, module in modules.items()}
    found["commands.md"] = commands_page()
    found["files.md"] = keys_page()
    listed = [f"| [`{path}`]({path}.md) | {_first_line(module)} |" for path, module in modules.items()]
    found["index.md"] = "\n".join(
        [
            "# Reference",
            "",
            "Everything public, from the docstrings; the examples are run by the tests. `import upcycled as up`.",
            "",
            "| module | what is in it |",
            "|---|---|",
            *listed,
            "| [`upcycled`](commands.md) | the command line |",
            "| [experiment files](files.md) | their keys |",
            "",
        ]
    )
    return found


def keys_page() -> str:
    """Return the page of an experiment file's keys: of each its default and what it must be."""
    from upcycled.config.experiment import Experiment
    from upcycled.config.registry import TABLES, Choice

    top = {key: field for key, field in Experiment.model_fields.items() if key not in TABLES}
    lines = ["# Experiment files", "", "Every key of a file, and of `key=value` on the command line.", ""]
    lines += _keys("", top)
    for name, kind in TABLES.items():
        lines += ["", f"## `[{name}]`", ""]
        for tag, table in kind.tables.items() if isinstance(kind, Choice) else [("", kind)]:
            title = f'`{kind.tag} = "{tag}"`' if isinstance(kind, Choice) else ""
            lines += [title, "", *_keys(f"{name}.", table.model_fields), ""]
    return "\n".join(lines) + "\n"


def _keys(before: str, fields: Mapping[str, Any]) -> list[str]:
    lines = ["| key | default | expected |", "|---|---|---|"]
    for name, field in fields.items():
        default = (
            "required" if field.is_required() else "" if field.default is None else f"`{json.dumps(field.default)}`"
        )
        must = str(field.description).replace("|", "\\|")
        lines.append(f"| `{before}{field.alias or name}` | {default} | {must} |")
    return lines


def _modules(module: types.ModuleType, path: str) -> Iterator[tuple[str, types.ModuleType]]:
    yield path, module
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from _modules(value, f"{path}.{name}")


def module_page(path: str, module: types.ModuleType) -> str:
    """Return the page of a module: its names in order, classes after functions."""
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    values = sorted(((name, getattr(module, name)) for name in names), key=lambda one: (_kind(one[1]), one[0].lower()))
    parts = [f"# `{path}`", "", markdown(inspect.getdoc(module) or "")]
    for name, value in values:
        parts += ["", *_entry(f"{path}.{name}", value)]
    return "\n".join(parts) + "\n"


def _kind(value: Any) -> int:
    return 0 if inspect.isfunction(value) else 1 if inspect.isclass(value) else 2


def _entry(name: str, value: Any) -> list[str]:
    lines = [f"## {name.rpartition('.')[2]} {{ #{name} }}", ""]
    if not callable(value):
        return [*lines, f"`{name} = {value!r}`" if isinstance(value, (int, float, str, tuple)) else f"`{name}`"]
    lines += ["```text", signature(name, value), "```", "", markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        described = below_fields(value)
        if described:
            lines += ["", *(f"- `{field}`: {_inline(text)}" for field, text in described.items())]
        for member, one in _members(value):
            doc = inspect.getdoc(one) or ""
            head = member if isinstance(one, property) else signature(member, getattr(value, member))
            lines += ["", f"**`{' '.join(head.split())}`**", "", markdown(doc)]
    return lines


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name, member in vars(kind).items():
        is_member = isinstance(member, (property, classmethod, staticmethod)) or inspect.isfunction(member)
        if is_member and not name.startswith("_") and name not in fields and inspect.getdoc(member):
            yield name, member


def signature(name: str, value: Any) -> str:
    """Return how something is called, an argument a line where it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    if getattr(value, "_is_protocol", False) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return name
    short = _unquoted(f"{name}{found}")
    if len(short) <= MOST:
        return short
    shown, is_keyword = [], False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            shown.append("    *,")
            is_keyword = True
        shown.append(_unquoted(f"    {one},"))
    back = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return "\n".join([f"{name}(", *shown, f"){back}"])


def _unquoted(text: str) -> str:
    """Annotations are texts, since all modules import them from the future; readers need no quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def below_fields(kind: type) -> dict[str, str]:
    """Return what strings below the fields of a class say of them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return {}
    found = {}
    for one, after in itertools.pairwise(getattr(tree, "body", [])):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and is_text:
            found[one.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def markdown(doc: str) -> str:
    """Turn a docstring into Markdown: sections become lists, examples code.

    >>> print(markdown("Halve.\\n\\nArgs:\\n    x: what to halve,\\n        a number.\\n\\n>>> 4 / 2\\n2.0"))
    Halve.
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    - `x`: what to halve, a number.
    <BLANKLINE>
    ```pycon
    >>> 4 / 2
    2.0
    ```
    """
    blocks: list[str] = []
    lines = doc.splitlines()
    while lines:
        line = lines[0]
        if line.startswith(">>> "):
            example = _take(lines, lambda one: bool(one.strip()))
            blocks.append("\n".join(["```pycon", *example, "```"]))
        elif line.rstrip().removesuffix(":") in SECTIONS and line.rstrip().endswith(":"):
            title = lines.pop(0).strip().removesuffix(":")
            body = textwrap.dedent("\n".join(_take(lines, lambda one: not one.strip() or one.startswith(" "))))
            blocks.append(f"**{title}**\n\n{_items(body)}")
        elif not line.strip():
            lines.pop(0)
        elif line.startswith("    "):
            body = textwrap.dedent("\n".join(_take(lines, lambda one: not one.strip() or one.startswith(" "))))
            blocks.append("\n".join(["```text", body.rstrip(), "```"]))
        else:
            words = _take(lines, lambda one: bool(one.strip()) and not one.startswith(">>> "))
            blocks.append(_inline("\n".join(words)))
    return "\n\n".join(blocks)


def _take(lines: list[str], goes_on: Any) -> list[str]:
    taken = []
    while lines and goes_on(lines[0]):
        taken.append(lines.pop(0))
    return taken


def _items(body: str) -> str:
    """Entries ``name: words`` as a list; other text as it is."""
    entries: list[str] = []
    for line in body.splitlines():
        if re.match(r"\*{0,2}\w+:", line):
            entries.append(line)
        elif entries and line.startswith(" "):
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(line)
    if not all(re.match(r"\*{0,2}\w+:", entry) for entry in entries):
        return _inline(" ".join(entry.strip() for entry in entries))
    named = (entry.partition(":") for entry in entries)
    return "\n".join(f"- `{name}`: {_inline(words.strip())}" for name, _, words in named)


def _inline(text: str) -> str:
    """Keep Markdown from seeing marks that are none: code stays, the rest is escaped."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"``\1``", text)
    pieces = re.split(r"(``.*?``|`.*?`)", text, flags=re.DOTALL)
    return "".join(piece if place % 2 else re.sub(r"([<*_\[\]])", r"\\\1", piece) for place, piece in enumerate(pieces))


def _first_line(module: types.ModuleType) -> str:
    return _inline((inspect.getdoc(module) or "").partition("\n")[0]).replace("|", "\\|")


def commands_page() -> str:
    """Return the help of every command."""
    from upcycled.cli.main import _parser

    lines = ["# The command line", "", "What `--help` prints, for every command."]
    for name, parser in _commands(_parser(), "upcycled"):
        help_text = re.sub(r"^usage: .*?\n\n", f"usage: {_usage(parser)}\n\n", parser.format_help(), flags=re.DOTALL)
        lines += ["", f"{'#' * min(1 + len(name.split()), 4)} {name}", "", "```text", help_text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _commands(below, f"{name} {word}")

"""Tables, notes and documents in a terminal, and in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from upcycled.support.said import say

WIDTH_IN_A_PIPE = 160


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    say(text)


def note_left_out(files: Mapping[str, str]) -> None:
    """Say which files were not written, for want of which packages, and how to get these.

    Args:
        files: what each is -> the package that it needs.
    """
    from upcycled.support.extras import missing

    if files:
        note(f"note: {' and '.join(f'no {what}' for what in files)} was written: that {missing(*files.values())}")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    last_apart: bool = False,
    words: Sequence[str] = (),
) -> None:
    """Print a table on standard output, the first column to the left and numbers to the right.

    Columns named in ``words`` hold words: they stand to the left and are folded where the terminal is narrow.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width: rich would take 80 columns and cut numbers off.
    console = Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1 if console.width >= 100 else 0))
    for i, column in enumerate(columns):
        is_left = i == 0 or column in words
        table.add_column(column, justify="left" if is_left else "right", no_wrap=column not in words)
    for i, row in enumerate(rows):
        table.add_row(*row, end_section=last_apart and i == len(rows) - 2)
    console.print(title, style="bold", highlight=False)
    console.print(table)


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print what and value on standard output, long values folded."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in rows:
        table.add_row(what, value)
    # Names out of files are text, never markup.
    Console(markup=False, emoji=False, highlight=False).print(table)

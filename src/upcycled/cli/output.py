"""Tables, notes and documents in a terminal, and in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upcycled._utils.messages import say

if TYPE_CHECKING:
    from upcycled.run_folder import Summary


WIDTH_IN_A_PIPE = 80
ROOMY = 100
"""Columns of a terminal from which on cells stand apart by more than a space."""


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    say(text)


def tip_words(summary: Summary) -> str | None:
    """Return the last chain value of the ledger of a run with real noise, in a sentence; None for other runs."""
    privacy = summary.privacy
    if privacy is None or privacy.noise != "system" or not privacy.head:
        return None
    return f"the ledger's tip is {privacy.head['tip']}: keep it elsewhere, evidence is checked against it"


def note_left_out(files: Mapping[str, str]) -> None:
    """Say which files were not written, for want of which packages, and how to get these.

    Args:
        files: what each is -> the package that it needs.
    """
    from upcycled._utils.extras import missing

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

    Columns named in ``words`` hold words: they stand to the left. Where the terminal is narrow, words and headings are
    folded; where even that has no room, each row becomes lines of its own. No number is ever cut.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE, markup=False, emoji=False)
    padding = 1 if console.width >= ROOMY else 0
    is_left = [i == 0 or column in words for i, column in enumerate(columns)]
    between = (1 + 2 * padding) * (len(columns) - 1)
    widths = fitted_widths(columns, rows, is_left, console.width - between)
    console.print(title, style="bold", highlight=False)
    if widths is None:
        _print_blocks(console, columns, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, padding))
    for column, left, width in zip(columns, is_left, widths, strict=True):
        table.add_column(column, justify="left" if left else "right", width=width)
    for i, row in enumerate(rows):
        table.add_row(*row, end_section=last_apart and i == len(rows) - 2)
    console.print(table)


def fitted_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], folds: Sequence[bool], room: int
) -> list[int] | None:
    """Return how wide columns are so that all have room, the widest made narrower first; None where they have not.

    Headings are folded between words, and so are the cells of columns that may; a number never is.

    >>> fitted_widths(["run", "a long heading"], [["first", "12.345"]], [True, False], 12)
    [5, 7]
    >>> fitted_widths(["run", "a long heading"], [["first", "12.345"]], [True, False], 11) is None
    True
    """
    widths, least = [], []
    for i, column in enumerate(columns):
        cells = [row[i] for row in rows]
        words = [word for text in (column, *(cells if folds[i] else ())) for word in text.split()]
        least.append(max(map(len, [*words, *([] if folds[i] else cells), ""])))
        widths.append(max(least[i], *(len(line) for text in (column, *cells) for line in [*text.splitlines(), ""])))
    if sum(least) > room:
        return None
    while sum(widths) > room:
        # Words first: a folded heading costs a line once, a folded cell one in each row, and both beat a cut number.
        place = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[place] -= 1
    return widths


def _print_blocks(console: Any, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of its own, where they have no room beside one another."""
    names = [" ".join(column.split()) for column in columns[1:]]
    width = max(map(len, names), default=0)
    for first, *cells in rows:
        console.print(first, highlight=False)
        for name, cell in zip(names, cells, strict=True):
            console.print(f"  {name:<{width}}  {cell}", highlight=False)


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

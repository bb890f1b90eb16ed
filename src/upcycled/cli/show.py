"""How numbers and tables look in a terminal, and in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH_IN_A_PIPE = 160


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


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


def number(value: float | None, digits: int = 3, scale: float = 1.0) -> str:
    """Return a number with so many digits after the point.

    >>> number(0.98765, 2, scale=100), number(None)
    ('98.77', '-')
    """
    return "-" if value is None else f"{scale * value:.{digits}f}"


def count(value: float | None) -> str:
    """Return a whole number in groups of three."""
    return "-" if value is None else f"{value:,.0f}"


def megabytes(value: float | None) -> str:
    """Return bytes in MB.

    >>> megabytes(90_720), megabytes(12_345_678)
    ('0.091', '12.3')
    """
    return "-" if value is None else f"{value / 1e6:.3f}" if value < 1e6 else f"{value / 1e6:,.1f}"


def spread(cell: Mapping[str, float | None], scale: float = 1.0, digits: int = 3) -> str:
    """Return mean ± standard deviation.

    >>> spread({"mean": 0.5, "sd": 0.01}, scale=100, digits=2)
    '50.00 ± 1.00'
    """
    mean, sd = cell["mean"], cell["sd"]
    if mean is None:
        return "-"
    more = "" if sd is None else f" ± {scale * sd:.{digits}f}"
    return f"{scale * mean:.{digits}f}{more}"

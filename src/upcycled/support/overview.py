"""A value in a few lines: a table for ``print``, and the same one for a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass


@dataclass(frozen=True)
class Overview:
    """A title over rows of words; the first cell of a row says what the others are.

    Who makes one keeps it short: the whole of a value is asked for by its fields.

    >>> print(Overview("two clients", (("samples", "80"), ("classes", "10"))).text)
    two clients
      samples  80
      classes  10
    >>> Overview("a < b", (("n", "1"),)).html
    '<table><caption>a &lt; b</caption><tbody><tr><th>n</th><td style="text-align:left">1</td></tr></tbody></table>'
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    head: tuple[str, ...] = ()
    """Over the columns; none where a row is a name and its value."""

    @property
    def text(self) -> str:
        """The table as lines, columns under one another."""
        lines = [self.head, *self.rows] if self.head else list(self.rows)
        # A last cell of words may be long, and has nothing to the right of it.
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines), default=0))]
        laid = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)) for line in lines)
        return "\n".join([self.title, *(f"  {line}".rstrip() for line in laid)])

    @property
    def html(self) -> str:
        """The table as HTML, in which every text is escaped; the notebook's own style applies."""
        # Notebooks have cells to the right, which is for columns of numbers.
        cell = "<td>" if self.head else '<td style="text-align:left">'
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.head)
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>{''.join(f'{cell}{html.escape(text)}</td>' for text in cells)}</tr>"
            for name, *cells in self.rows
        )
        return (
            f"<table><caption>{html.escape(self.title)}</caption>{f'<thead><tr>{head}</tr></thead>' if head else ''}"
            f"<tbody>{rows}</tbody></table>"
        )

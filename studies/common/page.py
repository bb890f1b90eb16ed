"""Pages of the documentation, written from cells: tables of Markdown, and blocks between marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from studies.common.statistics import Paired
from upcycled._utils.files import write_whole
from upcycled.core.errors import InputError

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table.

    >>> table(["a", "b"], [["1", ""]])
    ['| a | b |', '|---|---|', '| 1 | |']
    """
    return [_line(head), "|---" * len(head) + "|", *map(_line, rows)]


def _line(values: Sequence[str]) -> str:
    return "|" + "|".join(f" {value} " if value else " " for value in values) + "|"


def signed(mean: float, low: float, high: float, is_significant: bool, digits: int = 2) -> str:
    """Return a mean and its interval, in bold where it excludes zero.

    >>> signed(0.5, 0.1, 0.9, True), signed(0.5, -0.1, 1.1, False, digits=1)
    ('**+0.50** [+0.10, +0.90]', '+0.5 [-0.1, +1.1]')
    """
    mark = "**" if is_significant else ""
    return f"{mark}{mean:+.{digits}f}{mark} [{low:+.{digits}f}, {high:+.{digits}f}]"


def paired_words(found: Paired) -> str:
    return signed(found.mean, *found.interval, found.is_significant)


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(59.6), duration(600), duration(9000)
    ('60 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def replaced(text: str, blocks: Mapping[str, Sequence[str]]) -> str:
    r"""Return a page with the blocks between their marks; blocks that the page does not have are left out.

    >>> page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    >>> replaced(page, {"x": ["new"]})
    'a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n'
    """
    for name, lines in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, found, after = rest.partition(end)
            if not found:
                raise InputError(f"the page has '{begin}' without '{end}', but both marks must be there")
            text = before + "\n".join([begin, "", *lines, "", end]) + after
    return text


def write_page(page: Path, blocks: Mapping[str, Sequence[str]]) -> None:
    """Write the blocks of a page, and leave the rest as it is."""
    write_whole(page, replaced(page.read_text(encoding="utf-8"), blocks).encode())

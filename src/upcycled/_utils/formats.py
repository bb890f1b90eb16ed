"""How numbers and tables look, in a terminal and on a page.

A value in a few lines: a table for ``print``, and the same one for a notebook.

How numbers look to a reader, on a page as in a terminal; a number that is not known is a dash.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


NONE = "–"


def fixed(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return a number with so many digits after the point.

    >>> fixed(0.91234, 2, 100), fixed(None), fixed(-0.001), fixed(12345.6, 1)
    ('91.23', '–', '0.00', '12,345.6')
    """
    if value is None or math.isnan(value):
        return NONE
    words = f"{scale * value:,.{digits}f}"
    return words.removeprefix("-") if _is_zero(words) else words


def significant(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits.

    >>> significant(2.00001), significant(25952.67), significant(0.00012345), significant(-math.inf)
    ('2', '25,953', '0.0001234', '-∞')
    """
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e9 else f"{value:.{digits}g}"


def general(value: float, digits: int = 6) -> str:
    """Return a number as sentences have it: so many significant digits, large and small ones in powers of ten.

    >>> general(25952.67, 4), general(1e-5), general(0.5)
    ('2.595e+04', '1e-05', '0.5')
    """
    return f"{value:.{digits}g}"


def score_digits(name: str) -> tuple[int, float]:
    """Return with how many digits a score is shown, and scaled by what: accuracy in percent, others as they are.

    >>> score_digits("accuracy"), score_digits("auroc")
    ((2, 100.0), (4, 1.0))
    """
    return (2, 100.0) if name == "accuracy" else (4, 1.0)


def score_title(name: str) -> str:
    """Return a score's name as the head of a column.

    >>> score_title("accuracy"), score_title("f1_macro")
    ('accuracy %', 'f1_macro')
    """
    return "accuracy %" if name == "accuracy" else name


def epsilon(value: float | None) -> str:
    """Return an epsilon, in a form that lines up in a column; in words if it is infinite.

    >>> epsilon(2.0), epsilon(25952.67), epsilon(0.0001234), epsilon(math.inf), epsilon(None)
    ('2.000', '25,953', '0.0001234', 'infinite', '–')
    """
    if value == 0 or value == math.inf:
        return "infinite" if value else "0"
    return significant(value) if value is None or not 1e-3 <= value < 1e3 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Return a part of a whole in percent, with two significant digits or all before the point.

    >>> percent(0.5321), percent(1.0), percent(0.00412), percent(None)
    ('53 %', '100 %', '0.41 %', '–')
    """
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{general(100 * share, 2)} %"


def count(value: float | None) -> str:
    """Return a whole number in groups of three; a mean that is not whole keeps a digit.

    >>> count(4800.0), count(12.5)
    ('4,800', '12.5')
    """
    if isinstance(value, int):
        return f"{value:,}"  # however large: a float may not hold it
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def megabytes(value: float | None) -> str:
    """Return bytes in MB, a few with three digits.

    >>> megabytes(90_720), megabytes(12_345_678)
    ('0.091', '12.3')
    """
    if value is None or math.isnan(value):
        return NONE
    return f"{value / 1e6:.3f}" if value < 1e6 else f"{value / 1e6:,.1f}"


def mean_sd(cell: Mapping[str, float | None], digits: int = 2, scale: float = 1.0) -> str:
    """Return mean ± standard deviation; the latter where there is one.

    >>> mean_sd({"mean": 0.5, "sd": 0.01}, 2, 100), mean_sd({"mean": 1.0, "sd": None})
    ('50.00 ± 1.00', '1.00')
    """
    mean, sd = fixed(cell["mean"], digits, scale), fixed(cell["sd"], digits, scale)
    return mean if NONE in (mean, sd) else f"{mean} ± {sd}"


def signed(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return a difference with its sign.

    >>> signed(1.234), signed(-0.5), signed(0.001), signed(None)
    ('+1.23', '−0.50', '0.00', '–')
    """
    if value is None or math.isnan(value):
        return NONE
    words = fixed(abs(value), digits, scale)
    return words if _is_zero(words) else f"{'+' if value > 0 else '−'}{words}"


def interval(low: float | None, high: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return an interval of differences.

    >>> interval(-0.012, 0.3, 2, 100)
    '−1.20 to +30.00'
    """
    return f"{signed(low, digits, scale)} to {signed(high, digits, scale)}"


def duration(seconds: float) -> str:
    """Return a time as somebody who waits wants it.

    >>> duration(4.2), duration(250), duration(7300)
    ('4 s', '4 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def setting(value: Any) -> str:
    """Return a setting's value as a reader wants it.

    >>> setting(True), setting(0.5), setting([0, 1]), setting("fixed"), setting(None)
    ('yes', '0.5', '0, 1', 'fixed', '–')
    """
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def shortened(text: str, most: int = 60) -> str:
    """Return a text of one line with at most so many characters, a longer one without its end.

    >>> shortened("a hospital in the north", 12), shortened("short")
    ('a hospital…', 'short')
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def _is_zero(words: str) -> bool:
    return float(words.replace(",", "")) == 0

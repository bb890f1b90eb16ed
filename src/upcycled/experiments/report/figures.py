"""How numbers look on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from upcycled.experiments.report.markup import Html, join, tag, text

NONE = "–"


def fixed(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return a number with so many digits after the point.

    >>> fixed(0.91234, 2, 100), fixed(None), fixed(-0.001)
    ('91.23', '–', '0.00')
    """
    if value is None or math.isnan(value):
        return NONE
    words = f"{scale * value:,.{digits}f}"
    return words.removeprefix("-") if float(words.replace(",", "")) == 0 else words


def short(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits.

    >>> short(2.00001), short(25952.67), short(0.00012345), short(float("inf"))
    ('2', '25,953', '0.0001234', 'none')
    """
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "none"
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e9 else f"{value:.{digits}g}"


def cost(value: float | None) -> str:
    """Return an epsilon, in a form that lines up in a column.

    >>> cost(2.0), cost(25952.67), cost(0.0001234), cost(float("inf")), cost(None)
    ('2.000', '25,953', '0.0001234', 'none', '–')
    """
    if value is None or not 1e-3 <= value < 1e3:
        return "0" if value == 0 else short(value)
    return f"{value:.3f}"


def count(value: float | None) -> str:
    """Return a whole number in groups of three; a mean that is not whole keeps a digit.

    >>> count(4800.0), count(12.5)
    ('4,800', '12.5')
    """
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def megabytes(value: float | None) -> str:
    """Return bytes in MB.

    >>> megabytes(90_720), megabytes(12_345_678)
    ('0.091', '12.3')
    """
    if value is None or math.isnan(value):
        return NONE
    return f"{value / 1e6:.3f}" if value < 1e6 else f"{value / 1e6:,.1f}"


def spread(cell: Mapping[str, float | None], digits: int = 2, scale: float = 1.0) -> Html:
    """Return mean ± standard deviation, the latter in the background.

    >>> spread({"mean": 0.5, "sd": 0.01}, 2, 100)
    '50.00<span class="sd"> ± 1.00</span>'
    """
    sd = cell["sd"]
    known = cell["mean"] is not None and sd is not None and not math.isnan(sd)
    more = tag("span", text(f" ± {fixed(sd, digits, scale)}"), class_="sd") if known else Html("")
    return join((text(fixed(cell["mean"], digits, scale)), more))


def signed(value: float, digits: int = 2) -> str:
    """Return a difference with its sign.

    >>> signed(1.234), signed(-0.5), signed(0.001)
    ('+1.23', '−0.50', '0.00')
    """
    words = fixed(abs(value), digits)
    return words if float(words.replace(",", "")) == 0 else f"{'+' if value > 0 else '−'}{words}"

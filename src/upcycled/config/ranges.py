"""Ranges in the table [sweep]: ``"local.lr" = {low = 0.001, high = 0.1, log = true}``, for draws, not for grids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from upcycled.core.errors import InputError, Limits, check_number, suggest

NAMES = ("low", "high", "log", "integer")
_LIKE = "such as {low = 0.001, high = 0.1, log = true}"


class Range(BaseModel):
    """Numbers from low to high, both included; with ``log`` each order of magnitude is as likely as the next."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_number("low", self.low, integer=self.integer)
        check_number("high", self.high, integer=self.integer, above=self.low)
        if self.log:
            check_number("low", self.low, above=0)
        return self

    @property
    def examples(self) -> tuple[float, ...]:
        """Both ends and one between: what is wrong with the others is wrong with one of these."""
        return self.low, self.high, float(f"{self.at(0.41):.3g}") if not self.integer else self.at(0.41)

    def at(self, share: float) -> float:
        """Return the number at a share of the way, 0 <= share < 1; as an integer where they are.

        >>> Range(low=1, high=100, log=True).at(0.5), Range(low=1, high=3, integer=True).at(0.99)
        (10.0, 3)
        """
        # A draw of integers gives each the same share: the top one too.
        low, high = float(self.low), float(self.high) + (1 if self.integer else 0)
        found = low * (high / low) ** share if self.log else low + share * (high - low)
        return min(math.floor(found), int(self.high)) if self.integer else min(max(found, low), high)

    def as_file(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return {key: value for key, value in self.model_dump().items() if value is not False}


def is_range(value: object) -> bool:
    """Say whether a table is meant as a range; no table of the file has keys of these names."""
    return isinstance(value, Mapping) and any(name in value for name in NAMES)


def as_values(key: str, value: Any) -> tuple[Any, ...] | Range:
    """Return a list of the table [sweep] as a tuple, and a range as one.

    Raises:
        InputError: one sentence.
    """
    name = f'sweep."{key}"'
    if isinstance(value, list) and value:
        return tuple(value)
    if not is_range(value):
        raise InputError(field=name, value=value, must=f"a list of one or more values, or a range {_LIKE}")
    for word in value:
        if word not in NAMES:
            raise InputError(f"has the key {word!r}, which a range has not{suggest(word, NAMES)}", field=name)
    try:
        return Range(**value)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    own = found.get("ctx", {}).get("error")
    if isinstance(own, InputError):
        raise own.at(name)
    word = str(found["loc"][0])
    if found["type"] == "missing":
        raise InputError(f"has no {word}, but a range must have low and high, {_LIKE}", field=name)
    must = "true or false" if word in ("log", "integer") else Limits().phrase
    raise InputError(field=word, value=value[word], must=must, where=(name,))

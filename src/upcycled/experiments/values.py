"""The kinds of values that several tables of a config file share, and the words for them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from upcycled.experiments.tables import within

Fraction = Annotated[float, within(at_least=0, below=1)]
Count = Annotated[int, within(at_least=1, integer=True)]
Seed = Annotated[int, within(at_least=0, below=2**63, integer=True)]
Word = Annotated[str, Field(min_length=1)]

FRACTION = "a finite number >= 0 and < 1"
COUNT = "an integer >= 1"
SEED = "an integer >= 0 and < 2^63"

"""The kinds of values that several tables of a config file share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from upcycled.config.toml_tables import within
from upcycled.core.errors import COUNT, FRACTION, SEED

Fraction = Annotated[float, within(FRACTION)]
Count = Annotated[int, within(COUNT)]
Seed = Annotated[int, within(SEED)]
Word = Annotated[str, Field(min_length=1)]

"""The tables [data] of the paper's real sets: FEMNIST and Sent140."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field

from upcycled import data as federated
from upcycled.core.errors import InputError
from upcycled.data import FederatedData
from upcycled.experiments.sentences import in_keys
from upcycled.experiments.tables import Table, within
from upcycled.experiments.values import COUNT, FRACTION, SEED, Count, Fraction, Seed, Word

_LETTERS = Annotated[int, within(at_least=3, at_most=26, integer=True)]


class Femnist(Table):
    """Handwritten letters on devices that know some of them."""

    source: Literal["femnist"] = Field(default="femnist", description="'femnist'")
    path: Word | None = Field(default=None, description="the path of a file or a folder with letters")
    letters: _LETTERS | None = Field(default=None, description="an integer >= 3 and <= 26")
    devices: Count | None = Field(default=None, description=COUNT)
    partition: Literal["published", "drawn"] | None = Field(default=None, description="'published' or 'drawn'")
    seed: Seed = Field(default=0, description=SEED)
    validation_fraction: Fraction = Field(default=0.0, description=FRACTION)

    def load(self) -> FederatedData:
        """Find and read the set."""
        with _about_path(self.path):
            return federated.femnist(
                self.path, letters=self.letters, devices=self.devices, partition=self.partition, seed=self.seed
            )


class Sent140(Table):
    """Tweets, glad or sad, with word vectors."""

    source: Literal["sent140"] = Field(default="sent140", description="'sent140'")
    path: Word | None = Field(default=None, description="the path of a file or a folder with tweets")
    dimension: Literal[0, 50, 100, 300] = Field(default=50, description="50, 100 or 300, or 0 for no word vectors")
    devices: Count = Field(default=52, description=COUNT)
    length: Count = Field(default=25, description=COUNT)
    seed: Seed = Field(default=0, description=SEED)
    validation_fraction: Fraction = Field(default=0.0, description=FRACTION)

    def load(self) -> FederatedData:
        """Find and read the set."""
        with _about_path(self.path):
            return federated.sent140(
                self.path, dimension=self.dimension or None, devices=self.devices, length=self.length, seed=self.seed
            )


@contextmanager
def _about_path(path: str | None) -> Iterator[None]:
    """Name the key in sentences about the source, which the file calls path."""
    try:
        with in_keys({"source": "data.path"}):
            yield
    except InputError as error:
        message = str(error)
        raise InputError(
            f"data.path {message}" if path is not None and message.startswith(path) else message
        ) from error

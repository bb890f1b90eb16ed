"""The tables [data] of the paper's real sets: FEMNIST and Sent140."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from upcycled import data as federated
from upcycled.config.toml_tables import Count, Fraction, Seed, Table, Word, within
from upcycled.config.wording import in_keys, in_path
from upcycled.core.errors import COUNT, FRACTION, SEED, InputError
from upcycled.data import FederatedData
from upcycled.data.sets.femnist_partition import LETTERS

_Letters = Annotated[int, within(LETTERS)]


class Femnist(Table):
    """Handwritten letters on devices that know some of them."""

    source: Literal["femnist"] = Field(default="femnist", description="'femnist'")
    path: Word | None = Field(default=None, description="the path of a file or a folder with letters")
    letters: _Letters | None = Field(default=None, description=LETTERS.phrase)
    devices: Count | None = Field(default=None, description=COUNT.phrase)
    partition: Literal["published", "drawn"] | None = Field(default=None, description="'published' or 'drawn'")
    seed: Seed = Field(default=0, description=SEED.phrase)
    validation_fraction: Fraction = Field(default=0.0, description=FRACTION.phrase)
    public: bool = Field(default=False, description="true or false")

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        _check_public(self.source, repair)
        with in_path(self.path), in_keys({"source": "data.path"}):
            return federated.femnist(
                self.path,
                letters=self.letters,
                devices=self.devices,
                partition=self.partition,
                seed=self.seed,
                public=self.public,
            )


class Sent140(Table):
    """Tweets, glad or sad, with word vectors."""

    source: Literal["sent140"] = Field(default="sent140", description="'sent140'")
    path: Word | None = Field(default=None, description="the path of a file or a folder with tweets")
    dimension: Literal[0, 50, 100, 300] = Field(default=50, description="50, 100 or 300, or 0 for no word vectors")
    devices: Count = Field(default=52, description=COUNT.phrase)
    length: Count = Field(default=25, description=COUNT.phrase)
    seed: Seed = Field(default=0, description=SEED.phrase)
    validation_fraction: Fraction = Field(default=0.0, description=FRACTION.phrase)
    public: bool = Field(default=False, description="true or false")

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        _check_public(self.source, repair)
        with in_path(self.path), in_keys({"source": "data.path"}):
            return federated.sent140(
                self.path,
                dimension=self.dimension or None,
                devices=self.devices,
                length=self.length,
                seed=self.seed,
                public=self.public,
            )


def _check_public(source: str, repair: bool) -> None:
    """Refuse to protect what is dealt out by its labels and words, before any of it is read."""
    if repair:
        raise InputError(
            field="data.public",
            value=False,
            but=f"with real noise it must be true: {source} is a published set, whose clients follow from its samples",
        )

"""The tables [data] and [model]: where samples come from, and what is trained on them.

The tables [data] of the paper's real sets: FEMNIST and Sent140.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from upcycled import data as federated
from upcycled.config.tables import (
    AsTuple,
    BuiltTable,
    Count,
    Fraction,
    Seed,
    Table,
    Word,
    in_keys,
    in_path,
    table_of,
)
from upcycled.core.errors import COUNT, NOT_NEGATIVE, InputError
from upcycled.core.objective import TargetKind
from upcycled.data import FederatedData
from upcycled.data.options import CLASSES, DataOptions
from upcycled.data.schema.schema import as_schema
from upcycled.data.sets.femnist import LETTERS


class Source(Table):
    """The keys of every table [data]."""

    seed: Seed = 0
    validation_fraction: Fraction = 0.0
    public: bool = False


_Letters = Annotated[int, LETTERS]


class PublishedSet(Source):
    """A set that is dealt out by its labels and words."""

    source: str
    path: Word | None

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        if repair:
            raise InputError(
                field="data.public",
                value=False,
                but=(
                    f"with real noise it must be true: {self.source} is a published set, whose clients follow from "
                    "its samples"
                ),
            )
        options = self.model_dump(exclude={"source", "path", "validation_fraction"})
        if "dimension" in options:
            options["dimension"] = options["dimension"] or None  # TOML has no None
        with in_path(self.path), in_keys({"source": "data.path"}):
            data: FederatedData = getattr(federated, self.source)(self.path, **options)
        return data


class Femnist(PublishedSet):
    """Handwritten letters on devices that know some of them."""

    source: Literal["femnist"] = "femnist"
    path: Word | None = Field(default=None, description="the path of a file or a folder with letters")
    letters: _Letters | None = None
    devices: Count | None = None
    partition: Literal["published", "drawn"] | None = None


class Sent140(PublishedSet):
    """Tweets, glad or sad, with word vectors."""

    source: Literal["sent140"] = Field(default="sent140", description="'sent140'")
    path: Word | None = Field(default=None, description="the path of a file or a folder with tweets")
    dimension: Literal[0, 50, 100, 300] = Field(default=50, description="50, 100 or 300, or 0 for no word vectors")
    devices: Count = 52
    length: Count = 25


_Classes = Annotated[int, CLASSES]
Columns = Annotated[tuple[Word, ...], AsTuple, Field(min_length=1)]
_Names = Annotated[tuple[Word, ...], AsTuple, Field(min_length=2)] | None


class _BuiltSource(Source, BuiltTable):
    pass


if TYPE_CHECKING:
    File = Source
else:
    File = table_of(
        DataOptions,
        base=_BuiltSource,
        left_out=("client_names", "repair"),
        types={
            "label_names": (_Names, "a list of the names of two classes or more"),
            "targets": (TargetKind | None, "'classes', 'numbers' or 'labels'"),
        },
    )
"""The keys of tables that are files: the options of :func:`upcycled.data.load`."""


def _schema(given: Any) -> dict[str, Any]:
    """Return a schema in plain values: a complete file has it whole, so that it repeats its run by itself."""
    return as_schema(given).plain()


class Synthetic(Source):
    """Syn(alpha, beta) or Syn(iid), generated."""

    source: Literal["synthetic"] = "synthetic"
    alpha: Annotated[float, NOT_NEGATIVE] | Literal["iid"] = Field(description=f"{NOT_NEGATIVE.phrase}, or 'iid'")
    beta: Annotated[float, NOT_NEGATIVE] | None = None
    clients: Count = 30
    dim: Count = 20
    num_classes: _Classes = 2
    sizes: Count | Annotated[tuple[Count, ...], AsTuple] | None = Field(
        default=None, description=f"{COUNT.phrase}, or a list of as many as there are clients"
    )
    test_fraction: Fraction = 0.1

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        """Generate the samples, which never need a repair."""
        options = self.model_dump(exclude={"source", "alpha", "beta", "validation_fraction"})
        return federated.synthetic(self.alpha, self.beta, **options)


class NpzFile(File):
    """An .npz with arrays [<set>_]{train,test}_{x,y,client}."""

    source: Literal["npz"] = "npz"
    path: Word = Field(description="the path of an .npz file")
    name: Word | None = Field(default=None, description="the name of a set in the file")
    client: Word | None = Field(default=None, description="the name of the client array")
    label: Word | None = Field(default=None, description="the name of the label array")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _check_ending(self)
        return self

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        return _read(self, repair, vocabulary)


class ColumnsFile(File):
    """Tables with one row per sample: one file, or one for each client."""

    source: Literal["csv", "parquet", "table"] = Field(description="'csv', 'parquet' or 'table'")
    path: Word | Columns = Field(description="the path of a table or of a folder with one for each site, or a list")
    schema_: Annotated[dict[str, Any], BeforeValidator(_schema)] | None = Field(
        default=None, alias="schema", description="the path of a schema (TOML), or a table [data.schema]"
    )
    client: Word = Field(default="client", description="the name of a column")
    label: Word | Columns = Field(default="label", description="the name of a column, or a list of several")
    split: Word | None = Field(default=None, description="the name of a column that says train or test")
    features: Annotated[tuple[Word, ...], AsTuple] | None = Field(default=None, description="a list of column names")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.source != "table":
            _check_ending(self)
        usual = type(self).model_fields
        for key in _SAID_BY_SCHEMA if self.schema_ is not None else ():
            if getattr(self, key) != usual[key].default:
                raise InputError(field=f"data.{key}", value=getattr(self, key), must="left out: data.schema says it")
        return self

    def load(self, *, repair: bool, vocabulary: int | None) -> FederatedData:
        return _read(self, repair, vocabulary if self.schema_ is None else None)


_SAID_BY_SCHEMA = ("client", "label", "targets", "split", "features", "num_classes", "label_names", "vocabulary")

DataTable: TypeAlias = Synthetic | NpzFile | ColumnsFile | Femnist | Sent140
SOURCES: dict[str, type[Table]] = {
    "synthetic": Synthetic,
    "npz": NpzFile,
    "csv": ColumnsFile,
    "parquet": ColumnsFile,
    "table": ColumnsFile,
    "femnist": Femnist,
    "sent140": Sent140,
}


def _check_ending(table: NpzFile | ColumnsFile) -> None:
    ending = f".{table.source}"
    if not isinstance(table.path, str) or not table.path.lower().endswith(ending):
        raise InputError(
            field="data.path",
            value=table.path,
            must=f"a path that ends in {ending}, since data.source is '{table.source}'",
        )


def _read(table: NpzFile | ColumnsFile, repair: bool, vocabulary: int | None) -> FederatedData:
    options = table.model_dump(exclude={"source", "validation_fraction"}, exclude_none=True, by_alias=True)
    for key in ("client", "label"):
        if options.get(key) == key:
            del options[key]  # the usual one, without which a file of many is its client's and a schema says it
    if vocabulary is not None:
        options.setdefault("vocabulary", vocabulary)
    with in_path(table.path if isinstance(table.path, str) else None):
        return federated.load(**options, repair=repair)


class Logistic(Table):
    """Softmax regression."""

    kind: Literal["logistic"] = "logistic"
    bias: bool = True


class Mlp(Table):
    """Linear and ReLU layers."""

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[tuple[Count, ...], AsTuple, Field(min_length=1)] = Field(
        default=(196,), description=f"a list of one or more {COUNT.plural}"
    )


class LstmTable(Table):
    """A bidirectional LSTM over token ids."""

    kind: Literal["lstm"] = "lstm"
    hidden: Count = 128
    embedding: Count | None = None
    """Left out, the data's word vectors are the embedding; where it has none, 50 numbers per word are learned."""
    dropout: Fraction = 0.0
    vocabulary: Count | None = None


class Factory(Table):
    """A function of the user's that takes nothing and returns a torch module."""

    kind: Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")] = Field(
        description="'logistic', 'mlp', 'lstm' or 'package.module:factory'"
    )


ModelTable: TypeAlias = Logistic | Mlp | LstmTable | Factory
MODELS: dict[str, type[Table]] = {"logistic": Logistic, "mlp": Mlp, "lstm": LstmTable}


def model_arguments(table: ModelTable) -> dict[str, Any]:
    """Return a spec's ``model`` and ``model_options``."""
    if isinstance(table, Factory):
        return {"model": table.kind, "model_options": None}
    options: Mapping[str, Any] = table.model_dump(exclude={"kind"}, exclude_none=True)
    return {"model": table.kind, "model_options": options}

"""An experiment file: one TOML file, checked completely before anything is done with it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, Field, ValidationError, create_model

from upcycled.algorithms import ALGORITHMS
from upcycled.config.overrides import (
    UNSET,
    Overrides,
    Range,
    as_values,
    fitted_to_changes,
    is_range,
    parse_overrides,
    put,
    value_at,
)
from upcycled.config.registry import TABLES, Choice, keys_of_run, keys_within, places, table_keys
from upcycled.config.sources import DataTable, LstmTable, model_arguments
from upcycled.config.tables import (
    AsTuple,
    BuiltTable,
    Place,
    Seed,
    Table,
    Word,
    from_validation,
    in_keys,
    named,
)
from upcycled.core.errors import (
    SEED,
    InputError,
    check_path,
    home_path,
    reason_of,
    shown,
    suggest,
)
from upcycled.data import FederatedData
from upcycled.privacy import Budget, ChargedScores
from upcycled.training.checkpoint.fingerprint import hash_of, omitted_defaults
from upcycled.training.spec import OPTIONS, RunSpec

NOT_IN_BITS = tuple(option.key for name, option in OPTIONS.items() if not option.in_bits and name != "callbacks")
"""Keys that change no result; a callback may end a run."""
NOT_COMPARED = ("results", "data.path", *NOT_IN_BITS)
"""The folder says where it lies, a file of data is known by its content, checkpoints and who pays change no result."""
ADDED = {"device": "cpu"}
"""Keys that older files lack, with what they had: fingerprints leave these values out."""
NOT_OF_CLIENTS = ("scored_on", "eval_every", "device", "callbacks", *NOT_IN_BITS)
"""Keys about scoring, keeping and showing a run, and the machine: a federation's clients take none from the server."""
FILE_PATHS = (("data", "path"), ("data", "schema"), ("privacy", "account"))
"""Where a file names others, by paths that are relative to it."""
NOT_SWEPT = ("name", "results", "seeds", "sweep", "scored_on", "callbacks", "metrics", *NOT_IN_BITS)
_PLACED = places()
PLAN_KEYS = {name: option.key for name, option in OPTIONS.items() if option.key != name} | {
    f"{name}.{f.name}": f"{OPTIONS[name].key}.{f.name}"
    for name, kind in (("budget", Budget), ("charged_scores", ChargedScores))
    for f in fields(kind)
}
"""What a file calls the arguments that sentences about a run begin with."""


def _safe_name(name: str) -> str:
    allowed = all(letter.isalnum() or letter in "._-+" for letter in name)
    if not allowed or not name[:1].isalnum() or name.endswith(".") or len(name) > 100 or len(name.encode()) > 200:
        raise ValueError("not a safe folder name")
    return name


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError("empty or repeated")
    return seeds


class _OwnKeys(Table):
    """The keys of a file that are not a run's."""

    name: Annotated[str, AfterValidator(_safe_name)] = Field(
        description="a folder name of letters, digits, '.', '_', '-' and '+' that starts with a letter or digit, "
        "at most 100 of them and 200 bytes"
    )
    seeds: Annotated[tuple[Seed, ...], AsTuple, AfterValidator(_different)] = Field(
        default=(0,), description=f"a list of one or more different {SEED.plural}"
    )
    results: Word = Field(default="results", description="the path of a folder")
    scored_on: Literal["test", "validation"] = "test"
    data: DataTable = Field(description="a table [data] with a source")
    sweep: dict[str, tuple[Any, ...] | Range] = Field(
        default={}, description='a table [sweep] of lists, such as "local.lr" = [0.01, 0.1], or of ranges'
    )


if TYPE_CHECKING:

    class _Keys(_OwnKeys):
        def __getattr__(self, key: str) -> Any: ...

else:
    _Keys = create_model("_Keys", __base__=_OwnKeys, **keys_of_run(), **table_keys())


class Experiment(_Keys):
    """A checked experiment: data, seeds, and the keys of :class:`RunSpec`; equal files give equal experiments."""

    def build_data(self) -> FederatedData:
        """Generate or read the data; validation samples are held out of the training samples.

        A run that is scored on validation data gets them in the place of its test data, which it never sees. Of a
        restricted experiment data of any content are read alike.
        """
        with in_keys({key: f"data.{key}" for key in type(self.data).model_fields}):
            tokens = self.model.vocabulary if self.is_restricted and isinstance(self.model, LstmTable) else None
            data = self.data.load(repair=self.is_restricted, vocabulary=tokens)
            fraction = self.data.validation_fraction
            data = data.with_validation(fraction, self.data.seed) if fraction else data
        if self.scored_on == "test":
            return data
        if data.validation is None:
            raise InputError(
                field="data.validation_fraction", value=fraction, must="> 0, such as 0.1, to have samples to choose on"
            )
        return replace(data, test=data.validation, validation=None)

    def spec(self, seed: int) -> RunSpec:
        """Return what one seed's run is, all but the data."""
        values: dict[str, Any] = {"seed": seed, **model_arguments(self.model)}
        for name, option in OPTIONS.items():
            if name in values or option.left_out:
                continue
            value: Any = self
            for part in option.path:
                value = None if value is None else getattr(value, part)
            value = value.build() if isinstance(value, BuiltTable) else value
            if value is not None:
                values[name] = value if option.make is None else option.make(value)
        if self.scored_on != "test":
            # A run that is scored on validation data has none left to choose an iterate on.
            values["keep_best"] = None
        return RunSpec(**values)

    @property
    def noise(self) -> str:
        """Where the noise of a private run comes from."""
        return "seeded" if self.privacy is None else str(self.privacy.noise)

    @property
    def is_restricted(self) -> bool:
        """Whether noise is real and data are private, so that nothing may follow from them but releases."""
        return self.privacy is not None and self.noise == "system" and not self.data.public

    def resolved(self) -> dict[str, Any]:
        """Return everything, defaults included, as plain values that a TOML file can hold."""
        values, said = self.model_dump(exclude_none=True, by_alias=True), self.said()
        # A table whose kind is swept stands as it was said: what one kind has by default another may not have.
        for key, kind in TABLES.items():
            if isinstance(kind, Choice) and f"{key}.{kind.tag}" in self.sweep and key in values:
                values[key] = said.get(key, {})
        return {key: value for key, value in values.items() if value != () and (key != "sweep" or value)}

    def said(self) -> dict[str, Any]:
        """Return what the file says as plain values, without the defaults."""
        return self.model_dump(exclude_none=True, exclude_unset=True, by_alias=True)

    def resolved_toml(self, folder: Path | None = None) -> str:
        """Return the complete file; loading it gives an equal experiment.

        Of a file that lies in ``folder`` the paths are relative to it: it may be shown to others, who need not know
        where somebody's home is.
        """
        values = self.resolved()
        for key in FILE_PATHS if folder is not None else ():
            values = _with_paths(values, *key, lambda path: os.path.relpath(path, folder))
        return tomli_w.dumps(values)

    def fingerprint(self, seed: int) -> str:
        """Return a hash of all that makes a seed's results what they are, but the content of a file of data."""
        keys = flat(self.for_seed(seed).resolved())
        algorithm = ALGORITHMS.get(keys["algorithm.name"])
        omitted = ADDED | flat({"algorithm": omitted_defaults(algorithm)})
        return hash_of(
            {
                key: value
                for key, value in keys.items()
                if key not in NOT_COMPARED and (key, value) not in omitted.items()
            }
        )

    def for_seed(self, seed: int) -> Self:
        """Return the experiment of one seed alone, as it is written beside that seed's results."""
        return self.model_copy(update={"seeds": (seed,), "sweep": {}})


def load_config(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), tell: Callable[[str], None] | None = None
) -> Experiment:
    """Read and check an experiment file.

    Args:
        path: a TOML file. Relative ``data.path``, ``data.schema`` and ``privacy.account`` in it are relative to the
            file, ``results`` to the current folder.
        overrides: texts ``key=value`` that replace values of the file, and ``~key`` that take them out. A table whose
            kind is another then (``algorithm.name=fedavg``) loses the file's options that this kind does not have.
        tell: is given a sentence about what was lost.

    Raises:
        InputError: one sentence with file, key, value and what would be right.
    """
    file = Path(check_path("the experiment", path, "file"))
    with named(str(path)):
        read, changes = _read(file), parse_overrides(overrides)
        _check_unset(read, changes)
        read = {key: _long_form(key, value) for key, value in read.items()}
        if isinstance(read.get("sweep"), dict):
            read["sweep"] = flat(read["sweep"])
        given = [key for key, _ in changes.given]
        raw, sentences = fitted_to_changes(read, changes.applied(read), given, changes.removed)
        for table, key in FILE_PATHS:
            raw = _with_paths(raw, table, key, partial(_absolute, f"{table}.{key}", file.parent))
        if isinstance(raw.get("results"), str):
            raw = {**raw, "results": home_path("results", raw["results"], "folder")}
        found = parse(raw)
    if tell is not None:
        for sentence in sentences:
            tell(sentence)
    return found


def _check_unset(file: Mapping[str, Any], changes: Overrides) -> None:
    """Refuse to unset what no file has; what this one merely does not have is unset already."""
    for path in changes.removed:
        if value_at(file, path) is not None:
            continue
        top = [*Experiment.model_fields]
        if path[0] not in top:
            raise InputError(f"{UNSET}{'.'.join(path)} unsets a key that no file has{suggest(path[0], top)}")
        within = keys_within(path[0])
        if len(path) > 1 and path[1] not in within:
            raise InputError(f"{UNSET}{'.'.join(path)} unsets a key that no file has{suggest(path[1], within)}")


def parse(raw: Mapping[str, Any]) -> Experiment:
    """Check the content of a file."""
    raw = {key: _long_form(key, value) for key, value in raw.items()}
    parsed = dict(raw)
    for key, kind in TABLES.items():
        if key in raw:
            parsed[key] = _table(key, raw[key], kind)
    if isinstance(raw.get("sweep"), dict):
        parsed["sweep"] = {key: as_values(key, values) for key, values in flat(raw["sweep"]).items()}
    try:
        experiment = Experiment.model_validate(parsed)
    except ValidationError as error:
        raise from_validation(error, Experiment, Place(elsewhere=_PLACED), parsed) from None
    _check_sweep(experiment.sweep, {key: value for key, value in raw.items() if key != "sweep"})
    return experiment


def _long_form(key: str, value: Any) -> Any:
    """Return a text that stands for a table as that table."""
    kind = TABLES.get(key)
    is_short = isinstance(kind, Choice) and kind.has_short_form and isinstance(value, str)
    return {kind.tag: value} if is_short and isinstance(kind, Choice) else value


def _table(key: str, raw: Any, kind: Choice | type[Table]) -> Table:
    if not isinstance(raw, dict):
        must = str(Experiment.model_fields[key].description) if key == "loss" else f"a table [{key}]"
        raise InputError(field=key, value=raw, must=must)
    raw = {name: _within(f"{key}.{name}", value) for name, value in raw.items()}
    model, title = kind, f"[{key}]"
    if isinstance(kind, Choice):
        model = kind.choose(key, raw)
        title = f"[{key}] with {kind.tag} '{raw.get(kind.tag, kind.default)}'"
    assert isinstance(model, type)
    try:
        table = model.model_validate(raw)
    except ValidationError as error:
        top = {name: f"'{name}' above the first [table]" for name in Experiment.model_fields if name not in TABLES}
        raise from_validation(error, model, Place(key, title, _PLACED | top), raw) from None
    if isinstance(table, BuiltTable):
        _check_agreement(key, table)
    for name, held in table:
        if isinstance(held, BuiltTable):
            _check_agreement(f"{key}.{name}", held)
    return table


def _within(key: str, value: Any) -> Any:
    """Return a table within a table, checked; anything else as it is."""
    return _table(key, value, TABLES[key]) if key in TABLES and isinstance(value, dict) else value


def _check_agreement(key: str, table: BuiltTable) -> None:
    """Build the object once, for what its fields must agree on."""
    try:
        table.build()
    except InputError as error:
        key_of = {name: own for own, field in table.names.items() for name in (own, field)}
        raise (error.renamed(f"{key}.{key_of[error.field]}") if error.field in key_of else error) from None


def _check_sweep(sweep: Mapping[str, tuple[Any, ...] | Range], base: dict[str, Any]) -> None:
    """Try each value alone in the rest of the file; of a range its ends and one between."""
    for key, values in sweep.items():
        path = tuple(key.split("."))
        if path[0] in NOT_SWEPT:
            written = values.as_file() if isinstance(values, Range) else list(values)
            raise InputError(
                field=f'sweep."{key}"', value=written, must=f"a key that makes a run, which {path[0]} is not"
            )
        for value in values.examples if isinstance(values, Range) else values:
            try:
                parse(put(base, path, value))
            except InputError as error:
                is_whole = isinstance(values, Range) and isinstance(values.low, int) and not values.integer
                hint = "; a range of integers has integer = true" if is_whole and isinstance(value, float) else ""
                raise error.at(f'sweep."{key}" holds {shown(value)}').hinted(hint) from None


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested tables under dotted keys: TOML reads an unquoted local.lr as a table in a table.

    >>> flat({"local": {"lr": {"low": 0.1, "high": 1.0}, "epochs": 2}})
    {'local.lr': {'low': 0.1, 'high': 1.0}, 'local.epochs': 2}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        is_table = isinstance(value, dict) and value and not is_range(value)
        found |= flat(value, f"{before}{key}.") if is_table else {f"{before}{key}": value}
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError("the file does not exist, but it must be an experiment file (TOML)") from None
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8 text, but it must be a TOML file in UTF-8") from None
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror}), but it must be a TOML file") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the file must be valid TOML, but it is not: {reason_of(error)}") from None


def _absolute(field: str, folder: Path, path: str) -> str:
    return os.path.abspath(folder / home_path(field, path, "file"))


def _with_paths(raw: dict[str, Any], table: str, key: str, change: Callable[[str], str]) -> dict[str, Any]:
    """Return a document with the path, or the list of paths, of a key changed; anything else stays."""
    held = raw.get(table)
    given = held.get(key) if isinstance(held, dict) else None
    paths = given if isinstance(given, list | tuple) else [given]
    texts = [path for path in paths if isinstance(path, str) and path]
    if not texts or len(texts) < len(paths):
        return raw
    changed = [change(path) for path in texts]
    return put(raw, (table, key), changed[0] if isinstance(given, str) else changed)

"""The folder of a run, ``results/NAME/seed-N``: where its files lie, and its typed summary.

Beside one another lie the files that everybody may see: ``config.toml``, ``ledger.jsonl``, ``metrics.jsonl``,
``clients.jsonl``, the model's files (see ``serving.model_files``; with ``keep_best`` also ``best.safetensors``),
``evaluation.json`` and ``summary.json``, which is written last: a folder that has it is finished. ``checkpoint/`` is
there while the run goes on.

A restricted run leaves the rest to the holder of its data, in ``private/`` (0700, files 0600): ``checkpoint/`` (the
run's state, personal models among it), ``data.key`` (the key of the data's hashes, in ``checkpoint/`` until the run has
ended), ``scores.jsonl`` (every number of every iteration), ``clients.jsonl`` (scores of each client),
``evaluation.json`` (the final model on test data), ``personal.safetensors``, ``notes.jsonl`` (what would have been
warnings), ``data.json`` (the data's keyed hash) and ``ledger.key``. Reports, trackers and comparisons never look there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from upcycled._utils.files import (
    PRIVATE,
    RESULTS_FORMAT,
    check_format,
    drop_temporaries,
    json_table,
    make_private,
    read_json_lines,
    reading,
    write_json,
    write_whole,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

CONFIG, SUMMARY, METRICS, CLIENTS = "config.toml", "summary.json", "metrics.jsonl", "clients.jsonl"
EVALUATION, BEST, PARQUET, LEDGER = "evaluation.json", "best.safetensors", "metrics.parquet", "ledger.jsonl"
CARD = "model.json"
CHECKPOINT, DATA_KEY, LEDGER_KEY = "checkpoint", "data.key", "ledger.key"
SCORES, NOTES, DATA = "scores.jsonl", "notes.jsonl", "data.json"
FEDERATION, EVENTS = "federation.json", "events.jsonl"

Number: TypeAlias = int | float | None
"""None where it was not measured, is not finite, or is the data holder's own."""


@dataclass(frozen=True, kw_only=True)
class EpsilonSummary:
    """The clients' epsilons; None stands for infinity."""

    max: Number
    median: Number
    clients: tuple[Number, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PaperEpsilonSummary:
    """What the paper's formula prints, which is no guarantee."""

    max: Number
    median: Number = None


@dataclass(frozen=True, kw_only=True)
class RepeatedChargesSummary:
    """What was charged again after a run had been stopped."""

    charges: int
    epsilon_without: Number


@dataclass(frozen=True, kw_only=True)
class PrivacySummary:
    """What a private run cost its clients."""

    mechanism: str
    claim: str = ""
    is_simulation: bool = False
    noise: str
    delta: float
    epsilon: EpsilonSummary
    paper_epsilon: PaperEpsilonSummary | None = None
    repeats: RepeatedChargesSummary | None
    as_planned: bool
    statement: tuple[str, ...] = ()
    statement_items: tuple[tuple[str, str], ...] = ()
    head: Mapping[str, Any] | None = None
    """The ledger's head, which its file is held against."""
    account: Mapping[str, Any] | None = None
    scope: str
    """What the epsilon is about: this run only, or a part of an account."""
    not_covered: str | None = None

    @property
    def worst_epsilon(self) -> float:
        """The worst client's epsilon; infinite where none is stated."""
        return math.inf if self.epsilon.max is None else self.epsilon.max


@dataclass(frozen=True, kw_only=True)
class BestSummary:
    """The iterate that did best on validation samples."""

    by: str
    iteration: int
    score: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a few numbers, as everybody may see them; scores are the last iteration's.

    A field added later needs a default: ``summary.json`` of an earlier version does not have it.
    """

    seed: int
    scored_on: str = "test"
    fingerprint: str | None = None
    """Of the spec."""
    code: Mapping[str, str]
    """Hashes of the user's own code."""
    error: str | None
    """What ended the run early; None if it ended as planned."""
    accuracy: Number
    loss: Number
    global_accuracy: Number = None
    global_loss: Number = None
    metrics: Mapping[str, Number]
    charged_scores: Mapping[str, Number] | None = None
    """The last ones; None where none were asked for."""
    notes: tuple[str, ...]
    iterations: int
    data_rounds: int
    messages: Number
    bytes_up: Number = None
    bytes_down: Number = None
    gradient_steps: Number
    seconds: Number
    eval_seconds: Number = None
    bytes: Number
    engine: str | None = None
    restricted: bool = False
    """Whether scores and the like are the data holder's own."""
    privacy: PrivacySummary | None
    data: Mapping[str, Any]
    """What ``Publication.about`` says about the data."""
    versions: Mapping[str, str] | None = None
    best: BestSummary | None = None
    baseline: Mapping[str, Number] | None
    """The scores of a model that has learnt nothing from features."""

    _OPTIONAL: ClassVar = ("charged_scores", "best")
    """Left out of the file where they are None."""

    def as_json(self) -> dict[str, Any]:
        """Return it as ``summary.json`` has it."""
        found = plain(self)
        return {
            "format": RESULTS_FORMAT,
            **{key: value for key, value in found.items() if value is not None or key not in self._OPTIONAL},
        }


def worst_epsilon(summaries: Iterable[Summary]) -> float | None:
    """Return the worst client's epsilon of any run: infinite where one states none, None where no run is private."""
    return max((one.privacy.worst_epsilon for one in summaries if one.privacy is not None), default=None)


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: what is not finite becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _adapter() -> TypeAdapter[Summary]:
    from pydantic import TypeAdapter

    return TypeAdapter(Summary)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the only place that knows where its files lie."""

    path: Path

    @classmethod
    def of_seed(cls, home: Path, seed: int) -> RunFolder:
        """Return a seed's folder in the folder of its experiment."""
        return cls(home / f"seed-{seed}")

    @classmethod
    def finished_in(cls, home: Path) -> list[RunFolder]:
        """Return the folders of an experiment's finished seeds."""
        return [cls(path.parent) for path in sorted(home.glob(f"seed-*/{SUMMARY}"))]

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def summary(self) -> Path:
        return self.path / SUMMARY

    @property
    def private(self) -> Path:
        """What is the data holder's own."""
        return self.path / PRIVATE

    @property
    def ledger_key(self) -> Path:
        """The key that a ledger of real noise is sealed with."""
        return self.private / LEDGER_KEY

    def own(self, is_restricted: bool) -> Path:
        """Return where a run keeps what only its server or holder needs."""
        return self.private if is_restricted else self.path

    def checkpoint(self, is_restricted: bool) -> Path:
        """Return where a run is kept while it goes on: its state is the holder's own where the run is restricted."""
        return self.own(is_restricted) / CHECKPOINT

    @property
    def data_key(self) -> Path:
        """The key of a restricted run's hashes of data: beside its checkpoints while it has some."""
        own = self.private / DATA_KEY
        beside = self.private / CHECKPOINT / DATA_KEY
        return beside if beside.exists() else own

    @property
    def is_finished(self) -> bool:
        return self.summary.exists()

    def open_ledger(self, noise: str, checkpoint: Path) -> Path:
        """Return where a private run's charges go.

        A simulation that is repeated is the same run and goes on in its file, as does a run with real noise that is
        kept in its folder ``checkpoint``. Otherwise real noise cannot be repeated: an earlier attempt's charges stay,
        and the new attempt gets a file of its own.
        """
        path = self.path / LEDGER
        if noise == "system":
            attempts = itertools.chain([path], (self.path / f"ledger-{k}.jsonl" for k in itertools.count(2)))
            there = list(itertools.takewhile(Path.exists, attempts))
            if there and checkpoint.is_dir():
                path = there[-1]
            elif there:
                path = self.path / f"ledger-{len(there) + 1}.jsonl"
        return path

    def begin(self, config: bytes, is_restricted: bool) -> None:
        """Say whose folder it is, before anything else is in it; a summary that could not be read is removed."""
        self.summary.unlink(missing_ok=True)
        for place in (self.path, self.private):
            drop_temporaries(place)
        if not self.config.exists() or self.config.read_bytes() != config:
            write_whole(self.config, config)
        if is_restricted:
            make_private(self.private)

    def read_summary(self) -> Summary:
        """Return the summary of a finished run.

        Raises:
            DamagedError: if the file cannot be read, or is damaged.
            InputError: if another version wrote it.
        """
        with reading(self.summary, "the summary of a finished seed"):
            content = self.summary.read_bytes()
            check_format(json_table(content), self.summary)
            return _adapter().validate_json(content, strict=True)

    def write_summary(self, summary: Summary) -> None:
        """Write the summary, which makes the run a finished one."""
        write_json(self.summary, summary.as_json())

    def read_history(self) -> list[dict[str, Any]]:
        """Return the rows of a finished run's ``metrics.jsonl``."""
        return read_json_lines(self.path / METRICS, "the rows of a finished run")

"""Read a results folder, whatever it is: a seed's, an experiment's, or one that holds several experiments.

Every file but ``summary.json`` may be missing. What cannot be read is left out and named in ``problems``; the page
shows those sentences.
"""

from __future__ import annotations

import math
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from upcycled._utils.files import PRIVATE, DamagedError, json_table
from upcycled._utils.formats import general
from upcycled.core.errors import InputError
from upcycled.privacy.ledger.joint import Together, cost_together
from upcycled.privacy.ledger.ledger import EpsilonOverRounds, Ledger
from upcycled.privacy.ledger.ledger_file import ledger_files
from upcycled.privacy.ledger.statement import contradiction, evidence, plain_words
from upcycled.run_folder import CARD, CLIENTS, EVALUATION, METRICS, PrivacySummary, RunFolder, Summary, plain

Row: TypeAlias = Mapping[str, Any]

DEEPEST = 4
"""How far below the folder seeds are looked for."""
DOCUMENTS = ("compare", "sweep", "demo")
"""What a command writes about a folder of several experiments, as ``<name>.json``."""


@dataclass(frozen=True)
class Seed:
    """One finished run."""

    place: str
    """Its folder, relative to the results folder."""
    summary: Summary
    rows: tuple[Row, ...] = ()
    """A record per iteration."""
    clients: tuple[Row, ...] = ()
    evaluation: Row | None = None
    """The final model on test data, where that was written down."""
    label_names: tuple[str, ...] = ()
    """What that model's classes are called, where they have names."""
    spent: EpsilonOverRounds | None = None
    """Epsilon over iterations, of a private run."""
    evidence: str | None = None
    """How far a private run's ledger, held against the summary's head, shows that it is whole."""
    plain: tuple[tuple[str, str], ...] = ()
    """What its ledger protects, for those whose records they are; none where it has none that can be read."""
    mechanism: str = ""
    """What a private run's ledger or its summary calls the mechanism."""

    @property
    def seed(self) -> int:
        return self.summary.seed

    @property
    def is_restricted(self) -> bool:
        """Whether its scores are the data holder's own."""
        return self.summary.restricted

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics that it was asked for, and has numbers of."""
        rows = [self.summary.metrics, *self.rows]
        # Accuracy has its place already, whether it was asked for or not.
        kept = [name for name in self.summary.metrics if name != "accuracy" and not name.startswith("global_")]
        return tuple(name for name in kept if any(not math.isnan(number(row.get(name))) for row in rows))

    @property
    def privacy(self) -> PrivacySummary | None:
        """What the summary says about a private run."""
        return self.summary.privacy

    @property
    def worst_epsilon(self) -> float | None:
        """The worst client's epsilon; None without privacy, infinite where none is stated."""
        return None if self.privacy is None else self.privacy.worst_epsilon


@dataclass(frozen=True)
class Part:
    """One experiment: the runs of its seeds."""

    name: str
    place: str
    config: Row
    """The complete file of its first seed; empty where none is readable."""
    seeds: tuple[Seed, ...]
    unfinished: tuple[str, ...] = ()
    """Folders of seeds without a summary."""
    stopped: tuple[str, ...] = ()
    """Sentences about seeds that diverged, or whose budget was spent."""
    together: Together | None = None
    """What all its runs with real noise cost together; None where there are fewer than two."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of its seeds' metrics."""
        return tuple(dict.fromkeys(name for seed in self.seeds for name in seed.metrics))

    @property
    def is_restricted(self) -> bool:
        """Whether scores of its runs are the data holder's own."""
        return any(seed.is_restricted for seed in self.seeds)

    @property
    def is_public(self) -> bool:
        """Whether its file declares the data public."""
        data = self.config.get("data")
        return isinstance(data, dict) and data.get("public") is True

    @property
    def is_upcycled(self) -> bool:
        """Whether some of its iterations touch no data."""
        if self.config:
            return "upcycle" in self.config
        return any(row.get("kind") == "upcycled" for seed in self.seeds for row in seed.rows)


@dataclass(frozen=True)
class Results:
    """Everything readable in a folder."""

    name: str
    parts: tuple[Part, ...]
    documents: Mapping[str, Row]
    """The contents of ``compare.json``, ``sweep.json`` and ``demo.json``, those that are there."""
    problems: tuple[str, ...] = ()

    @property
    def num_seeds(self) -> int:
        return sum(len(part.seeds) for part in self.parts)


def collect(folder: Path) -> Results:
    """Read everything under a results folder.

    Raises:
        InputError: if the folder holds no finished run.
    """
    if not folder.is_dir():
        word = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {word}, but it must be a results folder, such as results/NAME")
    reader = _Reader(folder)
    homes: dict[Path, list[Path]] = {}
    for seed in _seed_folders(folder, 0):
        homes.setdefault(seed if seed == folder else seed.parent, []).append(seed)
    documents = _documents(reader, homes)
    parts = [_part(reader, home, seeds) for home, seeds in homes.items()]
    if not any(part.seeds for part in parts):
        raise InputError(_nothing(folder, parts, reader.problems))
    reader.problems.extend(
        f"{reader.place(path.parent)} is not on this page and has one of its own: upcycled report {path.parent}"
        for home in homes
        for path in sorted(path for name in DOCUMENTS for path in home.glob(f"*/{name}.json"))
    )
    return Results(folder.resolve().name, _ordered(parts, documents), documents, tuple(reader.problems))


def number(value: Any) -> float:
    """Return a finite number, or NaN for everything else.

    >>> number(3), number(None), number(float("inf")), number("3")
    (3.0, nan, nan, nan)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number and math.isfinite(value) else math.nan


@dataclass(frozen=True)
class _Reader:
    """Reads files below a folder and remembers what was wrong with them."""

    root: Path
    problems: list[str] = field(default_factory=list)

    def place(self, path: Path) -> str:
        """Return where it is, as the page says it."""
        return path.relative_to(self.root).as_posix()

    def read(self, path: Path, parse: Callable[[bytes], Any], otherwise: Any = None) -> Any:
        """Return what a file holds; a missing one is nothing, and a damaged one is nothing and a sentence."""
        try:
            return parse(path.read_bytes()) if path.exists() else otherwise
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            self.left_out(path, error)
            return otherwise

    def left_out(self, path: Path, error: BaseException) -> None:
        """Remember that a file is damaged."""
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        self.problems.append(f"{self.place(path)} is damaged and was left out ({reason[:120]})")


def _nothing(folder: Path, parts: Sequence[Part], problems: Sequence[str]) -> str:
    right = "it must hold a finished run (a folder with summary.json and metrics.jsonl)"
    if stopped := [sentence for part in parts for sentence in part.stopped]:
        return f"{folder} holds no finished run, but {right}: {stopped[0]}"
    if problems:
        return f"{folder} holds nothing that can be read, but {right}: {problems[0]}"
    return f"{folder} holds {'no finished run yet' if parts else 'no results'}, but {right}"


def _seed_folders(folder: Path, depth: int) -> list[Path]:
    """Return the folders of single runs, in natural order.

    An experiment's folder may hold its seeds beside a comparison and a sweep, which have pages of their own. What is
    its data holder's own is passed by.
    """
    try:
        passed_by = {PRIVATE} if RunFolder(folder).config.exists() else set()
        names = [path for path in folder.iterdir() if path.name not in passed_by and not path.name.startswith(".")]
        below = [path for path in names if path.is_dir()]
    except OSError:
        return []
    below.sort(key=_natural)
    if own := [path for path in below if _is_seed(path)]:
        return own
    if depth < DEEPEST and (found := [seed for path in below for seed in _seed_folders(path, depth + 1)]):
        return found
    return [folder] if _is_seed(folder) else []


def _is_seed(folder: Path) -> bool:
    run = RunFolder(folder)
    is_begun = folder.name.startswith("seed-") and run.config.exists()
    return is_begun or run.is_finished or (folder / METRICS).exists()


def _documents(reader: _Reader, homes: Iterable[Path]) -> dict[str, Row]:
    """Return what a command wrote beside the experiments: in the folder, or in the one place they all lie in."""
    above = {home.parent for home in homes}
    place = above.pop() if len(above) == 1 and reader.root not in homes else reader.root
    paths = {name: place / f"{name}.json" for name in DOCUMENTS}
    return {name: reader.read(path, json_table, {}) for name, path in paths.items() if path.exists()}


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Order seed-2 before seed-10."""
    words = re.split(r"([0-9]+)", path.name)
    return [(k % 2 == 0, int(word) if k % 2 else 0, word) for k, word in enumerate(words)]


def _part(reader: _Reader, home: Path, folders: Iterable[Path]) -> Part:
    folders = tuple(folders)
    seeds, unfinished, stopped, config = list[Seed](), list[str](), list[str](), dict[str, Any]()
    for folder in folders:
        config = config or reader.read(RunFolder(folder).config, _toml, {})
        if not RunFolder(folder).is_finished:
            unfinished.append(reader.place(folder))
        elif (seed := _seed(reader, RunFolder(folder))) is not None and seed.summary.error is not None:
            stopped.append(_stopped(seed))
        elif seed is not None:
            seeds.append(seed)
    name = config.get("name") if home == reader.root else home.name
    title = str(name or home.resolve().name)
    asked = config.get("privacy")
    is_real = isinstance(asked, dict) and asked.get("noise") == "system"
    together = cost_together(folders, asks_key=False) if is_real else None
    return Part(title, reader.place(home), config, tuple(seeds), tuple(unfinished), tuple(stopped), together)


def _stopped(seed: Seed) -> str:
    """Say what ended a run early; what it released until then is spent all the same."""
    said = f"{seed.place} stopped after iteration {seed.summary.iterations}: {seed.summary.error}"
    privacy = seed.privacy
    if privacy is None or not math.isfinite(privacy.worst_epsilon):
        return said
    cost = "what it released" if privacy.as_planned else "its planned rounds"
    worst = general(privacy.worst_epsilon, 6)
    return f"{said}; {cost} cost the worst client epsilon {worst} at delta {general(privacy.delta)}"


def _seed(reader: _Reader, folder: RunFolder) -> Seed | None:
    try:
        summary = folder.read_summary()
    except DamagedError as error:
        reader.left_out(folder.summary, error.__cause__ or error)
        return None
    metrics = folder.path / METRICS
    if not metrics.exists():
        reader.problems.append(f"{reader.place(metrics)} is missing: this run has no curves")
    seed = Seed(
        reader.place(folder.path),
        summary,
        reader.read(metrics, _lines, ()),
        reader.read(folder.path / CLIENTS, _lines, ()),
        reader.read(folder.path / EVALUATION, json_table),
        mechanism="" if summary.privacy is None else summary.privacy.mechanism,
    )
    if seed.evaluation is not None:
        seed = replace(seed, label_names=reader.read(folder.path / CARD, _label_names, ()))
    return seed if seed.privacy is None else _with_ledger(reader, folder.path, seed, seed.privacy)


def _with_ledger(reader: _Reader, folder: Path, seed: Seed, privacy: PrivacySummary) -> Seed:
    """Return the seed with what its ledger says; with real noise there may be one an attempt, the finished one last."""
    delta, head, ledgers = privacy.delta, privacy.head, ledger_files(folder)
    if not ledgers:
        return replace(seed, evidence="missing; the numbers are the summary's")
    if len(ledgers) > 1:
        reader.problems.append(
            f"{reader.place(folder)} has {len(ledgers)} ledgers: what its earlier attempts released is not in the "
            f"epsilon of this run, and adds to it"
        )
    ledger: Ledger | None = reader.read(ledgers[-1], lambda _: Ledger.read(ledgers[-1], head))
    if ledger is None:
        return replace(seed, evidence="not this run's, or damaged; the numbers are the summary's")
    spent = spending(ledger, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the run warned of a large delta
        worst = ledger.max_epsilon(delta)
    contradicts = contradiction(plain(privacy), worst)
    if contradicts is not None:
        reader.problems.append(f"{reader.place(ledgers[-1])} {contradicts}")
    words = plain_words(ledger.promise, ledger.claim, ledger.is_simulation, worst, delta)
    return replace(seed, spent=spent, evidence=evidence(ledger), plain=words, mechanism=ledger.mechanism)


def _ordered(parts: Sequence[Part], documents: Mapping[str, Row]) -> tuple[Part, ...]:
    """Keep the order in which the command's own document names the experiments' folders, where it does."""
    named: list[str] = []
    for document in documents.values():
        chosen = document.get("chosen")
        if isinstance(chosen, dict) and isinstance(chosen.get("folder"), str):
            named.append(Path(chosen["folder"]).name)
        for key in ("runs", "rows", "ranking"):
            rows = document.get(key)
            for row in rows if isinstance(rows, list) else []:
                place = row.get("folder", row.get("name")) if isinstance(row, dict) else None
                if isinstance(place, str):
                    named.append(Path(place).name)
    return tuple(sorted(parts, key=lambda part: named.index(part.name) if part.name in named else len(named)))


def _toml(content: bytes) -> dict[str, Any]:
    return tomllib.loads(content.decode())


def _label_names(content: bytes) -> tuple[str, ...]:
    names = json_table(content).get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _lines(content: bytes) -> tuple[dict[str, Any], ...]:
    found = list[dict[str, Any]]()
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            found.append(json_table(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return tuple(found)


def spending(ledger: Ledger, delta: float) -> EpsilonOverRounds | None:
    """Return the worst epsilon over a ledger's rounds; None if nothing was charged."""
    with warnings.catch_warnings():
        # The run warned of a large delta; the statement that the page shows has it.
        warnings.simplefilter("ignore", UserWarning)
        found = ledger.epsilon_over_rounds(delta)
    return found if found.rounds else None

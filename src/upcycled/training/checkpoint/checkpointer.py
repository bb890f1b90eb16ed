"""Keeps a run on the disk while it goes on, and finds it again.

The user's own code in a run, by hashes of its source: a name stays the same when what it stands for is edited.

What makes a run this very run: a checkpoint goes on in no other.

A run is a fold over iterations, so what is kept is the fold's value. Random streams are functions of the seed and need
no storing; real noise has no key that outlives its call. The ledger's file is ahead of the checkpoint, never behind.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import nn

from upcycled._utils.files import WriteError, reading
from upcycled.core.errors import InputError
from upcycled.core.memory import ClientMemory
from upcycled.core.user_code import name_of, names_code
from upcycled.privacy.ledger.chain import key_at
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.run_folder import DATA_KEY
from upcycled.training.checkpoint.files import read_newest, tell_user, tidy, write
from upcycled.training.checkpoint.fingerprint import as_words, digest, hash_of_shards, keyed, versions
from upcycled.training.checkpoint.snapshot import (
    MemoryRows,
    Snapshot,
    check_facts,
    check_snapshot,
    from_bytes,
    joined,
    to_bytes,
    to_columns,
    to_records,
)
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.publication import publication_of
from upcycled.training.spec import RunSpec
from upcycled.training.state import Best, Run, start_run

_MAIN = "__main__"
_VERSIONED = frozenset({__name__.partition(".")[0], "numpy", "torch", "numba"}) | sys.stdlib_module_names
"""What versions tell apart already."""
_LOADED: dict[str, tuple[object, str]] = {}
"""The hash of each module as it was first seen, and its loading, which ``importlib.reload`` makes anew: a file that is
edited later is not what this process runs."""


def own_code(spec: RunSpec) -> dict[str, str]:
    """Return a hash of the source of everything in a spec that is neither this package's nor of a counted version.

    Of a module it is the whole file, helpers in it included, but nothing that it imports; of a script it is each
    function or class alone, since a script is edited to ask for something else of the same code.

    >>> import upcycled as up
    >>> own_code(up.RunSpec(algorithm=up.FedAvg()))
    {}
    """
    names = {*_names_in(spec.plain()), *_classes_of(spec.settings())}
    found = {}
    for name in sorted(names):
        module = name.partition(":")[0]
        what = name if module == _MAIN else module
        source = None if module.partition(".")[0] in _VERSIONED - {_MAIN} else _source_hash(name)
        if source is not None:
            found[what] = source
    return found


def changed_code(now: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    """Return what was edited since, such as ``module 'my_module'``; None where nothing was.

    >>> changed_code({"mine": "a", "other": "b"}, {"mine": "c"})
    "module 'mine'"
    """
    for name in now:
        if name in before and before[name] != now[name]:
            return repr(name.partition(":")[2]) if name.startswith(f"{_MAIN}:") else f"module {name!r}"
    return None


def _names_in(form: Any) -> Iterator[str]:
    """Yield what a plain form says of code by its name."""
    if isinstance(form, str):
        if names_code(form):
            yield form
    elif isinstance(form, Mapping):
        for inner in form.values():
            yield from _names_in(inner)
    elif isinstance(form, list):
        for inner in form:
            yield from _names_in(inner)


def _classes_of(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes of torch modules, whose plain form is their structure and weights."""
    for value in settings.values():
        for part in value.modules() if isinstance(value, nn.Module) else ():
            name = name_of(type(part))
            if name is not None:
                yield name


def _source_hash(name: str) -> str | None:
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None:
        return None
    try:
        if module_name == _MAIN:
            found: Any = module
            for part in path.split("."):
                found = getattr(found, part)
            return _hash(inspect.getsource(found).encode())
        loading, known = module.__spec__, _LOADED.get(module_name)
        if known is None or known[0] is not loading:
            file = inspect.getsourcefile(module)
            if file is None:
                return None
            known = _LOADED[module_name] = (loading, _hash(Path(file).read_bytes()))
        return known[1]
    except (AttributeError, OSError, TypeError):  # no source: compiled, typed into a prompt, or gone
        return None


def _hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


_DATA = ("training data", "test data", "validation data")
_HASHED = ("model", "initial weights", *_DATA)


def way_out(has_real_noise: bool, what: str = "folder") -> str:
    """Return the advice for a folder that this run cannot use.

    Never to remove real releases' ledger: it is the only record of what they spent.
    """
    if has_real_noise:
        return f"choose another {what} and keep that folder, which records what its releases have spent"
    return f"choose another {what}, or remove that folder to start again"


def identity_of(plan: Plan, key: bytes | None = None) -> dict[str, Any]:
    """Return all that a run's bits depend on: the spec in plain values, data, weights and code by hashes, versions.

    With a key, which a restricted run has, the hashes of data are keyed.

    Take it before an engine is opened: engines write into the task's module.
    """
    task = plan.task
    kept = {name: value.numpy(force=True) for name, value in task.module.state_dict().items()}
    frozen = [(name, array) for name, array in kept.items() if name not in task.layout.names]
    data = {"training data": hash_of_shards(task.train), "test data": hash_of_shards(task.test)}
    if plan.validation is not None:
        data["validation data"] = hash_of_shards(plan.validation)
    return {
        "spec": plan.spec.plain() | {"engine": plan.engine.name, "model": f"{task.module!r} {digest(frozen)}"},
        "initial weights": digest([("initial", plan.initial)]),
        **{name: words if words is None or key is None else keyed(key, words) for name, words in data.items()},
        "code": own_code(plan.spec),
        "versions": versions(),
    }


def check_same(
    now: Mapping[str, Any], before: Mapping[str, Any], folder: Path, is_anyway: bool, compares_data: bool = True
) -> None:
    """Refuse a folder whose checkpoints belong to another run, code or versions, and say what differs.

    A restricted run does not compare its data: whether it goes on would tell whether a record was changed.
    """
    wanted, held = _flat(now), _flat(before)
    advice = way_out(held.get("noise") == "system")
    for name in dict.fromkeys([*wanted, *held]):
        if wanted.get(name) == held.get(name) or (name in _DATA and not compares_data):
            continue
        if name in _HASHED:
            raise InputError(f"checkpoint folder '{folder}' holds a run with other {name} than this one's: {advice}")
        ours, theirs = (as_words(one[name]) if name in one else "not given" for one in (wanted, held))
        raise InputError(f"{name} is {ours}, but checkpoint folder '{folder}' holds a run with {theirs}: {advice}")
    edited = changed_code(now["code"], before["code"])
    if edited is not None and not is_anyway:
        raise InputError(
            f"checkpoint folder '{folder}' was written before {edited} was edited, which may give other bits: "
            f"{advice}, or say resume_anyway=True (--resume-anyway)"
        )
    for name, version in now["versions"].items():
        other = before["versions"].get(name)
        if other != version and not is_anyway:
            raise InputError(
                f"checkpoint folder '{folder}' was written with {name} {other}, but this is {version}, which may give "
                "other bits: go on with the version that wrote it, or say resume_anyway=True (--resume-anyway)"
            )


def has_other_data(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return any(now.get(name) != before.get(name) for name in _DATA)


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in identity.items() if name not in ("spec", "code", "versions")}
    return {**identity["spec"], **own}


_EXPECTED = "a checkpoint of this run. Put back a copy of the file, or choose another folder"
_SHARE = 10
"""By the clock, the time between two saves is at least so many times what a save takes, however large it is."""


class Restored(NamedTuple):
    """A run as it was left, its records, and how its engine worked."""

    run: Run
    records: list[Record]
    way: str
    notes: tuple[str, ...]
    """What the holder of a restricted run's data is to know."""


class Checkpointer:
    """Saves one run into its checkpoint folder, which the caller holds."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None] = tell_user) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self._is_restricted = publication_of(plan).is_restricted
        self._identity = identity_of(plan, key_at(folder / DATA_KEY) if self._is_restricted else None)
        self._notes: tuple[str, ...] = ()
        """What the holder of a restricted run's data is to know of its being resumed."""
        self._columns = to_columns([])
        self._kept: list[Path] = []
        """The files known to be whole, oldest first."""
        self._iteration = self._rounds = 0
        self._since, self._pause = time.perf_counter(), 0.0

    def restore(self) -> Restored | None:
        """Return the run as its newest whole checkpoint has it; None where it has to start from the beginning.

        Raises:
            InputError: if the folder belongs to another run, or its ledger lacks charges; no checkpoint is touched.
        """
        newest = read_newest(self._folder, self._tell)
        if newest is None:
            return None
        path, content = newest
        with reading(path, _EXPECTED, SafetensorError):
            kept = from_bytes(content, str(path))
            check_facts(kept.facts)
        before, is_anyway = kept.facts["identity"], self._plan.spec.resume_anyway
        check_same(self._identity, before, self._folder, is_anyway, compares_data=not self._is_restricted)
        with reading(path, _EXPECTED):
            check_snapshot(kept, self._plan)
        run = self._with_ledger(kept.facts["ledger"])
        for memory, rows in ((run.memory, kept.memory), (run.private, kept.private)):
            memory.put(rows.clients, rows.vectors)
        self._columns, self._kept = kept.columns, [path]
        self._iteration, self._rounds = kept.state.iteration, kept.state.data_rounds
        self._notes = tuple(kept.facts.get("notes", ()))
        if self._is_restricted and has_other_data(self._identity, before):
            self._notes += (f"the run went on after iteration {self._iteration} with other data than before",)
        best = None if kept.best is None else Best(**kept.best)
        run = replace(run, state=kept.state, best=best)
        return Restored(run, to_records(kept.columns), kept.facts["way"], self._notes)

    def _with_ledger(self, ledger: dict[str, Any] | None) -> Run:
        """Return the run's beginning with its ledger as the file has it, which holds all that was ever released."""
        path = self._plan.spec.ledger_path
        if ledger is None or path is None:
            return start_run(self._plan)
        run = start_run(self._plan, ledger["run"]) if path.exists() else None
        lines = 0 if run is None or run.ledger is None else len(run.ledger)
        if run is None or lines < ledger["lines"]:
            raise InputError(
                f"ledger '{path}' holds {lines} entries, but it held {ledger['lines']} when the checkpoint in "
                f"'{self._folder}' was made: put that file back, or {way_out(self._plan.spec.has_real_noise)}"
            )
        if run.ledger is not None:
            run.ledger.hold_against(ledger["head"], str(path))
        return run

    def maybe_save(self, run: Run, records: Sequence[Record], way: str) -> None:
        """Save if it is time, and always after the last iteration; raises WriteError in one sentence."""
        every = self._plan.checkpoint_every
        if isinstance(every, int):
            is_due = run.state.data_rounds - self._rounds >= every
        else:
            is_due = time.perf_counter() - self._since >= max(every, self._pause)
        if is_due or run.state.iteration == self._plan.iterations:
            self._save(run, records, way)

    def save_on_exit(self, run: Run, records: Sequence[Record], way: str) -> None:
        """Save the last finished iteration of a run that is broken off, if that can still be done.

        ``run`` is as that iteration left it; its memories may hold rows of the one that was broken off.
        """
        if run.state.iteration <= self._iteration:
            return
        run.memory.back_to(run.state.iteration)
        run.private.back_to(run.state.iteration)
        with suppress(WriteError):  # why the run stops is the better sentence
            self._save(run, records, way)

    def _save(self, run: Run, records: Sequence[Record], way: str) -> None:
        began = time.perf_counter()
        iteration, ledger = run.state.iteration, run.ledger
        if ledger is not None:
            ledger.flush()
        columns = joined(self._columns, to_columns(records[len(self._columns["iteration"]) : iteration]))
        facts = {
            "identity": self._identity,
            "way": way,
            "ledger": None if ledger is None else _facts_of(ledger),
        } | ({"notes": self._notes} if self._notes else {})
        best = None if run.best is None else vars(run.best)
        # What the algorithm remembers of clients is for the next round, and a finished run has none.
        is_over = iteration == self._plan.iterations
        memory = ClientMemory(run.memory.names, 0, self._plan.layout.size) if is_over else run.memory
        content = to_bytes(Snapshot(run.state, _rows(memory), _rows(run.private), columns, facts, best))
        self._kept = [*self._kept, write(self._folder, iteration, content)][-2:]
        self._columns, self._iteration, self._rounds = columns, iteration, run.state.data_rounds
        tidy(self._folder, self._kept)
        self._since = time.perf_counter()
        self._pause = _SHARE * (self._since - began)


def _facts_of(ledger: Ledger) -> dict[str, Any]:
    head = ledger.head
    return {"run": ledger.run, "lines": len(ledger), "head": None if head is None else head.as_json()}


def _rows(memory: ClientMemory) -> MemoryRows:
    return MemoryRows(*memory.content())

"""Keeps a run on the disk while it goes on, and finds it again.

A run is a fold over iterations, so what is kept is the fold's value. Random streams are functions of the seed and need
no storing; real noise has no key that outlives its call. The ledger's file is ahead of the checkpoint, never behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from upcycled.core.errors import InputError
from upcycled.core.memory import ClientMemory
from upcycled.privacy.ledger.chain import key_at
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.runtime.checkpointing.checkpoint_files import read_newest, tell_user, tidy, write
from upcycled.runtime.checkpointing.history_codec import joined, to_columns, to_records
from upcycled.runtime.checkpointing.identity import DATA_KEY, check_same, has_other_data, identity_of, way_out
from upcycled.runtime.checkpointing.snapshot import MemoryRows, Snapshot, from_bytes, to_bytes
from upcycled.runtime.checkpointing.validation import check_facts, check_snapshot
from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan
from upcycled.runtime.publication import publication_of
from upcycled.runtime.state import Best, Run, start_run
from upcycled.support.files import WriteError, reading

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
        content = to_bytes(Snapshot(run.state, _rows(run.memory), _rows(run.private), columns, facts, best))
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

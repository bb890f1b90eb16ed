"""Where the cells lie, and the data they are made from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.common.data import validated
from studies.common.store import SUFFIXES, Cells
from studies.paper.settings import Settings
from studies.paper.spec import Spec, check_cell
from upcycled._utils.files import write_whole
from upcycled.core.errors import InputError
from upcycled.data import FederatedData, femnist, load, sent140
from upcycled.data.sets.paths import VARIABLE, find
from upcycled.training.checkpoint.fingerprint import hash_of_data

SYNTHETIC = "upcycled_synthetic.npz"
DATA = "data.json"
"""Beside the cells: which data they come from. A fingerprint for each source, of its test and its validation form."""


@dataclass(frozen=True)
class Store:
    """The files of cells in a folder; each is opened when first asked for."""

    folder: Path
    settings: Settings
    _open: dict[str, Cells] = field(default_factory=dict, init=False)

    def cells(self, spec: Spec) -> Cells:
        """Return the file that a run's cell belongs to."""
        kind = spec.part if spec.mechanism is None else f"private-{spec.part}"
        return self.named(f"{self.settings.data[spec.data].group}-{kind}")

    def named(self, name: str) -> Cells:
        if name not in self._open:
            self._open[name] = Cells(self.folder / f"{name}.parquet", check_cell)
        return self._open[name]

    def names(self, pattern: str = "*") -> list[str]:
        return sorted({path.stem for path in self.folder.glob(pattern) if path.suffix in SUFFIXES})

    def fold(self) -> None:
        """Put journals into their Parquet files: of all files that were opened, so of stopped commands too."""
        for cells in self._open.values():
            cells.fold()

    def known(self, data: Collection[str]) -> Iterator[tuple[Spec, Mapping[str, Any]]]:
        """Yield all runs of some data sets that are there."""
        for group in sorted({self.settings.data[name].group for name in data}):
            for name in self.names(f"{group}-*"):
                for key, cell in self.named(name).items():
                    spec = Spec.from_key(key)
                    if spec.data in data:
                        yield spec, cell

    def __call__(self, spec: Spec) -> Mapping[str, Any] | None:
        return self.cells(spec).get(spec.key)


@dataclass(frozen=True)
class Sources:
    """The data sets, each read once."""

    settings: Settings
    _read: dict[tuple[str, str], FederatedData] = field(default_factory=dict, init=False)
    _fingerprints: dict[tuple[str, str], str] = field(default_factory=dict, init=False)

    def data(self, name: str, part: str) -> FederatedData:
        """Return a data set whose test part is what runs are scored on.

        For ``part="validation"`` the test samples are not in it at all.
        """
        if (name, part) not in self._read:
            if part == "validation":
                self._read[name, part] = validated(self.data(name, "test"), self.settings.validation_fraction)
            else:
                self._read[name, part] = self._load(name) if part == "test" else self.data(name, "test")
        return self._read[name, part]

    def fingerprint(self, name: str, part: str) -> str:
        """Return a hash of everything that runs see of a data set."""
        if (name, part) not in self._fingerprints:
            self._fingerprints[name, part] = hash_of_data(self.data(name, part))
        return self._fingerprints[name, part]

    def model(self, name: str) -> dict[str, Any]:
        """Return ``train``'s arguments that say what is trained on a data set."""
        return {"model": self.settings.data[name].model}

    def _load(self, name: str) -> FederatedData:
        source = self.settings.data[name].source
        if source == "femnist":
            return femnist()
        if source == "femnist26":
            return femnist(letters=26)
        if source == "sent140":
            return sent140()
        path = find(SYNTHETIC)
        if path is None:
            raise InputError(
                f"the paper's synthetic sets are not on this machine: {SYNTHETIC} must be in the folder that "
                f"{VARIABLE} names ('upcycled data fetch' does not offer it: it comes with the paper's official code)"
            )
        return load(path, name=source)


def check_data(store: Store, sources: Sources, name: str, part: str) -> None:
    """Refuse data other than those that the folder's cells come from; write down which they are where nothing is known.

    A validation form comes from a test form, so that is looked at too: settings and runs are from the same files.
    """
    path, one = store.folder / DATA, store.settings.data[name]
    kept = _fingerprints(path)
    before = {source: dict(forms) for source, forms in kept.items()}
    for form in ("test", "validation") if part == "validation" else ("test",):
        now = sources.fingerprint(name, form)
        if kept.setdefault(one.source, {}).setdefault(form, now) != now:
            what = "files" if form == "test" else "validation samples"
            raise InputError(
                f"the {what} of {one.title} on this machine differ from those that the cells in {store.folder} come "
                "from, so their runs must not be mixed: --results DIR computes anew in another folder"
            )
    if kept != before:
        write_whole(path, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())


def _fingerprints(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes().decode("utf-8"))
        return {source: {form: str(value) for form, value in forms.items()} for source, forms in found.items()}
    except (OSError, ValueError, AttributeError):
        raise InputError(
            f"{path} cannot be read, but it must be as it was written: it says which data the cells beside it come from"
        ) from None

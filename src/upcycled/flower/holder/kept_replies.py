"""Stores the questions that a site accepted in a run, and its latest replies.

Runs with real noise are remembered beside the account that pays for them, so that policies with one account remember
the same. A question is noted once it is paid for, and a reply is on the disk before it is sent. So a question that
comes again gets the same bytes and costs nothing more, and another question under the same (run, round, attempt) is
refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled.flower.holder.refusals import Refused
from upcycled.flower.messages import Fields, Request
from upcycled.support.files import json_table, make_private, reading, write_whole
from upcycled.support.lock import locked

MOST_KEPT = 8
"""Replies of a run that are kept, the latest ones: a server cannot fill the disk with attempts."""


@dataclass(frozen=True)
class KeptReplies:
    """The replies of one run; the folder is the site's own."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other processes out of it while the block runs."""
        make_private(self.folder.parent)
        with locked(self.folder, is_private=True, waits=True):
            yield

    def found(self, request: Request, question: str) -> Fields | None:
        """Return the reply to a question that was answered before; None for one that was not.

        Raises:
            Refused: in one sentence, for another question under the same key, and for a round that is over.
        """
        noted = self._noted(request)
        if noted is not None and noted["question"] != question:
            raise Refused(
                f"data round {request.round}, attempt {request.attempt}, was asked before with another question"
            )
        path = self._path(request, "reply")
        if noted is not None and path.exists():
            with reading(path, "a reply of this site"):
                return fields_from(path.read_bytes())
        last = max((round for round, _ in self._keys()), default=0)
        if request.round < last:
            raise Refused(f"data round {request.round} is over: this site has answered data round {last}")
        return None

    def is_taken_on(self, request: Request) -> bool:
        """Return whether a question was paid for and no reply to it was ever stored or sent."""
        noted = self._noted(request)
        return noted is not None and not noted["answered"]

    def take_on(self, request: Request, question: str) -> None:
        """Note, durably, that a question is paid for."""
        self._path(request, "reply").unlink(missing_ok=True)
        self._note(request, question, is_answered=False)

    def keep(self, request: Request, question: str, reply: Fields) -> None:
        """Store a reply durably, and let the oldest go.

        The note comes first: a site that dies between the two pays again, and never releases twice for one charge.
        """
        self._note(request, question, is_answered=True)
        write_whole(self._path(request, "reply"), fields_to(reply), private=True)
        for key in self._keys()[:-MOST_KEPT]:
            for path in self.folder.glob(f"{_stem(*key)}.*"):
                path.unlink(missing_ok=True)

    def _note(self, request: Request, question: str, is_answered: bool) -> None:
        content = json.dumps({"question": question, "answered": is_answered})
        write_whole(self._path(request, "json"), content.encode(), private=True)

    def _noted(self, request: Request) -> dict[str, Any] | None:
        path = self._path(request, "json")
        if not path.exists():
            return None
        with reading(path, "the note of a question that this site took on"):
            noted = json_table(path.read_bytes())
            return {"question": str(noted["question"]), "answered": bool(noted["answered"])}

    def _path(self, request: Request, ending: str) -> Path:
        return self.folder / f"{_stem(request.round, request.attempt)}.{ending}"

    def _keys(self) -> list[tuple[int, int]]:
        """Return (round, attempt) of every question that was taken on, in order."""
        stems = [path.stem.split("-") for path in self.folder.glob("round-*.json")]
        return sorted((int(round), int(attempt)) for _, round, attempt in stems)


def _stem(round: int, attempt: int) -> str:
    return f"round-{round:06d}-{attempt:04d}"


def replies_of(place: Path, run: str, site: str) -> KeptReplies:
    """Return a site's replies of a run. Its folder's name is a hash, so a server cannot choose a path."""
    return KeptReplies(place / "runs" / hashlib.sha256(f"{site}\n{run}".encode()).hexdigest()[:16])


def fields_to(fields: Fields) -> bytes:
    """Return fields as bytes: a line of JSON, then the bytes among them.

    >>> fields_from(fields_to({"a": 1, "b": b"xyz"}))
    {'a': 1, 'b': b'xyz'}
    """
    blobs = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    plain = {name: value for name, value in fields.items() if name not in blobs}
    head = json.dumps({"plain": plain, "bytes": {name: len(value) for name, value in blobs.items()}})
    return b"\n".join([head.encode(), b"".join(blobs.values())])


def fields_from(content: bytes) -> Fields:
    """Return the fields that :func:`fields_to` wrote."""
    head, _, rest = content.partition(b"\n")
    about = json_table(head)
    found: Fields = dict(about["plain"])
    for name, length in about["bytes"].items():
        found[name], rest = rest[:length], rest[length:]
    return found

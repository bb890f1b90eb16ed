"""What a site remembers of a run: the requests that it took on, and its replies, until the run is past them.

A request is noted before anything is charged, a reply is on the disk before it is sent. So a question that comes again
gets the same bytes and costs nothing more, and another question under the same (run, round, attempt) is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from upcycled.flower.holder.refusals import Refused
from upcycled.flower.messages import Fields, Request, digest_of
from upcycled.support.files import make_private, write_whole

KEPT_ROUNDS = 2
"""Replies of so many rounds are kept; whatever is older is over."""


@dataclass(frozen=True)
class KeptReplies:
    """The replies of one run; the folder is the site's own."""

    folder: Path

    def found(self, request: Request, fields: Fields) -> Fields | None:
        """Return the reply to a request that was answered before; None for one that was not.

        Raises:
            Refused: in one sentence, for another question under the same key, and for a round that is over.
        """
        digest, noted = digest_of(fields), self._noted()
        before = noted.get((request.round, request.attempt))
        if before is not None and before != digest:
            raise Refused(
                f"data round {request.round}, attempt {request.attempt}, was asked before with another question"
            )
        path = self._path(request, "reply")
        if path.exists():
            return fields_from(path.read_bytes())
        last = max((round for round, _ in noted), default=0)
        if request.round < last:
            raise Refused(f"data round {request.round} is over: this site has answered data round {last}")
        return None

    def note(self, request: Request, fields: Fields) -> None:
        """Note that a request is taken on; it is on the disk when this returns."""
        make_private(self.folder.parent)
        make_private(self.folder)
        content = json.dumps({"round": request.round, "attempt": request.attempt, "digest": digest_of(fields)})
        write_whole(self._path(request, "json"), content.encode(), private=True)

    def keep(self, request: Request, reply: Fields) -> None:
        """Store a reply durably, and let those of rounds long over go."""
        write_whole(self._path(request, "reply"), fields_to(reply), private=True)
        for path in self.folder.glob("round-*"):
            if int(path.name.split("-")[1]) <= request.round - KEPT_ROUNDS:
                path.unlink(missing_ok=True)

    def _path(self, request: Request, ending: str) -> Path:
        return self.folder / f"round-{request.round:06d}-{request.attempt:04d}.{ending}"

    def _noted(self) -> dict[tuple[int, int], str]:
        found = [json.loads(path.read_bytes()) for path in sorted(self.folder.glob("round-*.json"))]
        return {(one["round"], one["attempt"]): one["digest"] for one in found}


def replies_of(state: Path, run: str) -> KeptReplies:
    """Return a run's replies: whatever a server calls its run is no path."""
    return KeptReplies(state / "runs" / hashlib.sha256(run.encode()).hexdigest()[:16])


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
    about = json.loads(head)
    found: Fields = dict(about["plain"])
    for name, length in about["bytes"].items():
        found[name], rest = rest[:length], rest[length:]
    return found

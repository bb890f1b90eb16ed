"""What crosses between a server and a data holder: a few plain fields, vectors as bytes.

    hello    ─▶ facts                 what everybody may know of a site's data
    ask      ─▶ answer                one client's part of a data round
             ─▶ refusal               why not, in one sentence
    score    ─▶ scores                only from a site whose file allows it

Nothing in a message is code, and nothing of it is unpickled. Whatever does not have the form of a message is refused
where it arrives, in words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from upcycled.core.errors import shown
from upcycled.core.vectors import Vector

Fields: TypeAlias = dict[str, int | float | str | bytes]
"""A message's content."""

FORMAT = 1
DTYPES = ("<f4", "<f8")
"""What a vector on the wire may be made of: float32, or float64 where the aggregate takes its noise later."""
MOST_TEXT = 1 << 20
"""Characters of a message's head: what is longer is none of ours."""


class MalformedError(ValueError):
    """What arrived is no message of this package; the text says what is wrong with it."""


@dataclass(frozen=True, eq=False)
class RunTerms:
    """What a run is, as everybody who takes part is told it."""

    run: str
    """Names the run: random, and kept with its checkpoint."""
    config: str
    """The experiment file without its data, as JSON."""
    seed: int
    clients: int
    """N, all sites."""


@dataclass(frozen=True, eq=False)
class Hello:
    """The question that a run begins with."""

    terms: RunTerms
    client: int
    """The site's number in this federation."""


@dataclass(frozen=True, eq=False)
class SiteFacts:
    """What everybody may know of a site's data."""

    site: str
    samples: int
    facts: Mapping[str, Any]
    """Shape, classes and the like in plain values: the same at every site."""


@dataclass(frozen=True, eq=False)
class Request:
    """One client's part of an attempt at a data round."""

    terms: RunTerms
    client: int
    iteration: int
    round: int
    attempt: int
    a: float
    model: Vector
    b: Vector | None = None
    statistics: Vector | None = None
    shared: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the mechanism that follow from the sizes of all (``Fitted.shared``)."""

    @property
    def key(self) -> tuple[str, int, int]:
        """What an answer is known by."""
        return self.terms.run, self.round, self.attempt


@dataclass(frozen=True, eq=False)
class Reply:
    """A site's answer: its release, and nothing else."""

    run: str
    client: int
    round: int
    attempt: int
    samples: int
    steps: int
    vector: Vector
    statistics: Vector | None = None


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """The model, to be scored on a site's own test samples."""

    terms: RunTerms
    client: int
    iteration: int
    model: Vector
    statistics: Vector | None = None
    shared: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SiteScores:
    """What a site gives of its scores: exact numbers, which nothing covers."""

    run: str
    client: int
    iteration: int
    samples: int
    accuracy: float | None
    loss: float


@dataclass(frozen=True, eq=False)
class Refusal:
    """Why a site does not answer, in one sentence."""

    reason: str


Message: TypeAlias = Hello | SiteFacts | Request | Reply | ScoreRequest | SiteScores | Refusal
_KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "facts": SiteFacts,
    "ask": Request,
    "answer": Reply,
    "score": ScoreRequest,
    "scores": SiteScores,
    "refusal": Refusal,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_VECTORS = ("model", "vector", "b", "statistics")


def packed(message: Message) -> Fields:
    """Return a message as plain fields.

    >>> packed(Refusal("no"))
    {'kind': 'refusal', 'format': 1, 'head': '{"reason": "no"}'}
    """
    head: dict[str, Any] = {}
    vectors: dict[str, bytes] = {}
    for name, value in vars(message).items():
        if name in _VECTORS:
            if value is not None:
                vectors[name] = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
                head[name] = value.dtype.newbyteorder("<").str
        else:
            head[name] = vars(value) if isinstance(value, RunTerms) else value
    return {"kind": _NAMES[type(message)], "format": FORMAT, "head": json.dumps(head, allow_nan=False), **vectors}


def unpacked(fields: Mapping[str, object]) -> Message:
    """Return the message of some fields.

    >>> unpacked({"kind": "refusal", "format": 1, "head": '{"reason": "no"}'}).reason
    'no'

    Raises:
        MalformedError: with what is wrong.
    """
    kind, head = fields.get("kind"), fields.get("head")
    if fields.get("format") != FORMAT:
        raise MalformedError(f"its format is {shown(fields.get('format'))}, and this version reads {FORMAT}")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise MalformedError(f"its kind is {shown(kind)}")
    if not isinstance(head, str) or len(head) > MOST_TEXT:
        raise MalformedError("it has no head")
    try:
        values = json.loads(head)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise MalformedError("its head is no table")
    made, known = _KINDS[kind], _form(_KINDS[kind])
    if not set(values) <= set(known) or not {name for name, one in known.items() if one.is_needed} <= set(values):
        raise MalformedError(f"its head has {shown(sorted(values))}")
    found: dict[str, Any] = {}
    for name, value in values.items():
        found[name] = _vector(name, value, fields.get(name)) if name in _VECTORS else known[name].checked(name, value)
    message: Message = made(**found)
    return message


def digest_of(fields: Mapping[str, int | float | str | bytes]) -> str:
    """Return the hash of a message: two with the same are the same question.

    >>> digest_of(packed(Refusal("no"))) == digest_of(packed(Refusal("yes")))
    False
    """
    found = hashlib.sha256()
    for name, value in sorted(fields.items()):
        content = value if isinstance(value, bytes) else repr(value).encode()
        found.update(f"{name} {type(value).__name__} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


@dataclass(frozen=True)
class _HeadField:
    """What one field of a head must be."""

    kind: Any
    is_needed: bool = True

    def checked(self, name: str, value: object) -> Any:
        if self.kind is RunTerms:
            if not isinstance(value, dict) or set(value) != set(_TERMS):
                raise MalformedError(f"its {name} is none")
            return RunTerms(**{key: _TERMS[key].checked(key, inner) for key, inner in value.items()})
        if self.kind is float and type(value) is int:
            value = float(value)
        is_missing = value is None and not self.is_needed
        if not is_missing and type(value) is not self.kind:
            raise MalformedError(f"its {name} is {shown(value)}")
        if type(value) is float and not np.isfinite(value):
            raise MalformedError(f"its {name} is {value}")
        if type(value) is int and not 0 <= value < 2**63:
            raise MalformedError(f"its {name} is {shown(value)}")
        if name == "shared" and not all(type(one) in (int, float) and np.isfinite(one) for one in value.values()):  # type: ignore[attr-defined]
            raise MalformedError(f"its {name} has what is no number")
        return value


_TERMS = {"run": _HeadField(str), "config": _HeadField(str), "seed": _HeadField(int), "clients": _HeadField(int)}
_INTEGERS = ("client", "iteration", "round", "attempt", "samples", "steps")


def _form(made: type[Any]) -> dict[str, _HeadField]:
    """Return what the head of a message has."""
    names = made.__dataclass_fields__
    form = {}
    for name in names:
        if name == "terms":
            form[name] = _HeadField(RunTerms)
        elif name in _INTEGERS:
            form[name] = _HeadField(int)
        elif name in ("shared", "facts"):
            form[name] = _HeadField(dict)
        elif name in ("a", "loss", "accuracy"):
            form[name] = _HeadField(float, is_needed=name != "accuracy")
        else:
            form[name] = _HeadField(str, is_needed=name not in ("b", "statistics"))
    return form


def _vector(name: str, dtype: object, content: object) -> Vector:
    if dtype not in DTYPES:
        raise MalformedError(f"its {name} is of type {shown(dtype)}")
    if not isinstance(content, bytes) or len(content) % int(str(dtype)[-1]):
        raise MalformedError(f"its {name} has no whole numbers of bytes")
    # A copy of its own, that may be written to, in this machine's order of bytes.
    found: Vector = np.frombuffer(content, dtype=str(dtype)).astype(str(dtype)[1:])
    return found

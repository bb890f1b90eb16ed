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
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import AllowInfNan, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from upcycled.core.errors import shown
from upcycled.core.vectors import Vector

Fields: TypeAlias = dict[str, int | float | str | bytes]
"""A message's content."""

FORMAT = 1
DTYPES = ("<f4", "<f8")
"""What a vector on the wire may be made of: float32, or float64 where the aggregate takes its noise later."""
MOST_TEXT = 1 << 20
"""Characters of a message's head: what is longer is none of ours."""
Text = Annotated[str, Strict()]
Number = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
Finite = Annotated[float, Strict(), AllowInfNan(False)]


class MalformedError(ValueError):
    """What arrived is no message of this package; the text says what is wrong with it."""


class _Part:
    """What has the types that its fields say, and nothing beside them."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass(frozen=True, eq=False)
class RunTerms(_Part):
    """What a run is, as everybody who takes part is told it."""

    run: Text
    """Names the run: random, and kept with its checkpoint."""
    config: Text
    """The experiment file without its data, as JSON."""
    seed: Number
    clients: Number
    """N, all sites."""


@dataclass(frozen=True, eq=False)
class Hello(_Part):
    """The question that a run begins with."""

    terms: RunTerms
    client: Number
    """The site's number in this federation."""


@dataclass(frozen=True, eq=False)
class SiteFacts(_Part):
    """What everybody may know of a site's data."""

    site: Text
    samples: Number
    facts: dict[str, Any]
    """Shape, classes and the like in plain values: the same at every site."""


@dataclass(frozen=True, eq=False)
class Request(_Part):
    """One client's part of an attempt at a data round."""

    terms: RunTerms
    client: Number
    iteration: Number
    round: Number
    attempt: Number
    a: Finite
    model: Vector
    b: Vector | None = None
    statistics: Vector | None = None
    shared: dict[str, Finite] = field(default_factory=dict)
    """Numbers of the mechanism that follow from the sizes of all (``Fitted.shared``)."""


@dataclass(frozen=True, eq=False)
class Reply(_Part):
    """A site's answer: its release, and nothing else."""

    run: Text
    client: Number
    round: Number
    attempt: Number
    samples: Number
    steps: Number
    vector: Vector
    statistics: Vector | None = None


@dataclass(frozen=True, eq=False)
class ScoreRequest(_Part):
    """The model, to be scored on a site's own test samples."""

    terms: RunTerms
    client: Number
    iteration: Number
    model: Vector
    shared: dict[str, Finite] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SiteScores(_Part):
    """What a site gives of its scores: exact numbers, which nothing covers."""

    run: Text
    client: Number
    iteration: Number
    samples: Number
    accuracy: Finite | None
    loss: Finite


@dataclass(frozen=True, eq=False)
class Refusal(_Part):
    """Why a site does not answer, in one sentence."""

    reason: Text


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
_FORMS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}
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
    vectors = {name: _vector(name, values[name], fields.get(name)) for name in _VECTORS if name in values}
    try:
        message: Message = _FORMS[kind].validate_python(values | vectors)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MalformedError(f"its head does not fit: {shown(place)}: {first['msg']}") from None
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


def _vector(name: str, dtype: object, content: object) -> Vector:
    if dtype not in DTYPES:
        raise MalformedError(f"its {name} is of type {shown(dtype)}")
    if not isinstance(content, bytes) or len(content) % int(str(dtype)[-1]):
        raise MalformedError(f"its {name} has no whole numbers of bytes")
    # A copy of its own, that may be written to, in this machine's order of bytes.
    found: Vector = np.frombuffer(content, dtype=str(dtype)).astype(str(dtype)[1:])
    return found

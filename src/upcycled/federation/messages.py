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
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from upcycled.core.errors import shown
from upcycled.core.mechanism import Ask
from upcycled.core.vectors import Vector

Fields: TypeAlias = dict[str, int | float | str | bytes]
"""A message's content."""

FORMAT = 2
DTYPES = ("<f4", "<f8", "<i8")
"""What an array on the wire may be made of: float32, float64 where the aggregate takes its noise later, numbers of
clients."""
MOST_TEXT = 1 << 20
"""Characters of a message's head: what is longer is none of ours."""
STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""What a value must be beside its type: nothing is converted, and a number is finite."""
Number = Annotated[int, Field(ge=0, lt=2**63)]
"""What every whole number of a message is."""


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
    facts: dict[str, Any]
    """Shape, classes and the like in plain values: the same at every site."""


@dataclass(frozen=True, eq=False)
class Request:
    """One client's part of an attempt at a data round."""

    terms: RunTerms
    ask: Ask
    """Of this client alone: ``asked.of(client)``."""
    shared: dict[str, float] = field(default_factory=dict)
    """Numbers of the mechanism that follow from the sizes of all (``Fitted.shared``)."""


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
    shared: dict[str, float] = field(default_factory=dict)


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


def packed(message: Message) -> Fields:
    """Return a message as plain fields.

    >>> packed(Refusal("no"))
    {'kind': 'refusal', 'format': 2, 'head': '{"reason": "no"}'}
    """
    arrays: dict[str, bytes] = {}
    head = json.dumps(_plain("", message, arrays), allow_nan=False)
    return {"kind": _NAMES[type(message)], "format": FORMAT, "head": head, **arrays}


def unpacked(fields: Mapping[str, object]) -> Message:
    """Return the message of some fields.

    >>> unpacked({"kind": "refusal", "format": 2, "head": '{"reason": "no"}'}).reason
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
    message: Message = _made("", _KINDS[kind], values, fields)
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


def _plain(where: str, value: Any, arrays: dict[str, bytes]) -> Any:
    """Return a value as JSON takes it; an array's bytes go into ``arrays`` under the place where it was found."""
    if is_dataclass(value):
        return {name: _plain(f"{where}.{name}".lstrip("."), part, arrays) for name, part in vars(value).items()}
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        arrays[where] = content.tobytes()
        return [content.dtype.str, *content.shape]
    return value.item() if isinstance(value, np.generic) else value


def _made(where: str, kind: Any, value: Any, fields: Mapping[str, object]) -> Any:
    """Return a value of the type that it must have: no field of a dataclass may be missing, and none is added.

    This is the only place where the types and ranges of what arrived are checked.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types_of(kind)
        if not isinstance(value, dict) or value.keys() != types.keys():
            raise MalformedError(f"{where or 'its head'} must have the fields {', '.join(types)}")
        return kind(
            **{name: _made(f"{where}.{name}".lstrip("."), one, value[name], fields) for name, one in types.items()}
        )
    content = fields.get(where)
    if isinstance(content, bytes):
        value = _array(where, value, content)
    try:
        return _form_of(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, (where, *first["loc"])))
        raise MalformedError(f"its head does not fit: {shown(place)}: {first['msg']}") from None


@cache
def _types_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _form_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Number if kind is int else kind, config=STRICT)


def _array(where: str, told: object, content: bytes) -> NDArray[Any]:
    """Return the array of some bytes, whose type and shape the head tells."""
    if not isinstance(told, list) or not told or told[0] not in DTYPES:
        raise MalformedError(f"its {where} is of type {shown(told)}")
    dtype, shape = np.dtype(str(told[0])), told[1:]
    is_shape = 1 <= len(shape) <= 2 and all(type(one) is int and 0 <= one <= len(content) for one in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(content):
        raise MalformedError(f"its {where} has {len(content)} bytes, which do not fill the shape {shown(shape)}")
    # A copy of its own, that may be written to, in this machine's order of bytes.
    return np.frombuffer(content, dtype=dtype).astype(dtype.newbyteorder("=")).reshape(shape)

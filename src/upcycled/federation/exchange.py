"""Questions out, answers in: who is asked, how long is waited, and what becomes of those who are late.

Nobody is asked who still owes an answer; a process that was started anew owes nothing. A node that is connected anew
while it is waited for is sent its question again, which costs it nothing: it may never have got it. Replies are matched
by the message that they reply to, so that one that comes late or twice belongs to nothing any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

from upcycled.core.errors import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, check_fields
from upcycled.federation.messages import Fields

LATE = 3.0
"""A message lives so many deadlines: one that comes late tells that its node is free again, and so does its end."""
LOOK = 2.0
"""Seconds between two looks at who is connected, while answers are waited for."""
T = TypeVar("T")


class UnfitReplyError(ValueError):
    """A reply that is not taken; the text says why."""


class SaidNoError(ValueError):
    """A site's refusal; the text is its own sentence."""


@dataclass(frozen=True)
class ConnectedNode:
    """A node as it is connected now."""

    number: int
    since: str = ""
    """When it connected, in Flower's words: since another moment, it is another process."""


@dataclass(frozen=True)
class Delivery:
    """What came back for a message."""

    replies_to: str
    fields: Fields | None
    """None where Flower gave up on it."""
    error: str = ""


class Post(Protocol):
    """What carries messages: Flower's Grid, or a test's own."""

    def nodes(self) -> Mapping[str, ConnectedNode]:
        """Return the nodes that are connected, by the name each was registered with."""

    def push(self, letters: Sequence[tuple[int, Fields]], seconds: float) -> list[str | None]:
        """Send fields to nodes, to be answered within so many seconds; return what names each message."""

    def pull(self, messages: Sequence[str]) -> list[Delivery]:
        """Return what came back for these messages since."""


@dataclass(frozen=True)
class Patience:
    """How long a server waits, and for whom."""

    deadline: Annotated[float, POSITIVE] = 600.0
    """Seconds after which a round goes on with whoever answered."""
    enough: Annotated[float, SHARE] = 0.5
    """The part of a cohort that a round needs at least."""
    grace: Annotated[float, NOT_NEGATIVE] = 60.0
    """Seconds that the others get once enough have answered."""
    attempts: Annotated[int, COUNT] = 20
    """At one round; then the run stops, and can be gone on with."""
    hello: Annotated[float, POSITIVE] = 120.0
    """Seconds for everybody to be there when a run begins."""
    poll: Annotated[float, POSITIVE] = 0.1

    def __post_init__(self) -> None:
        check_fields(self, of="")

    def needed(self, cohort: int) -> int:
        """Return how many of a cohort are enough.

        >>> Patience(enough=0.5).needed(3), Patience(enough=1.0).needed(3)
        (2, 3)
        """
        return max(1, math.ceil(self.enough * cohort - 1e-9))


@dataclass
class Gathered(Generic[T]):
    """What became of some questions."""

    answers: dict[int, T] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why others did not answer."""
    refused: list[int] = field(default_factory=list)
    """Those who said no, and paid nothing."""
    silent: list[int] = field(default_factory=list)
    """Those who were asked and from whom nothing came."""
    lost: list[int] = field(default_factory=list)
    """Those who were asked and may have paid for an answer that never came, or was not fit to be taken."""
    messages: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Exchange:
    """Asks nodes, and remembers who owes an answer."""

    def __init__(
        self,
        post: Post,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take what carries messages, and how long to wait; tests bring a clock of their own."""
        self._post, self._patience, self.clock, self._sleep = post, patience, clock, sleep
        self._owed: dict[str, ConnectedNode] = {}

    @property
    def owing(self) -> frozenset[int]:
        """The nodes that still owe an answer."""
        return frozenset(node.number for node in self._owed.values())

    def gather(
        self,
        questions: Mapping[int, tuple[ConnectedNode, Fields]],
        accept: Callable[[int, Fields], T],
        needed: int | None = None,
        seconds: float | None = None,
    ) -> Gathered[T]:
        """Ask, and wait for all; for enough and a while; or for the deadline.

        Args:
            questions: for each client its node and what it is asked.
            accept: makes an answer of a reply, or raises why it is none.
            needed: how many are enough; all if left out.
            seconds: the deadline; the usual one if left out.
        """
        found: Gathered[T] = Gathered()
        self._forgive(node for node, _ in questions.values())
        letters = {client: letter for client, letter in questions.items() if letter[0].number not in self.owing}
        found.reasons = {client: "it still owes an earlier answer" for client in questions if client not in letters}
        if not letters:
            return found
        deadline = self._patience.deadline if seconds is None else seconds
        pending = self._sent(letters, deadline, found)
        began = looked = self.clock()
        since_enough: float | None = None
        while pending:
            for delivery in self._post.pull([*pending, *self._owed]):
                self._owed.pop(delivery.replies_to, None)
                client = pending.pop(delivery.replies_to, -1)
                is_asked_again = client in pending.values()
                if client >= 0 and (delivery.fields is not None or not is_asked_again):
                    self._sort(client, delivery, accept, found)
                    pending = {name: other for name, other in pending.items() if other != client}
            now = self.clock()
            if pending and now - looked >= LOOK:
                looked = now
                again = self._connected_anew(letters, set(pending.values()))
                letters |= again
                pending |= self._sent(again, deadline, found)
                # Who is back has the whole grace, within the deadline.
                since_enough = None if again else since_enough
            if since_enough is None and needed is not None and len(found.answers) >= needed:
                since_enough = now
            is_over = since_enough is not None and now - since_enough >= self._patience.grace
            if not pending or is_over or now - began >= deadline:
                break
            self._sleep(self._patience.poll)
        # Of two messages to one node the last: it takes them in their order.
        for client, name in {client: name for name, client in pending.items()}.items():
            self._owed[name] = letters[client][0]
            found.reasons[client] = "no answer in time"
            found.silent.append(client)
            found.lost.append(client)
        return found

    def _sent(
        self, letters: Mapping[int, tuple[ConnectedNode, Fields]], deadline: float, found: Gathered[T]
    ) -> dict[str, int]:
        """Send letters, and return which message is whose."""
        if not letters:
            return {}
        names = self._post.push([(node.number, fields) for node, fields in letters.values()], LATE * deadline)
        sent: dict[str, int] = {}
        for client, name in zip(letters, names, strict=True):
            if name is None:
                found.reasons[client] = "the message could not be sent"
            else:
                sent[name] = client
                found.messages += 1
                found.bytes_down += size_of(letters[client][1])
        return sent

    def _connected_anew(
        self, letters: Mapping[int, tuple[ConnectedNode, Fields]], clients: set[int]
    ) -> dict[int, tuple[ConnectedNode, Fields]]:
        """Return the letters of those who were asked, and have connected since."""
        now = {node.number: node for node in self._post.nodes().values()}
        found = {}
        for client in sorted(clients):
            before, fields = letters[client]
            node = now.get(before.number, before)
            if node.since != before.since:
                found[client] = (node, fields)
        return found

    def wait_for_change(self, seconds: float, is_worth: Callable[[Mapping[str, ConnectedNode]], bool]) -> bool:
        """Wait until nodes that are connected and owe nothing are worth asking; say whether they are."""
        began = self.clock()
        while True:
            nodes = self._post.nodes()
            self._forgive(nodes.values())
            free = {name: node for name, node in nodes.items() if node.number not in self.owing}
            if is_worth(free):
                return True
            if self.clock() - began >= seconds:
                return False
            self.pause()

    def pause(self) -> None:
        """Let things change for a moment."""
        self._sleep(max(self._patience.poll, 0.5))

    def _forgive(self, nodes: Iterable[ConnectedNode]) -> None:
        """Let those go who have answered meanwhile, though too late, and those whose process was started anew."""
        if self._owed:
            for delivery in self._post.pull(list(self._owed)):
                self._owed.pop(delivery.replies_to, None)
            since = {node.number: node.since for node in nodes}
            self._owed = {
                name: node for name, node in self._owed.items() if since.get(node.number) in (None, node.since)
            }

    def _sort(self, client: int, delivery: Delivery, accept: Callable[[int, Fields], T], found: Gathered[T]) -> None:
        if delivery.fields is None:
            found.reasons[client] = delivery.error or "no answer"
            found.silent.append(client)
            found.lost.append(client)
            return
        found.messages += 1
        found.bytes_up += size_of(delivery.fields)
        try:
            found.answers[client] = accept(client, delivery.fields)
        except SaidNoError as error:
            found.reasons[client] = f"it refused: {error}"
            found.refused.append(client)
        except UnfitReplyError as error:
            found.reasons[client] = str(error)
            found.lost.append(client)


def size_of(fields: Fields) -> int:
    """Return the bytes of a message's content, roughly as they travel.

    >>> size_of({"a": b"xyz", "b": "word"})
    9
    """
    return sum(len(name) + (len(value) if isinstance(value, bytes | str) else 8) for name, value in fields.items())

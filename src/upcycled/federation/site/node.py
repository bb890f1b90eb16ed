"""A site's process: one connection outwards, and one warm worker that has the data.

The parent speaks to the federation and holds no data, nor what local work needs (torch); the worker holds the data and
speaks to nobody else. If the worker dies, the server is told at once, and another one is started.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from upcycled._utils.files import write_whole
from upcycled._utils.lock import locked
from upcycled.federation.certificates import Invitation, public_line, site_key
from upcycled.federation.messages import Fields
from upcycled.federation.site.policy import Policy
from upcycled.federation.transport import ConnectionLostError, Letter, NodeLink

POLL, IDLE_POLL, ACTIVE = 0.3, 1.0, 30.0
"""Seconds between two looks for a message: while there were some lately, and when there were none for a while."""
PAUSES = (0.5, 1.0, 2.0, 5.0)
"""Seconds between two attempts to connect."""
KEY = "node.key"
DIED = "its process died"


class WorkerDiedError(Exception):
    """The worker is gone."""


class Worker:
    """A process that has read the data and waits for questions."""

    def __init__(self, policy: Policy, folder: Path, schema: Mapping[str, Any] | None, threads: int) -> None:
        """Start it; it reads its data before it says that it is ready."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        given = (there, policy, folder, schema, threads)
        self._process = context.Process(target=_work, args=given, daemon=True)
        self._process.start()
        there.close()
        self._pipe: Connection[Any, Any] = here

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    def ask(self, fields: Fields | None) -> Any:
        """Return its reply; to None why it is not ready, or nothing, and the notes for the holder.

        Raises:
            WorkerDiedError: at once when it dies.
        """
        try:
            if fields is not None:
                self._pipe.send(fields)
            wait([self._pipe, self._process.sentinel])
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError from error

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(timeout=5)


def _work(pipe: Any, policy: Policy, folder: Path, schema: Mapping[str, Any] | None, threads: int) -> None:
    """Answer until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from upcycled.core.errors import UpcycledError
    from upcycled.data.schema.schema import as_schema
    from upcycled.federation.messages import Refusal, packed
    from upcycled.federation.site.site import open_site

    try:
        site = open_site(policy, folder, None if schema is None else as_schema(schema), threads)
    except UpcycledError as error:
        pipe.send((str(error), ()))
        return
    pipe.send((None, site.notes))
    log = policy.state(folder) / "site.log"
    while True:
        try:
            fields = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            reply = site.reply(fields)
        except Exception:
            # Why is the holder's own: its words may follow from records.
            with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")
            reply = packed(Refusal("the local work could not be done: the site's own log says why"))
        pipe.send(reply)


Tell = Callable[[str], None]


def connected(invitation: Invitation, state: Path, key: bytes) -> NodeLink:
    """Return a connection to the invitation's server; whoever calls this holds the lock on the site's own folder.

    Which node this site is there is kept, so that one that was killed is back at once.

    Raises:
        ConnectionLostError: in one sentence.
    """
    path = state / f"node-{invitation.fingerprint[:16]}"
    before = path.read_text().strip() if path.exists() else ""
    link = NodeLink(invitation.address, invitation.certificate.encode(), key, int(before) if before.isdigit() else 0)
    if before != str(link.node):
        write_whole(path, f"{link.node}\n".encode(), private=True)
    return link


def stay(
    invitation: Invitation,
    policy: Policy,
    folder: Path,
    tell: Tell,
    threads: int = 1,
) -> None:
    """Take part in a federation until interrupted.

    Args:
        invitation: from its server.
        policy: this site's own file.
        folder: where the site's own files lie.
        tell: is told a sentence whenever something changes.
        threads: of local work.

    Raises:
        InputError: in one sentence, if the site's own data cannot be read.
    """
    from upcycled.core.errors import InputError

    state = policy.state(folder)
    with locked(state, is_private=True):
        key = site_key(state / KEY)
        tell(f"this site's public key: {public_line(key)}")
        worker = Worker(policy, folder, invitation.schema, threads)
        try:
            wrong, notes = worker.ask(None)
            if wrong is not None:
                raise InputError(wrong)
            tell(f"the data are read; the worker is process {worker.pid}")
            for words in notes:
                tell(f"note for you alone: {words}")
            _Staying(invitation, policy, folder, key, threads, tell).loop(worker)
        except WorkerDiedError:
            raise InputError("the worker died while it read the data") from None


class _Staying:
    """A site that is connected, or tries to be."""

    def __init__(
        self,
        invitation: Invitation,
        policy: Policy,
        folder: Path,
        key: bytes,
        threads: int,
        tell: Tell,
    ) -> None:
        self._invitation, self._policy, self._folder, self._key = invitation, policy, folder, key
        self._threads, self._tell, self._said = threads, tell, ""

    def loop(self, worker: Worker) -> None:
        """Take messages to the worker, and its replies back."""
        link: NodeLink | None = None
        last = time.monotonic()
        try:
            while True:
                if link is None or link.lost:
                    link = self._connected(link)
                try:
                    letter = link.receive()
                except ConnectionLostError as error:
                    self._once(str(error))
                    link = self._connected(link)
                    continue
                if letter is None:
                    time.sleep(POLL if time.monotonic() - last < ACTIVE else IDLE_POLL)
                    continue
                last = time.monotonic()
                try:
                    reply, error_words = worker.ask(letter.fields), ""
                except WorkerDiedError:
                    reply, error_words = None, DIED
                link = self._delivered(link, letter, reply, error_words)
                if reply is None:
                    self._tell("the worker died: the server is told, and another one is started")
                    worker.close()
                    worker = Worker(self._policy, self._folder, self._invitation.schema, self._threads)
                    worker.ask(None)
                    self._tell(f"the worker is process {worker.pid}")
        finally:
            worker.close()
            if link is not None:
                link.close()

    def _delivered(self, link: NodeLink, letter: Letter, reply: Fields | None, error: str) -> NodeLink:
        """Send a reply, again after the connection is back; what the server does not want any more is let go."""
        for _ in range(20):
            try:
                link.send(letter, reply, error)
                return link
            except ConnectionLostError as lost:
                self._once(str(lost))
                if lost.is_refusal:
                    return link
                link = self._connected(link)
        return link

    def _connected(self, before: NodeLink | None) -> NodeLink:
        """Return a connection, however long it takes."""
        if before is not None:
            before.close()
        pauses = chain(PAUSES, repeat(PAUSES[-1]))
        while True:
            try:
                link = connected(self._invitation, self._policy.state(self._folder), self._key)
            except ConnectionLostError as error:
                self._once(f"not connected: {error}")
                time.sleep(next(pauses))
                continue
            self._said = ""
            self._tell(f"connected to {self._invitation.address} as '{self._policy.name}'")
            return link

    def _once(self, words: str) -> None:
        """Say what has not just been said."""
        if words != self._said:
            self._said = words
            self._tell(words)

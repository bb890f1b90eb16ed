"""What `federation check` tries before a site takes part: one sentence each, in the order in which things go wrong."""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from upcycled._utils.formats import percent
from upcycled._utils.lock import InUseError, locked
from upcycled.core.errors import InputError, UpcycledError, reason_of
from upcycled.federation.certificates import Invitation, site_key
from upcycled.federation.site.node import KEY, connected
from upcycled.federation.site.policy import Policy, account_of, grave_problems, site_data

SECONDS = 5.0
MOST_DRIFT = 60.0
"""Seconds that clocks may differ: signatures of requests are good for about that long."""


@dataclass(frozen=True)
class JoinCheck:
    """One thing that was tried."""

    what: str
    is_right: bool
    said: str


def check_joining(invitation: Invitation, policy: Policy, folder: Path) -> Iterator[JoinCheck]:
    """Yield what was found, one after the other; what builds on something wrong is not tried."""
    host, _, port = invitation.address.rpartition(":")
    steps: list[tuple[str, Callable[[], str]]] = [
        ("name", lambda: _name(invitation, policy, host)),
        ("port", lambda: _port(host, int(port))),
        ("certificate and clock", lambda: _certificate(invitation, host, int(port))),
        ("registration", lambda: _registration(invitation, policy, folder)),
    ]
    for what, step in steps:
        found = _tried(what, step)
        yield found
        if not found.is_right:
            break
    yield _tried("columns", lambda: _columns(invitation, policy))
    yield _tried("account", lambda: _account(policy, folder))


def _tried(what: str, step: Callable[[], str]) -> JoinCheck:
    try:
        return JoinCheck(what, True, step())
    except UpcycledError as error:
        return JoinCheck(what, False, str(error))
    except OSError as error:
        return JoinCheck(what, False, reason_of(error))


def _name(invitation: Invitation, policy: Policy, host: str) -> str:
    if policy.name != invitation.site:
        raise InputError(f"the policy is that of '{policy.name}', but '{invitation.site}' is invited")
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise InputError(f"no address is known for '{host}' ({reason_of(error)})") from None
    return f"'{host}' is {found[0][4][0]}"


def _port(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        raise InputError(
            f"{host}:{port} does not answer ({reason_of(error)}): is the server up, and the way free?"
        ) from None
    return f"{host}:{port} answers"


def _certificate(invitation: Invitation, host: str, port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=invitation.certificate)
    try:
        with (
            socket.create_connection((host, port), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            secure.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            head = secure.recv(4096).decode(errors="replace")
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"the server's certificate is not the invitation's ({error.verify_message})") from None
    except ssl.SSLError as error:
        raise InputError(f"the server does not speak TLS as it should ({reason_of(error)})") from None
    dates = [line.partition(":")[2].strip() for line in head.splitlines() if line.lower().startswith("date:")]
    if not dates:
        return "the server proves to be the invitation's"
    drift = time.time() - email.utils.parsedate_to_datetime(dates[0]).timestamp()
    if abs(drift) > MOST_DRIFT:
        raise InputError(
            f"this clock is {round(drift)} seconds from the server's, but {round(MOST_DRIFT)} at most may be"
        )
    return f"the server proves to be the invitation's, and clocks differ by {round(abs(drift))} s"


def _registration(invitation: Invitation, policy: Policy, folder: Path) -> str:
    state = policy.state(folder)
    try:
        with locked(state, is_private=True):
            key = site_key(state / KEY)
            link = connected(invitation, state, key)
            link.close()
    except InUseError:
        return "this site has joined already: `join` runs here"
    return f"the server knows this site's key, as node {link.node}"


def _columns(invitation: Invitation, policy: Policy) -> str:
    from upcycled.data.schema.schema import as_schema

    schema = None if invitation.schema is None else as_schema(invitation.schema)
    data = site_data(policy, schema)
    grave = grave_problems(policy, schema)
    if grave:
        raise InputError(f"{'; '.join(grave)}; such labels would count as the first class")
    notes = "".join(f"\n{'note':>10}: {words}" for words in data.notes)
    return f"{data.train.num_rows} training samples of {data.num_features} features are read{notes}"


def _account(policy: Policy, folder: Path) -> str:
    if policy.account is None:
        return "none: runs with real noise will be refused"
    account = account_of(policy, folder)
    terms = account.terms
    left = 1 - (account.share(policy.name) if policy.name in account.clients else 0.0)
    return f"{percent(left)} of epsilon {terms.epsilon:g} at delta {terms.delta:g} is left"

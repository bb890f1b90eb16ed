"""Flower's server, and a whole federation on this machine to try things out: started, looked at, ended.

What is started is written down with the moment it began, so that nothing else is ever ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from upcycled._utils.files import make_private, reading, write_whole
from upcycled.config.experiment import Experiment
from upcycled.core.errors import InputError, UpcycledError
from upcycled.federation.certificates import public_bytes, public_line, site_key
from upcycled.federation.folder import EXPERIMENT, FederationFolder, invite, let_in
from upcycled.federation.site.node import KEY
from upcycled.federation.site.policy import policy_of
from upcycled.federation.transport import QUIET, ConnectionLostError, check_flower

PROCESSES, SERVER = "processes.json", "server"
START_SECONDS, STOP_SECONDS = 180.0, 10.0
TRIAL_SITES = 16
"""As many sites are started on one machine: each holds a torch of its own."""


class StartError(UpcycledError):
    """A process of the federation did not come up (exit code 1 on the command line)."""


@dataclass(frozen=True)
class Started:
    """A process that `up` started."""

    name: str
    pid: int
    began: str
    """When, as the system counts it: another process with this number began at another time."""

    @property
    def is_alive(self) -> bool:
        """Whether it is still this very process."""
        return began_at(self.pid) == self.began

    def end(self, seconds: float = STOP_SECONDS) -> None:
        """End it, and nothing else."""
        if not self.is_alive:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < until:
            _reap(self.pid)
            time.sleep(0.05)
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            while self.is_alive and time.monotonic() < until + seconds:
                _reap(self.pid)
                time.sleep(0.05)


def began_at(pid: int) -> str:
    """Return when a process began; nothing where there is none, or only its remains."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def up(folder: FederationFolder, tell: Callable[[str], None], is_server_only: bool = False) -> None:
    """Start Flower's server and, unless told otherwise, a process for each site; return when all are connected.

    What runs already is left alone, so that the same command brings back what died.

    Raises:
        InputError: in one sentence, if something runs already, or there are too many sites.
        StartError: in one sentence, if something does not come up; what was started is ended.
    """
    check_flower()
    alive = {one.name for one in started(folder) if one.is_alive}
    wanted = {SERVER} if is_server_only else {SERVER, *folder.file.sites}
    if wanted <= alive:
        raise InputError(f"{folder.path} is up already: `upcycled federation down {folder.path}` ends it")
    if not is_server_only and len(folder.file.sites) > TRIAL_SITES:
        raise InputError(
            f"the federation has {len(folder.file.sites)} sites, but {TRIAL_SITES} at most are started on one machine: "
            "use `--server`, and `join` elsewhere"
        )
    try:
        if SERVER not in alive:
            start_server(folder, tell)
        if not is_server_only:
            _start_sites(folder, tell, alive)
    except BaseException:
        # What ran before goes on.
        down(folder, alive)
        raise


def start_server(folder: FederationFolder, tell: Callable[[str], None]) -> None:
    """Start Flower's server, let the known keys in, and return when it answers."""
    own, file = folder.private, folder.file
    until = time.monotonic() + STOP_SECONDS
    while not _is_free(file.listen, file.port):
        # One that was killed may take a moment to let go of it.
        if time.monotonic() > until:
            raise InputError(field="port", value=file.port, but="somebody listens there: federation.toml says which")
        time.sleep(0.1)
    flags = [
        *("--host", file.listen, "--port", str(file.port)),
        *("--ssl-ca-certfile", str(folder.path / "ca.crt")),
        *("--ssl-certfile", str(folder.path / "server.crt"), "--ssl-keyfile", str(own / "server.key")),
        *("--enable-supernode-auth", "--isolation", "process", "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(own / "federation.key"), "--database", database_of(folder)),
    ]
    command = [sys.executable, "-m", "upcycled.federation.superlink", str(own / "federation.key"), *flags]
    server = _start(folder, SERVER, command, own / "server.log")
    _wait_for(lambda: _answers(folder), server, own / "server.log", "Flower's server")
    known = {node.name for node in folder.link.nodes()}
    for site, line in folder.keys().items():
        if site not in known:
            folder.link.register(site, public_bytes(line))
    tell(f"Flower's server listens at {file.listen}:{file.port} (process {server.pid})")


def database_of(folder: FederationFolder) -> str:
    """Return where Flower keeps its state: in a file, so that a server that comes back knows its nodes and runs."""
    return str(folder.private / "flower.db")


def register(folder: FederationFolder, site: str) -> bool:
    """Tell a server that runs of a site's key; say whether one runs."""
    check_flower()
    try:
        known = {node.name for node in folder.link.nodes()}
    except ConnectionLostError:
        return False
    if site not in known:
        folder.link.register(site, public_bytes(folder.keys()[site]))
    return True


def _start_sites(folder: FederationFolder, tell: Callable[[str], None], alive: set[str]) -> None:
    experiment = folder.experiment()
    # One that was killed counts as connected until its silence is noticed: those that are started must be so anew.
    before = {node.name: node.last_activated_at for node in folder.link.nodes()}
    for number, site in enumerate(folder.file.sites):
        if site in alive:
            continue
        home = folder.private / "trial" / site
        make_private(home)
        policy = home / "policy.toml"
        if not policy.exists():
            write_whole(policy, tomli_w.dumps(trial_policy(experiment, folder, site, number)).encode(), private=True)
        made = policy_of(trial_policy(experiment, folder, site, number), home)
        let_in(folder, site, public_line(site_key(made.state(home) / KEY)))
        register(folder, site)
        words = ["federation", "join", str(invite(folder, site)), "--policy", str(policy)]
        _start(folder, site, [sys.executable, "-m", "upcycled", *words], home / "join.log")
    processes = {one.name: one for one in started(folder)}
    until = time.monotonic() + START_SECONDS
    waiting = list(folder.file.sites)
    while waiting:
        online = {node.name: node.last_activated_at for node in folder.link.nodes() if node.status == "online"}
        is_back = {site for site, since in online.items() if site in alive or since != before.get(site)}
        waiting = [site for site in waiting if site not in is_back]
        for site in waiting:
            if not processes[site].is_alive or time.monotonic() > until:
                log = folder.private / "trial" / site / "join.log"
                raise StartError(f"site '{site}' did not connect: {_last_line(log)} (see {log})")
        if waiting:
            time.sleep(0.2)
    tell(f"{len(folder.file.sites)} sites are connected: {', '.join(folder.file.sites)}")


def trial_policy(experiment: Experiment, folder: FederationFolder, site: str, number: int) -> dict[str, Any]:
    """Return a policy for trying out: it accepts just what the experiment asks for, on a client of its data."""
    privacy = experiment.privacy
    mechanism = "none" if privacy is None else privacy.mechanism
    limits: dict[str, Any] = {"mechanisms": [mechanism], "least_noise": 0.01, "most_epsilon": 100.0}
    limits |= {"trusts_server": True} if mechanism == "central_dp_fedavg" else {}
    account = {"epsilon": 20.0, "delta": 1e-3, "path": f"account-{site}"}
    return {
        "name": site,
        "simulation": True,
        "data": {"experiment": os.path.abspath(folder.path / EXPERIMENT), "client": number},
        "privacy": limits,
        "account": account,
    }


def down(folder: FederationFolder, but: Collection[str] = ()) -> list[Started]:
    """End what `up` started, sites first, and return what was still there; those named in ``but`` go on."""
    there = [one for one in reversed(started(folder)) if one.is_alive and one.name not in but]
    for one in there:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)
    for one in there:
        one.end()
    left = [vars(one) for one in started(folder) if one.is_alive]
    if left:
        write_whole(folder.private / PROCESSES, json.dumps(left).encode(), private=True)
    else:
        (folder.private / PROCESSES).unlink(missing_ok=True)
    return there


def started(folder: FederationFolder) -> list[Started]:
    """Return what `up` started, in order."""
    path = folder.private / PROCESSES
    if not path.exists():
        return []
    with reading(path, "the processes that `upcycled federation up` started"):
        return [Started(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def status(folder: FederationFolder) -> list[tuple[str, str]]:
    """Return what is to be said of the server and of each site: who is missing, and why."""
    check_flower()
    processes = {one.name: one for one in started(folder)}
    try:
        nodes = {node.name: node for node in folder.link.nodes()}
    except ConnectionLostError as error:
        return [("server", f"not there: {error}"), *((site, "unknown") for site in folder.file.sites)]
    keys = folder.keys()
    found = [("server", f"answers at {folder.address}")]
    for site in folder.file.sites:
        node, process = nodes.get(site), processes.get(site)
        if site not in keys:
            words = f"missing: its key is not known yet (`upcycled federation invite FOLDER {site} --key KEY`)"
        elif node is None:
            words = "missing: its key is not registered with the server (`upcycled federation up` does that)"
        elif node.status == "online":
            words = "connected"
        elif process is not None and not process.is_alive:
            words = "missing: its process on this machine has ended"
        elif node.status == "registered":
            words = "missing: it was never connected"
        else:
            words = f"missing: it was last connected until {node.last_deactivated_at or _since(node.online_until)}"
        found.append((site, words))
    return found


def _since(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _start(folder: FederationFolder, name: str, command: list[str], log: Path) -> Started:
    environment = os.environ | QUIET | {"FLWR_HOME": str(folder.private / "flwr"), "OMP_NUM_THREADS": "1"}
    log.touch(0o600)
    with log.open("ab") as file:
        # A session of its own: Ctrl-C in the terminal is for the command in front.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    made = Started(name, process.pid, began_at(process.pid))
    document = [vars(one) for one in (*started(folder), made)]
    write_whole(folder.private / PROCESSES, json.dumps(document).encode(), private=True)
    return made


def _answers(folder: FederationFolder) -> bool:
    try:
        folder.link.nodes()
    except ConnectionLostError:
        return False
    return True


def _wait_for(is_there: Callable[[], bool], process: Started, log: Path, what: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not is_there():
        if not process.is_alive or time.monotonic() > until:
            raise StartError(f"{what} did not come up: {_last_line(log)} (see {log})")
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((host, port))
        except OSError:
            return False
    return True


def _reap(pid: int) -> None:
    """Let a child go that has ended; others have their own parents."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)

"""What a federation of separate processes costs: Flower's server and four sites on this machine, TLS, a small model.

python -m benchmarks.federation [data rounds]

Flower keeps its state in a file, as `upcycled federation up` has it; then all of it again with the state in memory. A
data round is timed at the server, from the question to the new model; bytes are those of the bodies of requests and
responses that carry messages over TLS.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

from benchmarks.measure import explain_if_asked, keep
from upcycled.config.experiment import Experiment, parse
from upcycled.federation import local as trial
from upcycled.federation.coordinator import Federation
from upcycled.federation.exchange import Exchange, Patience
from upcycled.federation.folder import FederationFolder, make_folder, open_folder
from upcycled.federation.local import down, up
from upcycled.federation.server_run import run_seed
from upcycled.federation.transport import GridPost, check_flower

SITES, PORT = 4, 18191
WORKLOAD: dict[str, Any] = {
    "name": "small",
    "seeds": [0],
    "engine": "sequential",
    "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": SITES, "sizes": 100, "test_fraction": 0.0},
    "algorithm": {"name": "fedavg"},
    "upcycle": {"kind": "constant", "coefficient": 0.5},
    "local": {"lr": 0.05, "epochs": 2, "batch_size": 16},
}
SENDS, BRINGS = ("push-messages", "push-object"), ("pull-object",)
"""Requests that carry a message from the server; responses that carry one to it."""


@dataclass(frozen=True)
class Wire:
    """Counts what goes over a Grid's connection."""

    bytes: Counter[str] = field(default_factory=Counter)

    def watch(self, grid: Any) -> None:
        """Count from now on."""
        client = grid._runtime_client._client
        client.event_hooks = {"request": [self._request], "response": [self._response]}

    def _request(self, request: Any) -> None:
        if request.url.path.endswith(SENDS):
            self.bytes["down"] += len(request.read())

    def _response(self, response: Any) -> None:
        if response.request.url.path.endswith(BRINGS):
            self.bytes["up"] += len(response.read())


def measured(folder: FederationFolder, experiment: Experiment) -> dict[str, Any]:
    """Carry an experiment out, and return what it took."""
    patience, wire = Patience(), Wire()
    with folder.link.seat() as grid:
        post = GridPost(grid)

        def federation(tell: Any) -> Federation:
            return Federation(folder.file.sites, post, Exchange(post, patience), patience, tell=tell)

        began = time.perf_counter()
        # The hellos are over when the first question is put: what is counted begins there.
        counted = Counter[str]()

        class Begin:
            def start(self, plan: Any, before: Any) -> None:
                wire.watch(grid)
                counted.update(post.counted)

        _, result = run_seed(experiment, 0, federation, [Begin()])
        assert result is not None
        whole = time.perf_counter() - began
    # Nothing here has real noise: every record says how long it took.
    data, even = (
        [record.seconds for record in result.history if record.kind == kind and record.seconds is not None]
        for kind in ("data", "upcycled")
    )
    messages = {name: post.counted[name] - counted[name] for name in ("pushed", "pulled")}
    return {
        "parameters": result.params.numel(),
        "data rounds": len(data),
        "seconds of a data round, median": statistics.median(data),
        "seconds of a data round, longest": max(data),
        "milliseconds of an upcycled iteration, median": 1e3 * statistics.median(even) if even else None,
        "milliseconds of an upcycled iteration, longest": 1e3 * max(even) if even else None,
        "messages down": messages["pushed"],
        "messages up": messages["pulled"],
        "bytes of a message down": wire.bytes["down"] / messages["pushed"],
        "bytes of a message up": wire.bytes["up"] / messages["pulled"],
        "seconds of the whole run": whole,
    }


@contextmanager
def federation_here(path: Path, experiment: Experiment, rounds: Mapping[str, float]) -> Iterator[FederationFolder]:
    """Yield a federation that is up on this machine; it is ended whatever happens, short of SIGKILL."""
    check_flower()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    names = [f"site-{i}" for i in range(SITES)]
    make_folder(experiment, path, names, "127.0.0.1", PORT, "127.0.0.1")
    file = path / "federation.toml"
    said = tomllib.loads(file.read_text())
    file.write_text(tomli_w.dumps(said | {"rounds": said["rounds"] | rounds}))
    folder = open_folder(path)
    try:
        up(folder, lambda words: None)
        yield folder
    finally:
        down(folder)


def costs(rounds: int) -> dict[str, Any]:
    """Return what starting a federation, and some runs of it, took."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        path, began = Path(temporary) / "federation", time.perf_counter()
        with federation_here(path, parse({**WORKLOAD, "iterations": 2}), {}) as folder:
            found["seconds of up"] = time.perf_counter() - began
            upcycled = {**WORKLOAD, "results": str(path / "results"), "iterations": 2 * rounds}
            vanilla = {**upcycled, "name": "vanilla", "iterations": rounds}
            del vanilla["upcycle"]
            beside = {**upcycled, "name": "beside", "iterations": 4, "algorithm": {"name": "scaffold"}}
            found["upcycled fedavg"] = measured(folder, parse(upcycled))
            found["vanilla fedavg"] = measured(folder, parse(vanilla))
            found["upcycled scaffold"] = measured(folder, parse(beside))
    return found


def main(rounds: int) -> None:
    found = {"sites": SITES, **costs(rounds)}
    # As Flower's own flag has it; a server that dies would forget its nodes and runs, so `up` has no such option.
    with mock.patch.object(trial, "database_of", return_value=":flwr-in-memory:"):
        keep("federation", {**found, "state in memory": costs(rounds)})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)

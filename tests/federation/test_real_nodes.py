"""Real nodes, TLS and authentication: the same bits, the same accounts, as many messages as there should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import upcycled as up

pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")

from benchmarks.federation import measured
from tests.federation.real_federation import SITES, experiment_of, federation, history_of, params_of, workers
from tests.mechanism_cases import EVERY_MECHANISM, LIMITS, charges_in_bytes, tables_of
from upcycled.federation.local import started
from upcycled.federation.server_run import run_federation
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.mechanisms import MECHANISMS

pytestmark = [pytest.mark.federation, pytest.mark.filterwarnings("ignore")]

ALGORITHMS = {
    "fedavg": {"server_lr": 0.9},
    "fedavgm": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "pfedme": {"lam": 5.0, "inner_steps": 2},
    "fedyogi": {},
}
ACCOUNT = {"epsilon": 50.0, "delta": 1e-3}
LESS = {("fedavg", 1.0), ("scaffold", 0.5), ("feddyn", 1.0), ("pfedme", 0.5)}
"""What CI runs; the whole matrix is `make test-federation`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rounds = {"deadline": 60.0, "grace": 60.0, "hello": 60.0}
    with federation(tmp_path_factory.mktemp("real") / "federation", rounds, LIMITS, ACCOUNT) as found:
        yield found


def simulated(experiment):
    return up.train(experiment.build_data(), experiment.spec(3).replace(progress=False))


@pytest.mark.parametrize(
    ("name", "participation"),
    [
        pytest.param(name, share, marks=[] if (name, share) in LESS else [pytest.mark.slow])
        for name in ALGORITHMS
        for share in (1.0, 0.5)
    ],
)
def test_every_algorithm_has_the_simulators_bits(name, participation, folder):
    clients = {"participation": participation}
    experiment = experiment_of(
        folder, f"{name}-{participation}", algorithm={"name": name, **ALGORITHMS[name]}, clients=clients
    )
    summary = run_federation(folder, experiment, 3)
    assert summary.error is None
    assert torch.equal(params_of(folder, experiment), simulated(experiment).params)
    rows = history_of(folder, experiment)
    assert [row["messages"] for row in rows] == [2 * round(SITES * participation), 0] * 3


@pytest.mark.parametrize("name", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_vanilla_runs_have_the_simulators_bits(name, folder):
    experiment = experiment_of(folder, f"vanilla-{name}", algorithm={"name": name}, upcycle=None, iterations=3)
    run_federation(folder, experiment, 3)
    assert torch.equal(params_of(folder, experiment), simulated(experiment).params)
    assert sum(row["messages"] for row in history_of(folder, experiment)) == 2 * 3 * SITES


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(name, marks=[] if name in ("erm_output", "dpsgd") else [pytest.mark.slow]) for name in MECHANISMS],
)
def test_seeded_mechanisms_have_the_simulators_bits(mechanism, folder):
    experiment = experiment_of(folder, f"seeded-{mechanism}", **tables_of(mechanism, noise="seeded"))
    run_federation(folder, experiment, 3)
    assert torch.equal(params_of(folder, experiment), simulated(experiment).params)


@EVERY_MECHANISM
def test_with_real_noise_accounts_are_charged_the_simulators_bits(mechanism, folder, tmp_path):
    experiment = experiment_of(folder, f"real-{mechanism}", **tables_of(mechanism))
    summary = run_federation(folder, experiment, 3)
    assert summary.restricted is True
    whole = Account.open(tmp_path / "all", **ACCOUNT)
    up.train(experiment.build_data(), experiment.spec(3).replace(progress=False, account=whole.folder))
    whole = Account.read(whole.folder)
    for i in range(SITES):
        site = f"site-{i}"
        own = Account.read(folder.private / "trial" / site / f"account-{site}")
        (study,) = [number for number, one in enumerate(own.studies, start=1) if one.mechanism == mechanism]
        charges = [(one.charge, 0) for one in own.charges if one.study == study]
        assert charges_in_bytes(charges) == charges_in_bytes(whole.charges_of(str(i)))
        assert len(charges) == whole.rounds(str(i)) == 3


def test_on_the_wire_an_upcycled_run_of_twice_the_iterations_is_a_vanilla_one(folder):
    """Scaffold: its correction goes down beside the model."""
    kept = {"algorithm": {"name": "scaffold"}, "seeds": [0]}
    runs = (
        experiment_of(folder, "wire", iterations=4, **kept),
        experiment_of(folder, "half", upcycle=None, iterations=2, **kept),
    )
    for found in (measured(folder, experiment) for experiment in runs):
        assert (found["messages down"], found["messages up"]) == (2 * SITES, 2 * SITES)
        assert 0 < found["bytes of a message down"] - 8 * found["parameters"] < 4096
        assert 0 < found["bytes of a message up"] - 4 * found["parameters"] < 4096


def test_a_finished_run_is_not_run_again(folder):
    experiment = experiment_of(folder, "once", iterations=1, upcycle=None)
    first = run_federation(folder, experiment, 3)
    assert run_federation(folder, experiment, 3) == first


def test_nothing_listens_or_speaks_beyond_loopback_and_keys_are_private(folder):
    inodes, pids = set(), [*(one.pid for one in started(folder)), *workers(folder)]
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                words = os.readlink(path)
            except OSError:
                continue
            if words.startswith("socket:["):
                inodes.add(words[8:-1])
    heard, spoken = [], set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                heard += [words[1]] if words[3] == "0A" else []
                spoken |= {words[2].split(":")[0]} if words[3] == "01" else set()
    # Sites are connected to the server, and nobody to anything else: no telemetry, no look for a newer version.
    assert spoken == {"0100007F"}
    for pid in pids:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {b"FLWR_TELEMETRY_ENABLED=0", b"FLWR_DISABLE_UPDATE_CHECK=1"} <= set(told)
    # One port of one process, at 127.0.0.1: sites listen at none.
    assert heard == [f"0100007F:{folder.file.port:04X}"]
    secret = [*folder.private.rglob("*.key"), *folder.private.rglob("*.db")]
    assert len(secret) >= SITES + 3
    assert [path for path in secret if path.suffix == ".key" and path.stat().st_mode & 0o077] == []
    assert folder.private.stat().st_mode & 0o777 == 0o700
    for path in (folder.path / "invitations").glob("*.toml"):
        assert "PRIVATE" not in path.read_text()

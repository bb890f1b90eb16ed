"""Real processes that die, hang or answer too late: the right model, the right accounts, and on with the run."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'upcycled-fl[flower]'")

from tests.flower.real_federation import (
    SITES,
    WAIT,
    checkpointed,
    events_of,
    experiment_of,
    federation,
    history_of,
    params_of,
    process_of,
    replayed,
    run_command,
    until,
    worker_of,
)
from upcycled.flower.trial import online_sites, up
from upcycled.privacy.accounts.account import Account

pytestmark = [pytest.mark.federation, pytest.mark.filterwarnings("ignore")]
CLIPPING = {"mechanism": "update_clipping", "clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3, "noise": "system"}
LOCAL = {"lr": 0.05, "epochs": 1, "batch_size": 8}
EVERYBODY = list(range(SITES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rounds = {"deadline": 30.0, "grace": 3.0, "hello": 60.0}
    limits = {"mechanisms": ["none", "update_clipping"]}
    with federation(tmp_path_factory.mktemp("kills") / "federation", rounds, limits) as found:
        yield found


@pytest.fixture(autouse=True)
def everybody_is_there(folder):
    until(lambda: online_sites(folder) == set(folder.file.sites), WAIT, "not all sites are connected")


def answered(folder, experiment):
    """Who answered in each data round."""
    seed = folder.path / "results" / experiment.name / "seed-3"
    from upcycled.runtime.checkpointing.checkpoint_files import read_newest
    from upcycled.runtime.checkpointing.history_codec import to_records
    from upcycled.runtime.checkpointing.snapshot import from_bytes

    path = seed / "checkpoint" if (seed / "checkpoint").exists() else seed / "private" / "checkpoint"
    newest, content = read_newest(path, lambda words: None)
    records = to_records(from_bytes(content, str(newest)).columns)
    return [record.clients.tolist() for record in records if record.kind == "data"]


def reasons(folder, experiment, site):
    return [event["reason"] for event in events_of(folder, experiment) if event["site"] == site]


def test_a_node_that_is_killed_in_a_round_is_gone_without_and_comes_back(folder):
    """Its worker is stopped first, so that the kill is within the round, whatever the clock says."""
    experiment = experiment_of(folder, "node", algorithm={"name": "scaffold"}, iterations=8)
    os.kill(worker_of(folder, "site-1"), signal.SIGSTOP)
    command = run_command(folder, experiment)
    # The hello waits for site-1 until it answers: go on, and stop again in a round.
    os.kill(worker_of(folder, "site-1"), signal.SIGCONT)
    until(lambda: checkpointed(folder, experiment) >= 1, WAIT, lambda: command.log.read_text())
    os.kill(worker_of(folder, "site-1"), signal.SIGSTOP)
    node = process_of(folder, "site-1")
    os.kill(node.pid, signal.SIGKILL)
    os.kill(worker_of(folder, "site-1"), signal.SIGKILL)
    command.end()
    cohorts = answered(folder, experiment)
    assert cohorts[0] == EVERYBODY
    assert [0, 2, 3] in cohorts
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, cohorts))
    # The same command brings it back, with the same key: the same node.
    up(folder, lambda words: None)
    again = experiment_of(folder, "node-again", iterations=1, upcycle=None)
    run_command(folder, again).end()
    assert answered(folder, again) == [EVERYBODY]


def test_a_dead_worker_is_reported_at_once_and_another_answers_the_next_round(folder):
    experiment = experiment_of(folder, "worker", iterations=8)
    command = run_command(folder, experiment)
    until(lambda: checkpointed(folder, experiment) >= 1, WAIT, lambda: command.log.read_text())
    victim = worker_of(folder, "site-2")
    os.kill(victim, signal.SIGSTOP)  # it answers no more, and dies in the round
    asked = folder.private / "trial" / "site-2" / "join.log"
    # It is asked within the round before last: the node then waits for a worker that is stopped.
    time.sleep(1.5)
    os.kill(victim, signal.SIGKILL)
    until(lambda: "the worker died" in asked.read_text(), 10, "the node did not notice")
    command.end()
    cohorts = answered(folder, experiment)
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, cohorts))
    assert worker_of(folder, "site-2") != victim
    told = reasons(folder, experiment, "site-2")
    assert told
    assert set(told) <= {"its process died", "no answer in time", "it still owes an earlier answer"}


def test_a_killed_server_app_goes_on_from_its_checkpoint_with_the_same_bits(folder):
    experiment = experiment_of(folder, "server-app", algorithm={"name": "feddyn"}, iterations=8)
    command = run_command(folder, experiment)
    until(lambda: checkpointed(folder, experiment) >= 3, WAIT, lambda: command.log.read_text())
    command.kill()
    run_command(folder, experiment).end()
    assert answered(folder, experiment) == [EVERYBODY] * 4
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, [EVERYBODY] * 4))


def test_with_real_noise_a_killed_server_app_has_every_round_charged_once(folder):
    experiment = experiment_of(folder, "charged", privacy=CLIPPING, local=LOCAL, iterations=8)
    command = run_command(folder, experiment)
    until(lambda: checkpointed(folder, experiment) >= 3, WAIT, lambda: command.log.read_text())
    command.kill()
    run_command(folder, experiment).end()
    assert len(history_of(folder, experiment)) == 8
    for i in range(SITES):
        account = Account.read(folder.private / "trial" / f"site-{i}" / f"account-site-{i}")
        paid = [one.entry.round for one in account.charges]
        assert paid == [1, 2, 3, 4]


def test_a_killed_superlink_comes_back_and_the_run_with_it(folder):
    experiment = experiment_of(folder, "superlink", algorithm={"name": "scaffold"}, iterations=8)
    command = run_command(folder, experiment)
    until(lambda: checkpointed(folder, experiment) >= 3, WAIT, lambda: command.log.read_text())
    server = process_of(folder, "server")
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.is_alive, 10, "it lives")
    up(folder, lambda words: None)
    until(lambda: online_sites(folder) == set(folder.file.sites), WAIT, "nodes did not come back by themselves")
    try:
        command.process.wait(WAIT)
    except Exception:
        command.kill()
    if command.process.returncode != 0:
        run_command(folder, experiment).end()
    cohorts = answered(folder, experiment)
    assert len(cohorts) == 4
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, cohorts))


def test_a_slow_nodes_late_answer_changes_nothing_and_it_is_asked_again(folder):
    """Scaffold: what it remembers of a client that was late is what the server took, and nothing else."""
    experiment = experiment_of(folder, "late", algorithm={"name": "scaffold"}, iterations=12)
    command = run_command(folder, experiment)
    until(lambda: checkpointed(folder, experiment) >= 1, WAIT, lambda: command.log.read_text())
    slow = worker_of(folder, "site-3")
    os.kill(slow, signal.SIGSTOP)
    try:
        until(lambda: reasons(folder, experiment, "site-3"), WAIT, "nobody noticed")
    finally:
        os.kill(slow, signal.SIGCONT)
    command.end()
    cohorts = answered(folder, experiment)
    assert cohorts[0] == EVERYBODY
    assert [0, 1, 2] in cohorts
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, cohorts))
    assert set(reasons(folder, experiment, "site-3")) <= {"no answer in time", "it still owes an earlier answer"}

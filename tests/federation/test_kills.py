"""Real processes that die, hang or answer too late: the right model, the right accounts, and on with the run."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")

from tests.federation.gates import cohorts, doom, shut
from tests.federation.real_federation import (
    SITES,
    WAIT,
    end_commands,
    events_of,
    experiment_of,
    federation,
    history_of,
    params_of,
    process_of,
    replayed,
    reply_of,
    run_command,
    until,
    worker_of,
)
from upcycled.federation.local import up
from upcycled.federation.transport import SEATS
from upcycled.privacy.accounts.account import Account

pytestmark = [pytest.mark.federation, pytest.mark.filterwarnings("ignore")]
CLIPPING = {"mechanism": "update_clipping", "clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3, "noise": "system"}
LOCAL = {"lr": 0.05, "epochs": 1, "batch_size": 8}
EVERYBODY = list(range(SITES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Three of four are enough; one that is missing costs the grace, once. That is long, so that on a busy machine
    # nobody is missing who is only slow.
    rounds = {"deadline": 120.0, "enough": 0.75, "grace": 20.0, "hello": 150.0}
    limits = {"mechanisms": ["none", "update_clipping"]}
    with federation(tmp_path_factory.mktemp("kills") / "federation", rounds, limits) as found:
        yield found


@pytest.fixture(autouse=True)
def everybody_is_there(folder):
    def is_so():
        return {node.name for node in folder.link.nodes() if node.status == "online"} == set(folder.file.sites)

    until(is_so, WAIT, "not all sites are connected")
    yield
    end_commands()


def answered(folder, experiment):
    """Who answered in each data round of the last run, as its callback heard; nothing else of it is left."""
    seed = folder.path / "results" / experiment.name / "seed-3"
    assert not (seed / "checkpoint").exists()
    assert not (seed / "private" / "checkpoint").exists()
    lines = cohorts(folder.private / "gates").read_text().splitlines()
    cohorts(folder.private / "gates").unlink()
    return list(dict(json.loads(line) for line in lines).values())


def reasons(folder, experiment, site):
    return [event["reason"] for event in events_of(folder, experiment) if event["site"] == site]


def held(folder, name, iteration, **changes):
    """A run that waits after one of its iterations: its experiment, its command, its gate."""
    experiment = experiment_of(folder, name, callbacks=["tests.federation.gates:hold"], **changes)
    gate = shut(folder.private / "gates", iteration)
    command = run_command(folder, experiment)
    reach(gate, command)
    return experiment, command, gate


def reach(gate, command):
    until(
        lambda: gate.reached.exists() or command.process.poll() is not None,
        WAIT,
        lambda: command.log.read_text()[-2000:],
    )
    assert gate.reached.exists(), command.log.read_text()[-2000:]


def pass_on(folder, gate, iteration, command):
    """Let a run go on to its next gate."""
    after = shut(folder.private / "gates", iteration)
    gate.open()
    reach(after, command)
    return after


def begin(folder, experiment, gate, number, site="site-0"):
    """Let a run go on, and wait until a data round is under way: a site has answered, so all have been asked."""
    gate.open()
    until(lambda: reply_of(folder, experiment, site, number), WAIT, "nobody answered")


def test_a_node_that_is_killed_in_a_round_is_gone_without_and_comes_back(folder):
    """Its worker is stopped first, so that the kill is within the round, whatever the clock says."""
    experiment, command, gate = held(folder, "node", 1, algorithm={"name": "scaffold"}, iterations=8)
    os.kill(worker_of(folder, "site-1"), signal.SIGSTOP)
    after = shut(folder.private / "gates", 5)
    begin(folder, experiment, gate, 2)
    os.kill(process_of(folder, "site-1").pid, signal.SIGKILL)
    os.kill(worker_of(folder, "site-1"), signal.SIGKILL)
    reach(after, command)
    # The same command brings it back, with the same key: the same node, which owes nothing.
    up(folder, lambda words: None)
    after.open()
    command.end()
    found = answered(folder, experiment)
    assert found == [EVERYBODY, [0, 2, 3], [0, 2, 3], EVERYBODY]
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, found))


def test_a_dead_worker_is_reported_at_once_and_another_answers_the_next_round(folder):
    experiment, command, gate = held(folder, "worker", 1, iterations=8)
    victim = worker_of(folder, "site-2")
    os.kill(victim, signal.SIGSTOP)  # it answers no more, and dies in the round
    after = shut(folder.private / "gates", 3)
    begin(folder, experiment, gate, 2)
    os.kill(victim, signal.SIGKILL)
    reach(after, command)
    until(lambda: worker_of(folder, "site-2") != victim, WAIT, "no other worker was started")
    after.open()
    command.end()
    found = answered(folder, experiment)
    assert found == [EVERYBODY, [0, 1, 3], EVERYBODY, EVERYBODY]
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, found))
    assert reasons(folder, experiment, "site-2") == ["its process died"]


def killed_in_a_round(folder, name, **changes):
    """A run whose command is killed in a round that one site has answered and one has not; then it is gone on with."""
    experiment, command, gate = held(folder, name, 3, iterations=8, **changes)
    os.kill(worker_of(folder, "site-1"), signal.SIGSTOP)
    try:
        begin(folder, experiment, gate, 3)
        command.kill()
    finally:
        os.kill(worker_of(folder, "site-1"), signal.SIGCONT)
    run_command(folder, experiment).end()
    return experiment


def test_a_killed_server_app_goes_on_from_its_checkpoint_with_the_same_bits(folder):
    experiment = killed_in_a_round(folder, "server-app", algorithm={"name": "feddyn"})
    assert answered(folder, experiment) == [EVERYBODY] * 4
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, [EVERYBODY] * 4))


def test_with_real_noise_a_killed_server_app_has_every_round_charged_once(folder):
    experiment = killed_in_a_round(folder, "charged", privacy=CLIPPING, local=LOCAL)
    assert len(history_of(folder, experiment)) == 8
    assert answered(folder, experiment) == [EVERYBODY] * 4
    for i in range(SITES):
        account = Account.read(folder.private / "trial" / f"site-{i}" / f"account-site-{i}")
        paid = [one.entry.round for one in account.charges]
        assert paid == [1, 2, 3, 4]


def test_sites_to_which_a_killed_run_was_sending_are_free_when_it_is_back(folder):
    """Flower's server has the heads of its questions, and sites wait for the rest: the next command ends that run."""
    experiment = experiment_of(folder, "sending", callbacks=["tests.federation.gates:die_while_sending"], iterations=4)
    doomed = doom(folder.private / "gates")
    doomed.parent.mkdir(exist_ok=True)
    doomed.touch()
    assert run_command(folder, experiment).process.wait(WAIT) == -signal.SIGKILL
    assert not doomed.exists()
    (seat,) = seats(folder)
    run_command(folder, experiment).end()
    assert answered(folder, experiment) == [EVERYBODY] * 2
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, [EVERYBODY] * 2))
    # By us: Flower would have said that it failed, after a minute.
    assert ends_of_runs(folder)[seat] == "stopped"
    assert seats(folder) == []


def seats(folder):
    """The runs that are led, or were when their command was killed."""
    return [int(path.name) for path in (folder.private / SEATS).iterdir() if path.name.isdigit()]


def ends_of_runs(folder):
    from flwr.proto.control_pb2 import ListRunsRequest

    with folder.link._control() as control:
        return {number: run.status.sub_status for number, run in control.ListRuns(ListRunsRequest()).run_dict.items()}


def test_a_killed_superlink_comes_back_and_the_run_with_it(folder):
    """It is killed within a data round, for which one site has not answered yet."""
    experiment, command, gate = held(folder, "superlink", 3, algorithm={"name": "scaffold"}, iterations=8)
    server = process_of(folder, "server")
    os.kill(worker_of(folder, "site-1"), signal.SIGSTOP)
    try:
        begin(folder, experiment, gate, 3)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.is_alive, 10, "it lives")
    finally:
        os.kill(worker_of(folder, "site-1"), signal.SIGCONT)
    up(folder, lambda words: None)
    if command.process.wait(WAIT) != 0:
        words = command.log.read_text()
        assert "Traceback" not in words, words
        run_command(folder, experiment).end()
    found = answered(folder, experiment)
    assert len(found) == 4
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, found))


def test_a_slow_nodes_late_answer_changes_nothing_and_it_is_asked_again(folder):
    """Scaffold: what it remembers of a client that was late is what the server took, and nothing else."""
    experiment, command, gate = held(folder, "late", 1, algorithm={"name": "scaffold"}, iterations=12)
    slow = worker_of(folder, "site-3")
    os.kill(slow, signal.SIGSTOP)
    try:
        gate = pass_on(folder, gate, 3, command)
    finally:
        os.kill(slow, signal.SIGCONT)
    until(lambda: reply_of(folder, experiment, "site-3", 2), WAIT, "it never answered")
    gate.open()
    command.end()
    found = answered(folder, experiment)
    assert found[:2] == [EVERYBODY, [0, 1, 2]]
    assert found[-1] == EVERYBODY
    assert torch.equal(params_of(folder, experiment), replayed(folder, experiment, found))
    told = reasons(folder, experiment, "site-3")
    assert told[0] == "no answer in time"
    assert set(told[1:]) <= {"it still owes an earlier answer"}

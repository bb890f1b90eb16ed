"""Batches: callbacks, progress, stopping, and workers that do not outlive their parent."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import upcycled as up
from tests.wording import has_all, only_line
from upcycled.core.errors import UpcycledError
from upcycled.engines.processes import are_warm
from upcycled.training import executor as many
from upcycled.training.executor import train_each
from upcycled.training.plan import make_plan
from upcycled.training.progress import BatchProgress, LiveProgress, Watched
from upcycled.training.worker_processes import EventStream, Parcel, Stopped, _Reporter, attempt_here

ENGINES = ["fused", pytest.param("sequential", id="sequential-in-processes")]


class Noting:
    """Notes whatever it is told."""

    def __init__(self, fail_at=None):
        self.told, self.runs, self.fail_at = [], [], fail_at

    def start(self, plan, before):
        self.told.append(("start", plan.iterations, len(before)))

    def record(self, record, run):
        self.told.append(record.iteration)
        self.runs.append(run)
        if record.iteration == self.fail_at:
            raise UpcycledError("the observer has had enough")

    def finish(self):
        self.told.append("finish")


@pytest.fixture(scope="module")
def data():
    return up.data.synthetic("iid", clients=4, sizes=20, dim=3, seed=0)


def a_run(data, engine="fused", iterations=4, **more):
    local = up.LocalSGD(lr=0.01, epochs=1, batch_size=8)
    return {"data": data, "algorithm": up.FedAvg(), "iterations": iterations, "engine": engine, "local": local, **more}


def planned(run):
    arguments = dict(run)
    return make_plan(arguments.pop("data"), up.RunSpec(**arguments))


def trained(run):
    arguments = dict(run)
    return up.train(arguments.pop("data"), progress=False, **arguments)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_observer_of_a_batch_is_told_everything_in_order(data, engine):
    observers = [Noting() for _ in range(3)]
    runs = [a_run(data, engine, 3 + i, seed=i, callbacks=[observer]) for i, observer in enumerate(observers)]
    seen = []
    for place, result in train_each(runs, progress=False):
        assert len(result.history) == 3 + place
        # All that happened was told before the result is handed over.
        assert observers[place].told[-1] == "finish"
        seen.append(place)
    assert sorted(seen) == [0, 1, 2]
    for i, observer in enumerate(observers):
        assert observer.told == [("start", 3 + i, 0), *range(1, 4 + i), "finish"]
        assert all((run is None) == (engine == "sequential") for run in observer.runs)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_observer_that_fails_ends_its_run_and_no_other(data, engine):
    runs = [a_run(data, engine, callbacks=[Noting(fail_at=2)]), a_run(data, engine, callbacks=[Noting()])]
    failed, fine = up.train_many(runs, progress=False)
    assert has_all(str(failed.error), "observer", "enough")
    assert fine.error is None


@pytest.mark.parametrize("engine", ["fused", pytest.param("sequential", marks=pytest.mark.slow)])
def test_results_come_while_others_run_and_closing_the_iterator_stops_those(data, engine):
    # As much work by the count of samples, so the first is begun first: but that is done in 250 large steps.
    large, long = up.data.synthetic("iid", clients=1, sizes=80_000, dim=3, seed=0), 250_000
    first = a_run(large, engine, 1, local=up.LocalSGD(lr=0.01, epochs=250, batch_size=None))
    observer = Noting()
    results = train_each([first, a_run(data, engine, long, eval_every=long, callbacks=[observer])], progress=False)
    place, result = next(results)
    assert (place, len(result.history)) == (0, 1)
    results.close()
    assert long not in observer.told
    assert observer.told == [] or observer.told[0] == ("start", long, 0)


def test_a_run_alone_has_all_cores_and_the_same_bits(data, monkeypatch):
    asked = []
    attempt = many.attempt

    def noting(plan, callbacks, threads):
        asked.append(threads)
        return attempt(plan, callbacks, threads)

    monkeypatch.setattr(many, "attempt", noting)
    alone = up.train_many([a_run(data, participation=1.0)], progress=False)[0]
    both = up.train_many([a_run(data, participation=1.0), a_run(data, seed=1)], progress=False)[0]
    assert asked == [None, 1, 1]
    assert np.array_equal(alone.params, both.params)


def test_many_tiny_runs_have_an_interpreter_each_and_the_same_bits(data, monkeypatch):
    """Beyond START_SECONDS of waiting, or where workers are there: without a word that anybody hears."""
    runs = [a_run(data, seed=seed, privacy=up.privacy.ModelClipping(10.0, noise_std=0.1)) for seed in range(3)]
    here = up.train_many(runs, progress=False)
    ways = []
    for way in (many._in_threads, many._in_processes):
        noting = partial(lambda way, *given: ways.append(way.__name__) or way(*given), way)
        monkeypatch.setattr(many, way.__name__, noting)
    monkeypatch.setattr(many, "INTERPRETED_SECONDS", 1.99 * many.START_SECONDS / 12)  # twelve iterations, on two cores
    monkeypatch.setattr(many.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    up.train_many(runs, progress=False)
    monkeypatch.setattr(many, "INTERPRETED_SECONDS", 2.01 * many.START_SECONDS / 12)
    there = up.train_many(runs, progress=False)
    watched = up.train_many([one | {"callbacks": [Noting()]} for one in runs], progress=False)
    assert ways == ["_in_threads", "_in_processes", "_in_threads"]
    for one, other, last in zip(here, there, watched, strict=True):
        assert bits(one) == bits(other) == bits(last)
        assert one.privacy.epsilon(1e-5).tolist() == other.privacy.epsilon(1e-5).tolist()
        assert [r.accuracy for r in one.history] == [r.accuracy for r in other.history]


def test_workers_that_are_there_are_taken(data, monkeypatch):
    runs = [a_run(data, seed=seed) for seed in range(2)]
    assert not many._pay_for_processes(jobs_of(runs), 2)
    monkeypatch.setattr(many, "are_warm", lambda processes: processes == 2)
    assert many._pay_for_processes(jobs_of(runs), 2)
    assert not many._pay_for_processes(jobs_of([runs[0], runs[1] | {"callbacks": [Noting()]}]), 2)
    assert not many._pay_for_processes(jobs_of(runs), 1)
    with monkeypatch.context() as wide:  # 8 iterations wait for 1.6 ms; two copies of 80 rows of 3 numbers take longer
        wide.setattr(many, "SENDING_SECONDS", 1e-6)
        assert not many._pay_for_processes(jobs_of(runs), 2)
    monkeypatch.setattr(many, "may_have_workers", lambda: False)
    assert not many._pay_for_processes(jobs_of(runs), 2)


def test_workers_are_warm_while_they_live(data):
    many.worker_pool(2).shutdown(wait=True)
    assert not are_warm(2)
    list(many.worker_pool(2).map(abs, range(2)))
    assert are_warm(2)


def test_records_of_a_moment_are_written_together(data, tmp_path):
    reporter, record = _Reporter(tmp_path, 0, moment=1e9), trained(a_run(data)).history[0]
    reporter.start(planned(a_run(data)), ())
    reporter.record(record, None)
    first = (tmp_path / "0").stat().st_size
    reporter.record(record, None)
    assert (tmp_path / "0").stat().st_size == first
    reporter.flush()
    assert (tmp_path / "0").stat().st_size > first


def bits(result):
    return result.params.numpy().tobytes()


def jobs_of(runs):
    return [many._Job(i, planned(run), None) for i, run in enumerate(runs)]


def test_a_batch_goes_on_from_its_checkpoints(data, tmp_path):
    for stop, start in ((2, 0), (None, 2)):
        observer = Noting(fail_at=stop)
        run = a_run(data, checkpoint=tmp_path / "a", callbacks=[observer])
        up.train_many([run, a_run(data, seed=1)], progress=False)
        assert observer.told[0] == ("start", 4, start)


def test_half_a_message_is_not_read_before_the_other_half_is_there(data, tmp_path):
    plan, observer = planned(a_run(data)), Noting()
    reporter = _Reporter(tmp_path, 7, moment=0.0)
    mailbox = EventStream(tmp_path, 7, plan, [observer], Watched())
    mailbox.deliver()
    reporter.start(plan, ())
    record = trained(a_run(data)).history[0]
    reporter.record(record, None)
    content = (tmp_path / "7").read_bytes()
    for end in (3, 20, len(content) - 1, len(content)):
        (tmp_path / "7").write_bytes(content[:end])
        mailbox.deliver()
    assert observer.told == [("start", 4, 0), 1]


def test_a_worker_is_asked_to_stop_by_a_file(data, tmp_path):
    reporter = _Reporter(tmp_path, 0, moment=0.0)
    record = trained(a_run(data)).history[0]
    reporter.record(record, None)
    (tmp_path / "stop").touch()
    with pytest.raises(Stopped):
        reporter.record(record, None)


def test_a_worker_that_is_told_to_stop_before_it_begins_does_nothing(data, tmp_path):
    (tmp_path / "stop").touch()
    refused = attempt_here(Parcel(planned(a_run(data, checkpoint=tmp_path / "kept"))), tmp_path, 0).outcome
    assert isinstance(refused, Stopped)
    assert not (tmp_path / "0").exists()
    assert not (tmp_path / "kept").exists()


def test_a_worker_on_another_thread_works_where_it_is(data, tmp_path):
    # Handlers of signals are the main thread's to set.
    parcel = Parcel(planned(a_run(data, "sequential")))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(attempt_here, parcel, tmp_path, 0).result().outcome
    assert bits(found) == bits(trained(a_run(data, "sequential")))


def test_an_observer_that_failed_is_told_nothing_more_and_one_that_stops_stops_its_run_alone(data, tmp_path):
    plan, record = planned(a_run(data)), trained(a_run(data)).history[0]
    failing, stopping = Noting(fail_at=1), SimpleNamespace(record=lambda record, run: up.STOP)
    mailboxes = [EventStream(tmp_path, i, plan, [one], Watched()) for i, one in enumerate((failing, stopping))]
    for place, mailbox in enumerate(mailboxes):
        reporter = _Reporter(tmp_path, place, moment=0.0)
        reporter.start(plan, ())
        reporter.record(record, None)
        reporter.finish()
        reporter.flush()
        mailbox.deliver()
    assert failing.told == [("start", 4, 0), 1]
    assert isinstance(mailboxes[0].error, UpcycledError)
    assert mailboxes[1].error is None
    assert not (tmp_path / "0.stop").exists()
    assert _Reporter(tmp_path, 1, moment=0.0).record(record, None) is up.STOP
    assert _Reporter(tmp_path, 0, moment=0.0).record(record, None) is None


def test_where_no_workers_may_be_runs_go_one_after_the_other_with_the_same_bits(data, monkeypatch):
    runs = [a_run(data, "sequential", seed=seed) for seed in range(2)]
    monkeypatch.setattr(many, "may_have_workers", lambda: False)
    monkeypatch.setattr(many, "worker_pool", None)
    found = up.train_many(runs, progress=False)
    assert [bits(one) for one in found] == [bits(trained(run)) for run in runs]


@pytest.mark.parametrize(("is_done", "kills"), [(True, 0), (False, 1)])
def test_workers_are_killed_only_if_they_do_not_end_by_themselves(is_done, kills, monkeypatch):
    killed, future = [], Future()
    monkeypatch.setattr(many, "PATIENCE_SECONDS", 0.0)
    if is_done:
        future.set_result(None)
    many._wait_or_kill([future], SimpleNamespace(shutdown=lambda **how: killed.append(how)))
    assert killed == [{"wait": True, "kill_workers": True}] * kills


def shown(table):
    from rich.console import Console

    console = Console(width=120, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_the_table_has_a_row_for_each_running_run(data):
    table = BatchProgress(4, shown=True)
    rows = [table.row(f"seed {i}") for i in range(3)]
    plan = planned(a_run(data, upcycle=0.5))
    records = trained(a_run(data, upcycle=0.5)).history
    for row in rows[:2]:
        row.start(plan, ())
        for record in records[:2]:
            row.record(record, None)
    rows[1].epsilon = 1.2345
    text = shown(table._table())
    assert "seed 2" not in text
    for line in text.splitlines():
        if "seed" in line:
            assert "2/4" in line
            assert "upcycled" in line
            assert f"{100 * records[1].accuracy:.2f} %" in line
            assert f"{records[1].loss:.4f}" in line
    assert "worst ε" in text
    assert "1.23" in text
    # Two runs of four are half done: a quarter of all.
    assert "0 of 4 runs done, 25 %" in text
    table.run_done(rows[0])
    text = shown(table._table())
    assert "seed 0" not in text
    assert "1 of 4 runs done, 38 %" in text


def test_a_run_that_goes_on_counts_what_was_there_before(data):
    records = trained(a_run(data)).history
    row = Watched("x")
    row.start(planned(a_run(data)), tuple(records[:3]))
    assert row.iteration == 3
    assert row.bytes == sum(r.bytes_up + r.bytes_down for r in records[:3])
    # The pace is that of this process, which has done nothing yet.
    assert row.left is None
    assert row.text == f"x: iteration 3/4, accuracy {100 * records[2].accuracy:.2f} %, loss {records[2].loss:.4f}"


def test_the_time_left_is_that_of_data_rounds_after_the_first(data, monkeypatch):
    asked = a_run(data, upcycle=0.5) | {"iterations": 10}
    records = trained(asked).history
    row = Watched("x")
    row.start(planned(asked), ())
    now = iter([160.0, 162.0, 167.0])  # when data rounds end; workers began in the first one, for a minute
    clock = SimpleNamespace(perf_counter=lambda: next(now))
    monkeypatch.setattr("upcycled.training.progress.time", clock)
    left = []
    for record in list(records)[:6]:
        row.record(record, None)
        left.append(row.left)
    # 3 rounds at 2 s are left after the second of 5, 2 at 3.5 s after the third; upcycled ones in between take nothing.
    assert left == [None, None, 3 * 2.0, 3 * 2.0, 2 * 3.5, 2 * 3.5]


def test_in_a_pipe_a_batch_and_a_run_say_a_line_now_and_then(data, monkeypatch, capsys):
    monkeypatch.setattr("upcycled.training.progress.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("upcycled.training.progress.LINE_SECONDS", 0.01)
    monkeypatch.setattr("upcycled.training.progress.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("upcycled.training.progress.LINE_SECONDS", 0.0)

    class Waiting(Noting):
        def record(self, record, run):
            # The display has a thread of its own: the last iteration is not over before it has spoken.
            until = time.monotonic() + 120
            while record.iteration == 4 and "iteration" not in sys.stderr.getvalue() and time.monotonic() < until:
                time.sleep(0.01)

    up.train_many([a_run(data, callbacks=[Waiting()], seed=i) for i in range(2)])
    out, err = capsys.readouterr()
    assert out == ""
    assert has_all(err, "2", "done")
    assert "iteration" in err
    up.train(**a_run(data), progress=True)
    assert "· fused engine: iteration 4/4, accuracy" in capsys.readouterr().err


def test_a_private_run_shows_what_its_worst_client_has_spent(data, monkeypatch):
    mechanism = up.privacy.ModelClipping(clip_norm=1.0, noise_std=2.0)
    row = Watched()
    result = trained(a_run(data, privacy=mechanism, callbacks=[row]))
    until = time.monotonic() + 120
    while row.epsilon is None and time.monotonic() < until:
        time.sleep(0.02)
        row.epsilon = row._worst.of(None)
    # The mechanism has no delta of its own: 1e-5, and the number is that of the ledger at some iteration.
    assert 0 < row.epsilon <= result.privacy.max_epsilon(1e-5)


def test_a_number_that_takes_long_is_not_computed_in_a_short_run(data, monkeypatch):
    def refuse(self, delta):
        raise AssertionError("this takes seconds")

    monkeypatch.setattr("upcycled.training.progress.WorstEpsilon._compute", refuse)
    # A clock that stands still: what torch loads for the first such run may take long.
    monkeypatch.setattr("upcycled.training.progress.time", SimpleNamespace(perf_counter=lambda: 1.0))
    mechanism = up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=1.0)
    row = Watched()
    trained(a_run(data, "sequential", privacy=mechanism, callbacks=[row]))
    assert row.epsilon is None


def test_a_display_never_stops_a_run(data, monkeypatch):
    def broken(self, delta):
        raise ZeroDivisionError

    monkeypatch.setattr("upcycled.privacy.ledger.ledger.Ledger.max_epsilon", broken)
    mechanism = up.privacy.ModelClipping(clip_norm=1.0, noise_std=2.0)
    display = LiveProgress()
    result = trained(a_run(data, privacy=mechanism, callbacks=[display]))
    assert len(result.history) == 4


ORPHANS = """
import upcycled as up
data = up.data.synthetic("iid", clients=4, seed=0)
run = dict(data=data, algorithm=up.FedAvg(), iterations=10**8, eval_every=10**8, engine="sequential")
class Tell:
    def start(self, plan, before): print("started", flush=True)
    def record(self, record, run): pass
    def finish(self): pass
up.train_many([run | dict(seed=i, callbacks=[Tell()]) for i in range(2)], progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see a process's children")
def test_workers_leave_when_their_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout.readline() == "started\n"
            children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
            workers = [pid for pid in children if _lives(pid)]
            assert workers
        finally:
            parent.kill()
    until = time.monotonic() + 300
    while any(_lives(pid) for pid in workers):
        assert time.monotonic() < until, "a worker outlived its parent by minutes"
        time.sleep(0.1)


def _lives(pid):
    try:
        return b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_worker_that_was_started_elsewhere_writes_where_its_parent_stands(tmp_path, monkeypatch):
    parent, worker = tmp_path / "parent", tmp_path / "worker"
    parent.mkdir()
    worker.mkdir()
    monkeypatch.chdir(parent)
    data = up.data.synthetic("iid", clients=3, sizes=20, seed=0)
    plan = make_plan(data, up.RunSpec(algorithm=up.FedAvg(), iterations=2, checkpoint="kept", progress=False))
    sent = pickle.dumps(Parcel(plan))
    monkeypatch.chdir(worker)
    result = attempt_here(pickle.loads(sent), tmp_path, 0).outcome
    assert len(result.history) == 2
    assert any((parent / "kept").iterdir())
    assert not any(worker.iterdir())


def test_a_line_that_says_nothing_new_is_not_said(capsys):
    progress, answers = BatchProgress(16, shown=True), iter([False, False, False, True])
    progress._over = SimpleNamespace(wait=lambda seconds: next(answers))
    progress._show()
    assert has_all(only_line(capsys.readouterr().err), "0", "16", "done, 0")

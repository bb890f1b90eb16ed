"""Results as a notebook has them: short, escaped, drawn, and nothing in them that is the data holder's own."""

from __future__ import annotations

import itertools
import re
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from upcycled._utils.formats import Overview
from upcycled.training import plots as run_plots
from upcycled.training import progress as batch_progress
from upcycled.training import progress as run_progress
from upcycled.training.progress import BatchProgress, LiveProgress, NotebookArea, Watched, cells, in_notebook

MOST = 2000
CLIPPING = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
ASKED = {"algorithm": up.FedAvg(), "upcycle": 0.5, "iterations": 12, "progress": False}


@pytest.fixture(scope="module")
def data():
    return up.data.synthetic(0.5, 0.5, clients=100, seed=0)


@pytest.fixture(scope="module")
def result(data):
    return up.train(data, **ASKED, metrics=["f1_macro", "kappa", "balanced_accuracy"], privacy=CLIPPING)


@pytest.fixture(scope="module")
def restricted(data):
    return up.train(replace(data, inferred=frozenset()), **ASKED, privacy=CLIPPING, noise="system")


@pytest.fixture(scope="module")
def comparison(data):
    return up.compare(data, algorithm=up.FedAvg(), iterations=6, seeds=(0, 1, 2), progress=False)


@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure")
    return figure.Figure().subplots()


def ways(value):
    return repr(value), str(value), value._repr_html_()


def test_everything_is_shown_in_under_2_kb(result, restricted, comparison, data):
    for value in (result, result.history, result.privacy, restricted, restricted.history, comparison, data.describe()):
        for text in ways(value):
            assert 0 < len(text.encode()) < MOST
        assert "\n" not in repr(value)
    assert len(repr(result.history[0])) < MOST


def test_a_description_of_many_classes_with_long_names_stays_short():
    names = [f"{'a very long diagnosis ' * 20}{i}" for i in range(3000)]
    y = [np.arange(3000), np.arange(3000)]
    found = up.FederatedData.from_arrays([np.zeros((3000, 1))] * 2, y, label_names=names).describe()
    for text in ways(found):
        assert len(text.encode()) < MOST
    assert "2980" in str(found)


def test_a_result_says_what_it_reached_and_what_it_cost(result):
    for text in (str(result), result._repr_html_()):
        assert f"{100 * result.accuracy:.2f} %" in text
        assert f"{result.metrics['kappa']:.4f}" in text
        assert f"{result.privacy.max_epsilon(1e-5):.3f} at delta 1e-05" in text
        assert "simulation: not private" in text
    assert repr(result).startswith("<Result of upcycled fedavg, 12 iterations, 6 data rounds: accuracy ")


def test_a_result_without_privacy_says_nothing_of_it(data):
    found = up.train(data, **ASKED | {"iterations": 2})
    rows = dict(found.overview.rows)
    assert not any("privacy" in name or "epsilon" in name for name in rows)
    assert rows["seed"] == "0"


def test_a_result_before_the_first_iteration_and_one_that_ended_early_are_shown(data, result):
    nothing = replace(result, history=up.History(()), error=up.DivergedError("the model is not finite <b>"))
    assert "0 iterations, 0 data rounds" in repr(nothing)
    assert "the model is not finite &lt;b&gt;" in nothing._repr_html_()
    assert "History of 0 iterations" in str(nothing.history)


def test_a_record_without_scores_has_empty_cells_and_one_without_accuracy_its_loss(result):
    record = result.history[0]
    assert cells(None) == ("", "", "")
    assert cells(replace(record, loss=None, accuracy=None)) == ("data", "", "")
    assert cells(replace(record, loss=0.25, accuracy=None)) == ("data", "", "0.2500")
    run = Watched("x")
    run.last, run.total = replace(record, loss=0.25, accuracy=None), 12
    assert run.text.startswith("x: iteration ")
    assert "loss 0.2500" in run.text
    assert "accuracy" not in run.text


def test_a_run_in_a_terminal_is_a_table_of_its_last_iterations(data, monkeypatch, capsys):
    monkeypatch.setattr(run_progress, "is_terminal", lambda: True)
    monkeypatch.setattr(run_progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(run_progress, "DRAW_SECONDS", 7.0)  # now and then, and in the end
    clock = types.SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(run_progress, "time", clock)
    monkeypatch.setenv("COLUMNS", "120")
    found = up.train(data, **ASKED | {"progress": True}, metrics=["kappa"])
    out, err = capsys.readouterr()
    assert out == ""
    last = err[err.rindex("gradient steps") :]
    rows = [line for line in last.splitlines() if "upcycled" in line or "data" in line]
    shown = list(found.history)[-len(rows) :]
    assert 2 <= len(rows) < 12
    for line, record in zip(rows, shown, strict=True):
        for text in (str(record.iteration), f"{100 * record.accuracy:.2f} %", f"{record.metrics['kappa']:.4f}"):
            assert text in line
    assert "12/12 iterations" in last


def test_a_batch_in_a_terminal_is_drawn_until_it_is_over(monkeypatch, capsys):
    monkeypatch.setattr(batch_progress, "is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what is drawn is taken away again, and elsewhere never written
    monkeypatch.setattr(batch_progress, "QUIET_SECONDS", 0.0)
    table, waited = BatchProgress(2, True), []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            table.run_done()
        return len(waited) == 4  # after the silence, and twice drawn

    monkeypatch.setattr(table, "_over", types.SimpleNamespace(wait=wait))
    table._show()
    assert waited == [0.0, *[batch_progress.BATCH_DRAW_SECONDS] * 3]
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert drawn.index("0 of 2 runs done, 0 %") < drawn.index("1 of 2 runs done, 50 %")
    assert "iteration" not in drawn  # no run has begun


def test_what_is_shown_of_a_restricted_run_does_not_depend_on_its_scores(restricted):
    other = replace(restricted, private=replace(restricted.private, history=up.History(()), notes=("odd",)))
    assert ways(other) == ways(restricted)
    assert all("the data holder" in text for text in ways(restricted))
    accuracy = restricted.private.history.last_scored().accuracy
    for text in (*ways(restricted), *ways(restricted.history)):
        assert f"{100 * accuracy:.2f}" not in text
        assert "second" not in text


def test_texts_are_escaped_and_columns_stand_under_one_another():
    found = Overview("a & b", (("x", "<i>", "2"), ("longer", "1", "")), ("", "one", "two"))
    assert found.html.count("&lt;i&gt;") == 1
    assert "<i>" not in found.html
    assert found.text.splitlines() == ["a & b", "          one  two", "  x       <i>  2", "  longer  1"]


def test_a_plot_has_the_last_score_of_each_data_round(result, axes):
    assert result.plot("accuracy", ax=axes) is axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    upcycled = [100 * record.accuracy for record in result.history if record.kind == "upcycled"]
    assert line.get_ydata().tolist() == upcycled


def test_a_plot_against_iterations_has_all_of_them(result, axes):
    (line,) = result.plot("kappa", against="iteration", ax=axes).lines
    assert line.get_xdata().tolist() == list(range(1, 13))
    assert line.get_ydata().tolist() == result.history.column("kappa")


def test_epsilon_is_drawn_against_what_a_run_counts_and_nothing_else(result):
    known = result.privacy.epsilon_over_rounds(result.privacy.default_delta)
    assert run_plots.spent(result.privacy, "iteration") == (list(known.iterations), list(known.worst))
    with pytest.raises(up.InputError, match=r"against.*'time'"):
        run_plots.spent(result.privacy, "time")


def test_a_comparison_is_drawn_as_means_over_seeds(comparison, axes):
    lines = comparison.plot(ax=axes).lines
    arms = (comparison.vanilla, comparison.upcycled, comparison.longer_step)
    last = [np.mean([100 * run.accuracy for run in runs]) for runs in arms]
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx(last)
    assert [line.get_label() for line in lines] == ["vanilla", "upcycled", "vanilla, server_lr = 1.5"]


def test_a_restricted_run_draws_epsilon_and_refuses_its_scores(restricted, axes):
    (line,) = restricted.plot(ax=axes).lines
    known = restricted.privacy.epsilon_over_rounds(restricted.privacy.default_delta)
    assert line.get_ydata().tolist() == list(known.worst)
    assert "epsilon" in axes.get_title(loc="left")
    with pytest.raises(up.InputError, match=r"one.*epsilon.*result\.private\.history"):
        restricted.plot("accuracy", ax=axes)
    both = up.Comparison((restricted, restricted), (restricted, restricted), "work", 0.95)
    assert both.plot(ax=axes.figure.add_subplot()).get_title(loc="left").startswith("worst client's proven epsilon")
    with pytest.raises(up.InputError, match=r"one.*epsilon"):
        both.plot("loss", ax=axes)


def test_what_cannot_be_drawn_is_one_sentence(result, axes):
    with pytest.raises(up.InputError, match=r"against.*'time'"):
        result.plot("loss", against="time", ax=axes)
    with pytest.raises(up.InputError, match=r"nothing.*plot"):
        up.History(()).plot(ax=axes)


def rendered(call):
    try:
        call()
    except up.UpcycledError as error:
        return error._render_traceback_()
    raise AssertionError


def test_a_notebook_shows_an_error_as_the_users_line_and_one_sentence():
    lines = rendered(lambda: up.FedProx(mu=-1))
    assert lines[0].endswith("lines = rendered(lambda: up.FedProx(mu=-1))")
    assert lines[1:] == ["InputError: FedProx mu is -1, but it must be a finite number >= 0"]


def test_a_notebook_shows_what_the_users_own_code_raised():
    def call():
        try:
            raise KeyError("mine")
        except KeyError as error:
            raise up.InputError("it failed") from error

    lines = rendered(call)
    assert any("KeyError: 'mine'" in line for line in lines)
    assert lines[-1] == "InputError: it failed"


class Handle:
    def __init__(self, said):
        self.said = said

    def update(self, content, raw):
        self.said.append(content)


@pytest.fixture
def notebook(monkeypatch):
    """A kernel's IPython, as far as a display asks for it; what is displayed."""
    said: list[dict[str, str]] = []
    shell, shows = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel=object())

    def display(content, raw, display_id):
        said.append(content)
        return Handle(said)

    shows.display = display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr(run_progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(run_progress, "NOTEBOOK_SECONDS", 0.0)
    return said


def test_a_terminal_is_no_notebook(monkeypatch):
    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


def test_a_runs_bar_ends_at_100_percent(notebook, data, capsys):
    up.train(data, **{**ASKED, "progress": True})
    assert len(notebook) > 12
    assert notebook[-1]["text/plain"].startswith("100 % · upcycled fedavg · ")
    assert 'value="1.000"' in notebook[-1]["text/html"]
    assert " left" not in notebook[-1]["text/plain"]
    assert "iteration" not in capsys.readouterr().err


def test_a_bar_of_a_restricted_run_tells_neither_scores_nor_pace(notebook, data):
    up.train(data, **{**ASKED, "progress": True}, privacy=CLIPPING, noise="system")
    assert not any(word in one["text/plain"] for one in notebook for word in (" left", "accuracy", "loss"))


def test_a_run_that_is_stopped_leaves_its_bar_where_it_was(notebook, data):
    def stop(record):
        return up.STOP if record.iteration == 3 else None

    up.train(data, **{**ASKED, "progress": True}, callbacks=[stop])
    assert 'value="0.250"' in notebook[-1]["text/html"]


def test_a_batchs_bar_ends_at_100_percent(notebook):
    table = BatchProgress(2, True)
    first = table.row("first")
    table.run_done(first)
    table.run_done()
    table._over.set()
    table._show()  # over before anything was shown: nothing is
    assert notebook == []
    table._show_in(NotebookArea())
    assert notebook[-1]["text/plain"] == "2 of 2 runs done, 100 %"


def test_nothing_is_shown_of_a_run_that_is_over_at_once(notebook, monkeypatch, data):
    monkeypatch.setattr(run_progress, "QUIET_SECONDS", 1e9)
    display = LiveProgress()
    display.finish()
    up.train(data, **{**ASKED, "progress": True})
    assert notebook == []

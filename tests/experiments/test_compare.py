"""Comparisons: equal work, equal epsilon, and no claim without an interval."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import upcycled as up
from tests.experiments.small import everything_under, small_file, spec_in
from tests.experiments.test_run import failing_at, refuse_to_train
from tests.wording import has_all
from upcycled._utils.statistics import Paired, holm
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import DivergedError
from upcycled.experiments import batch as batch_module
from upcycled.experiments.compare import compare_experiment


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def compare(*overrides, **more):
    return compare_experiment(load_config("small.toml", ["seeds=[0, 1, 2]", *overrides]), "small.toml", **more)


def summaries(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("summary.json"))]


def test_equal_work_is_as_many_data_rounds_messages_and_gradients(here):
    found = compare("iterations=7")
    (row,) = found.rows
    for vanilla, upcycled in zip(row.vanilla.seeds, row.upcycled.seeds, strict=True):
        assert (vanilla.summary.iterations, upcycled.summary.iterations) == (4, 7)
        for key in ("data_rounds", "messages", "bytes", "gradient_steps"):
            assert getattr(vanilla.summary, key) == getattr(upcycled.summary, key)
    folder = here / "results" / "small" / "compare-work"
    assert found.folder == folder.relative_to(here)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [
        *("fedprox-upcycled", "fedprox-vanilla", "fedprox-vanilla-longer-step"),
    ]


@pytest.mark.parametrize("equal", ["work", "epsilon"])
def test_vanilla_with_a_longer_server_step_has_as_much_work_and_epsilon(here, equal):
    (here / "small.toml").write_text(
        (here / "small.toml").read_text().replace("[local]\nlr = 0.05\nepochs = 2\nbatch_size = 8\n", "")
    )
    private = "privacy={mechanism='erm_output', norm_bound=1.0, epsilon=2.0, delta=1e-5}"
    found = compare(private, equal=equal)
    (row,), (longer,) = found.rows, found.longer_step
    assert longer.server_lr == 1.7
    assert longer.upcycled == row.upcycled
    for vanilla, other in zip(row.vanilla.seeds, longer.vanilla.seeds, strict=True):
        for key in ("iterations", "data_rounds", "messages", "bytes", "gradient_steps"):
            assert getattr(vanilla.summary, key) == getattr(other.summary, key)
        assert vanilla.summary.privacy.epsilon == other.summary.privacy.epsilon
    config = (found.folder / "fedprox-vanilla-longer-step/seed-0/config.toml").read_text()
    assert "server_lr = 1.7" in config
    document = json.loads((found.folder / "compare.json").read_text())
    (plain,) = document["longer_step_rows"]
    assert (plain["algorithm"], plain["server_lr"]) == ("fedprox", 1.7)
    assert document["why_no_longer_step"] == {}
    assert [run["folder"] for run in document["runs"]] == [
        *("fedprox-vanilla", "fedprox-upcycled", "fedprox-vanilla-longer-step"),
    ]


def test_upcycled_fedavg_is_vanilla_with_the_longer_server_step(here):
    (longer,) = compare("algorithm={name='fedavg'}", "iterations=6").longer_step
    assert longer.paired.differences == pytest.approx([0.0, 0.0, 0.0], abs=0.02)


def test_holms_correction_counts_both_differences_of_each_algorithm(here):
    found = compare("data.sizes=100", "iterations=8", algorithms=["fedprox", "feddyn", "fedyogi"])
    tests = [*found.rows, *found.longer_step]
    assert [row.algorithm for row in tests] == ["fedprox", "feddyn", "fedyogi", "fedprox", "feddyn"]
    assert [row.holm_p for row in tests] == holm([row.paired.p_value for row in tests])
    assert [row.title for row in found.table] == [
        *("fedprox", "fedprox, server_lr = 1.7", "feddyn", "feddyn, server_lr = 1.7", "fedyogi"),
    ]
    assert list(found.why_no_longer_step) == ["fedyogi"]
    assert any(has_all(note, "longer server step", "fedyogi", "server_lr") for note in found.notes)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("upcycle={kind='decaying', coefficient=0.5}", "not constant"),
        ("upcycle.coefficient=0", "coefficient is 0"),
        ("algorithm={name='pfedme'}", "server_lr"),
        ("algorithm.server_lr=1.2", "server_lr"),
        ("privacy={mechanism='model_clipping', clip_norm=1.0, noise_std=1.0, noise='system'}", "data holder"),
    ],
)
def test_a_comparison_says_why_it_has_no_longer_server_step(here, override, words, capsys):
    assert main(["compare", "small.toml", "seeds=[0, 1]", override]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "longer server step" in line]
    assert len(lines) == 1
    assert words in lines[0]
    assert main(["compare", "small.toml", "seeds=[0, 1]", override, "--no-longer-step"]) == 0
    assert "longer server step" not in capsys.readouterr().out


def test_the_longer_server_step_can_be_left_out(here):
    found = compare(longer_step=False)
    assert (found.longer_step, found.why_no_longer_step) == ((), {})
    assert not (found.folder / "fedprox-vanilla-longer-step").exists()
    assert found.rows[0].holm_p is None


def test_the_difference_is_that_of_the_runs_and_its_interval_students(here):
    found = compare("data.sizes=100")
    experiment = load_config("small.toml", ["data.sizes=100"])
    data = experiment.build_data()
    accuracies = {}
    for kind, changes in (("vanilla", {"upcycle": None, "iterations": 2}), ("upcycled", {})):
        runs = [up.train(data, experiment.spec(k), progress=False, **changes) for k in (0, 1, 2)]
        accuracies[kind] = np.array([result.accuracy for result in runs])
    d = accuracies["upcycled"] - accuracies["vanilla"]
    document = json.loads((found.folder / "compare.json").read_text())
    (row,) = document["rows"]
    # The 97.5 % point of Student's t with two degrees of freedom is 4.302653.
    half = 4.302653 * d.std(ddof=1) / 3**0.5
    assert half > 0
    assert row["differences"] == pytest.approx(d.tolist())
    assert row["gain"] == pytest.approx(d.mean())
    assert row["interval"] == pytest.approx([d.mean() - half, d.mean() + half], rel=1e-6)
    assert row["vanilla"]["accuracy"]["mean"] == pytest.approx(accuracies["vanilla"].mean())
    assert row["vanilla"]["seeds"] == accuracies["vanilla"].tolist()
    assert document["equal"] == "work"
    assert document["seeds"] == [0, 1, 2]


def test_several_algorithms_keep_the_files_parameters_for_its_own_and_defaults_for_the_others(here):
    found = compare("algorithm.mu=0.25", algorithms=["fedavg", "fedprox", "feddyn"])
    configs = {path.parents[1].name: path.read_text() for path in found.folder.rglob("seed-0/config.toml")}
    assert len(configs) == 9
    assert "mu = 0.25" in configs["fedprox-vanilla"]
    assert f"alpha = {up.FedDyn().alpha}" in configs["feddyn-upcycled"]
    assert "[upcycle]" in configs["fedavg-upcycled"]
    assert "[upcycle]" not in configs["fedavg-vanilla"]
    assert [row.algorithm for row in found.rows] == ["fedavg", "fedprox", "feddyn"]
    assert all(row.holm_verdict is not None for row in found.rows)
    assert "Holm" in " ".join(found.notes)


def test_equal_epsilon_gives_both_the_same_proven_epsilon_over_as_many_iterations(here):
    private = "privacy={mechanism='erm_output', norm_bound=1.0, epsilon=2.0, delta=1e-5}"
    (here / "small.toml").write_text(
        (here / "small.toml").read_text().replace("[local]\nlr = 0.05\nepochs = 2\nbatch_size = 8\n", "")
    )
    found = compare(private, equal="epsilon")
    (row,) = found.rows
    assert found.folder.name == "compare-epsilon"
    for outcome, rounds in ((row.vanilla, 4), (row.upcycled, 2)):
        for seed in outcome.seeds:
            assert (seed.summary.iterations, seed.summary.data_rounds) == (4, rounds)
            assert seed.summary.privacy.epsilon.max == pytest.approx(2.0, rel=1e-6)
    assert any("add up" in note for note in found.notes)


def test_finished_runs_are_reused_and_more_seeds_only_add_theirs(here, monkeypatch):
    compare("seeds=[0, 1]")
    trained = []
    train_each = batch_module.train_each

    def noting(runs, **options):
        trained.extend(spec_in(run).seed for run in runs)
        return train_each(runs, **options)

    monkeypatch.setattr(batch_module, "train_each", noting)
    compare("seeds=[0, 1, 5]")
    assert trained == [5, 5, 5]
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    assert len(compare("seeds=[0, 1, 5]").rows[0].paired.differences) == 3


def test_a_seed_that_diverged_is_left_out_with_its_pair_and_named(here, monkeypatch, capsys):
    monkeypatch.setattr(batch_module, "train_each", failing_at(1, DivergedError("the run diverged")))
    assert main(["compare", "small.toml", "seeds=[0, 1, 2]", "--json"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert len(document["rows"][0]["differences"]) == 2
    assert any(has_all(note, "seed 1", "seed 1") for note in document["notes"])
    assert "seed 1 stopped" in err


def test_too_few_pairs_are_not_judged(here, monkeypatch, capsys):
    monkeypatch.setattr("upcycled.cli.output.WIDTH_IN_A_PIPE", 200)
    monkeypatch.setattr(batch_module, "train_each", failing_at(1, DivergedError("the run diverged")))
    assert main(["compare", "small.toml"]) == 1
    assert "too few finished seeds to judge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["seeds=[0]"], ["seeds is [0]", "two or more"]),
        (["iterations=1"], ["iterations is 1", "at least 2"]),
        (["--equal-epsilon"], ["privacy is missing", "epsilon = "]),
        (
            ["--equal-epsilon", "privacy={mechanism='model_clipping', clip_norm=1, noise_std=1}"],
            ["privacy is without epsilon"],
        ),
        (["--algorithms", "fedavg,fedporx"], ["--algorithms has 'fedporx'", "did you mean 'fedprox'?"]),
        (["--algorithms", "fedavg,fedavg"], ["--algorithms is 'fedavg,fedavg'", "each once"]),
        (["--confidence", "1"], ["--confidence is 1.0", "< 1"]),
        (["data.test_fraction=0.0"], ["no test samples", "data.test_fraction"]),
        (["scored_on=validation", "data.validation_fraction=0.2"], ["scored_on is 'validation'", "'test'"]),
        (
            ["--algorithms", "fedprox,pfedme", "local.momentum=0.5"],
            ["pfedme-vanilla: ", "local.momentum is 0.5", "no momentum"],
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_and_writes_nothing(here, arguments, fragments, capsys):
    before = everything_under(here)
    assert main(["compare", "small.toml", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: small.toml" in err
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err
    assert everything_under(here) == before


def test_a_file_without_an_upcycle_table_is_told_what_it_lacks(here, capsys):
    small_file(here, ("[upcycle]\ncoefficient = 0.7\n", ""))
    assert main(["compare", "small.toml"]) == 2
    assert has_all(capsys.readouterr().err, "upcycle", "missing", "table [upcycle]")


def test_the_table_has_means_the_difference_and_a_verdict_in_words(here, monkeypatch, capsys):
    monkeypatch.setattr("upcycled.cli.output.WIDTH_IN_A_PIPE", 200)
    assert main(["compare", "small.toml", "seeds=[0, 1, 2]", "--algorithms", "fedavg,fedprox"]) == 0
    out = capsys.readouterr().out
    rows = json.loads((here / "results" / "small" / "compare-work" / "compare.json").read_text())["rows"]
    for row in rows:
        line = next(line for line in out.splitlines() if line.startswith(row["algorithm"]))
        for side in ("vanilla", "upcycled"):
            cell = row[side]["accuracy"]
            assert f"{100 * cell['mean']:.2f} ± {100 * cell['sd']:.2f}" in line
        low, high = row["interval"]
        difference = f"{100 * row['gain']:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
        assert difference.replace("-", "−").replace("+0.00", "0.00") in line
        assert row["verdict"] in line
    assert "Each interval is for its own row." in out
    assert "Results: results/small/compare-work" in out
    page = here / out.split("Report:")[1].strip()
    assert "fedavg" in page.read_text().lower()


def test_the_document_says_the_command_that_repeats_it(here, capsys):
    words = ["compare", "small.toml", "--confidence", "0.9", "name=a b"]
    assert main([*words[:4], "name=ab"]) == 0
    document = json.loads((here / "results" / "ab" / "compare-work" / "compare.json").read_text())
    assert document["repeat"] == "upcycled compare small.toml --confidence 0.9 name=ab"
    assert document["confidence"] == 0.9


def test_holm_agrees_with_its_step_down_definition():
    # Worked by hand: sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04, then running maxima.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, level):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = set()
    for rank, i in enumerate(order):
        if p_values[i] * (len(p_values) - rank) >= level:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(p_values)) if p < level} == rejected


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_excludes_zero_exactly_if_the_test_rejects(differences, confidence):
    test = Paired(tuple(differences), confidence)
    if test.sd > 1e-9 and abs(test.p_value - (1 - confidence)) > 1e-9:
        assert test.is_significant == (test.p_value < 1 - confidence)


def test_without_spread_nothing_is_claimed():
    test = Paired((0.01, 0.01), 0.95)
    assert (test.is_significant, test.verdict, test.p_value) == (False, "no significant difference", 1.0)


def test_students_p_value_agrees_with_scipy():
    from scipy.stats import ttest_1samp

    values = (0.013, 0.004, 0.021, -0.002)
    assert Paired(values, 0.95).p_value == pytest.approx(ttest_1samp(values, 0).pvalue, rel=1e-12)

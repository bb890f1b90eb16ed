"""Sweeps: which points are tried, what they are chosen by, and what is reported in the end."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import upcycled as up
from tests.experiments.small import everything_under, small_file, spec_in
from tests.experiments.test_run import failed, refuse_to_train
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.config.overrides import Range
from upcycled.core.errors import DivergedError, InputError, UpcycledError
from upcycled.experiments import batch as batch_module
from upcycled.experiments.batch import run_experiment
from upcycled.experiments.search_space import Point, draws, grid, search
from upcycled.experiments.sweep import How, sweep_experiment

GRID = '\n[sweep]\n"local.lr" = [0.001, 0.05, 0.5]\n"upcycle.coefficient" = [0.2, 0.9]\n'
FEW = '\n[sweep]\n"local.lr" = [0.001, 0.5]\n'
RANGES = """
[sweep]
"local.lr" = {low = 0.001, high = 1.0, log = true}
"local.epochs" = {low = 1, high = 3, integer = true}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep_file(folder, table=GRID, *changes):
    return small_file(folder, ("sizes = 20", "sizes = 40\nvalidation_fraction = 0.25"), *changes, text=_text(table))


def _text(table):
    from tests.experiments.small import SMALL

    return SMALL + table


def sweep(how=None, *overrides, **more):
    return sweep_experiment(load_config("small.toml", overrides), "small.toml", how, **more)


def test_a_grid_is_all_combinations():
    points = grid({"a": (1, 2), "b": ("x", "y"), "c": ([1], [2, 3])})
    assert len(points) == len({point.mark for point in points}) == 8
    assert points[1].values == (("a", 1), ("b", "x"), ("c", [2, 3]))


def test_a_grid_with_a_range_is_refused(here, capsys):
    sweep_file(here, RANGES)
    before = everything_under(here)
    assert main(["sweep", "small.toml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith('error: small.toml: sweep."local.lr" is a range, but a grid needs lists: give --random N')
    assert everything_under(here) == before


@given(st.integers(0, 2**31), st.integers(1, 30))
def test_draws_lie_in_their_ranges_and_more_of_them_keep_the_first(seed, count):
    space = {
        "lr": Range(low=0.001, high=0.1, log=True),
        "epochs": Range(low=2, high=5, integer=True),
        "name": ("a", "b"),
    }
    found = draws(space, count, seed)
    for point in found:
        values = dict(point.values)
        assert 0.001 <= values["lr"] <= 0.1
        assert values["epochs"] in (2, 3, 4, 5)
        assert isinstance(values["epochs"], int)
        assert values["name"] in ("a", "b")
    assert draws(space, count + 5, seed)[:count] == found
    assert len({point.mark for point in found}) == count


def test_a_logarithmic_range_gives_each_order_of_magnitude_the_same_share():
    values = [dict(p.values)["a"] for p in draws({"a": Range(low=1e-4, high=1.0, log=True)}, 4000, seed=1)]
    shares = [np.mean([10.0**k <= v < 10.0 ** (k + 1) for v in values]) for k in (-4, -3, -2, -1)]
    # Each has probability 1/4: 4000 draws have a standard deviation of 0.0068.
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_all_integers_of_a_range_are_drawn_alike():
    values = [Range(low=1, high=3, integer=True).at(share) for share in np.linspace(0, 1, 3000, endpoint=False)]
    assert [values.count(k) for k in (1, 2, 3)] == [1000, 1000, 1000]


def test_draws_from_few_points_are_all_of_them():
    assert sorted(point.label for point in draws({"a": (1, 2)}, 50, seed=0)) == ["a=1", "a=2"]


def test_the_choice_is_by_mean_validation_accuracy_of_runs_that_never_saw_test_data(here):
    sweep_file(here)
    found = sweep()
    assert len(found.ranking) == 6
    data = load_config("small.toml").build_data()
    # By hand: train on the training part, score on the validation part.
    scores = {}
    for ranked in found.ranking:
        lr, rho = (value for _, value in ranked.point.values)
        local = up.LocalSGD(lr=lr, epochs=2, batch_size=8)
        results = []
        for seed in (0, 1):
            held = up.FederatedData(train=data.train, test=data.validation, num_classes=2)
            results.append(
                up.train(
                    held,
                    algorithm=up.FedProx(mu=0.5),
                    upcycle=rho,
                    iterations=4,
                    local=local,
                    participation=0.5,
                    seed=seed,
                    progress=False,
                )
            )
        scores[lr, rho] = np.mean([r.accuracy for r in results]), np.mean([r.loss for r in results])
    order = sorted(scores, key=lambda key: (-scores[key][0], scores[key][1]))
    assert [tuple(value for _, value in ranked.point.values) for ranked in found.ranking] == order
    document = json.loads((found.folder / "sweep.json").read_text())
    assert [row["accuracy"]["mean"] for row in document["ranking"]] == pytest.approx([scores[key][0] for key in order])


def test_changed_test_labels_change_the_test_score_and_nothing_of_the_choice(here):
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(120, 3)).astype(np.float32), np.repeat(np.arange(4), 30)
    y = (x[:, 0] + 0.3 * rng.normal(size=120) > 0).astype(np.int64)
    documents = []
    for flip in (0, 1):
        test = {"test_x": x[::3], "test_y": (y[::3] + flip) % 2, "test_client": client[::3]}
        np.savez(here / f"set{flip}.npz", train_x=x, train_y=y, train_client=client, **test)
        start, end = _text(FEW).index("alpha"), _text(FEW).index("[algorithm]")
        text = _text(FEW)[:start] + f'path = "set{flip}.npz"\nvalidation_fraction = 0.25\n' + _text(FEW)[end:]
        (here / "small.toml").write_text(text.replace('"synthetic"', '"npz"'))
        sweep(None, f"results=r{flip}")
        documents.append(json.loads((here / f"r{flip}" / "small" / "sweep" / "sweep.json").read_text()))
    assert documents[0]["ranking"] == documents[1]["ranking"]
    right, wrong = (document["chosen"]["test"]["accuracy"]["mean"] for document in documents)
    assert right == pytest.approx(1 - wrong)


def test_the_chosen_file_runs_as_it_is_and_gives_the_stated_test_score(here):
    sweep_file(here)
    found = sweep(None, "seeds=[0, 1, 2]")
    chosen = load_config(found.chosen_file)
    assert chosen.name == "small-chosen"
    assert (chosen.scored_on, chosen.seeds, chosen.sweep) == ("test", (0, 1, 2), {})
    again = run_experiment(chosen, "chosen.toml")
    document = json.loads((found.folder / "sweep.json").read_text())
    assert again.summary()["accuracy"] == document["chosen"]["test"]["accuracy"]
    assert [s.summary.data["test_samples"] for s in again.seeds] == [16] * 3
    assert tomllib.loads(found.chosen_file.read_text())["data"]["validation_fraction"] == 0.25


def test_only_the_chosen_point_is_scored_on_test_data(here):
    sweep_file(here)
    found = sweep()
    scored_on = {
        path.parents[1].name: json.loads(path.read_text())["scored_on"] for path in found.folder.rglob("summary.json")
    }
    assert sorted(name for name, on in scored_on.items() if on == "test") == [found.chosen.experiment.name]
    assert len(scored_on) == 7


def test_a_sweep_that_was_stopped_goes_on_and_a_larger_grid_keeps_what_is_there(here, monkeypatch):
    sweep_file(here, FEW)
    first = sweep()
    trained = []
    train_each = batch_module.train_each

    def noting(runs, **options):
        trained.extend(spec_in(run).local.lr for run in runs)
        return train_each(runs, **options)

    monkeypatch.setattr(batch_module, "train_each", noting)
    second = sweep(None, "sweep.'local.lr'=[0.001, 0.002, 0.5]")
    best = dict(second.ranking[0].point.values)["local.lr"]
    assert trained == [0.002, 0.002] + ([0.002, 0.002] if best == 0.002 else [])
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    assert sweep().as_json() == first.as_json()


def test_a_point_that_diverges_comes_last_and_is_not_chosen(here, monkeypatch):
    sweep_file(here, FEW)
    train_each = batch_module.train_each

    def fails_at_a_half(runs, **options):
        for place, result in train_each(runs, **options):
            spec = spec_in(runs[place])
            bad = spec.local.lr == 0.5 and spec.seed == 1
            yield place, failed(result, DivergedError("the run diverged")) if bad else result

    monkeypatch.setattr(batch_module, "train_each", fails_at_a_half)
    found = sweep()
    assert [dict(r.point.values)["local.lr"] for r in found.ranking] == [0.001, 0.5]
    assert found.as_json()["ranking"][1]["failed"] == [1]
    assert any(has_all(note, "1", "2 settings") for note in found.notes)


def test_a_sweep_in_which_everything_diverges_says_so(here):
    sweep_file(here, '\n[sweep]\n"local.lr" = [1e38]\n')
    with pytest.raises(UpcycledError, match="1 settings"):
        sweep()


def test_selection_may_use_other_seeds_than_the_file(here):
    sweep_file(here, FEW)
    found = sweep(How(seeds=(7,)))
    assert found.as_json()["seeds"] == [7]
    assert found.as_json()["chosen"]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("table", "arguments", "fragments"),
    [
        ("", [], ["sweep is missing", "[sweep]"]),
        (GRID, ["data.validation_fraction=0.0"], ["data.validation_fraction is 0.0", "> 0, such as 0.1"]),
        (GRID, ["--random", "0"], ["--random is 0", ">= 1"]),
        (GRID, ["--random", "2", "--optuna", "2"], ["--random and --optuna are both given"]),
        (GRID, ["--seeds", "0,x"], ["--seeds is '0,x'", "such as 0,1,2"]),
        (GRID, ["--seeds", "0,0"], ["--seeds is '0,0'", "different"]),
        (GRID, ["--top", "0"], ["--top is 0", ">= 1"]),
        (
            '\n[sweep]\n"local.epochs" = [1, 2]\n"clients.stragglers" = [0.0, 0.5]\n',
            [],
            ["local.epochs=1, clients.stragglers=0.5", "local.epochs is 1"],
        ),
    ],
)
def test_what_cannot_be_swept_is_one_sentence_and_writes_nothing(here, table, arguments, fragments, capsys):
    sweep_file(here, table)
    before = everything_under(here)
    assert main(["sweep", "small.toml", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err
    assert everything_under(here) == before


def test_the_table_shows_the_best_with_their_settings(here, capsys):
    sweep_file(here)
    (here / "my code").mkdir()
    assert main(["sweep", "small.toml", "--top", "2", "--path", "my code"]) == 0
    out, err = capsys.readouterr()
    assert has_all(err, "6 settings", "2 seeds = 12")
    document = json.loads((here / "results" / "small" / "sweep" / "sweep.json").read_text())
    assert "the best 2 of 6 settings" in out
    lines = [line.split() for line in out.splitlines() if line[:1] in "12"]
    for row, words in zip(document["ranking"][:2], lines, strict=True):
        assert words[1:3] == [f"{value:.4g}" for value in row["settings"].values()]
        assert words[3:6] == [f"{100 * row['accuracy']['mean']:.2f}", "±", f"{100 * row['accuracy']['sd']:.2f}"]
    test = document["chosen"]["test"]["accuracy"]
    assert f"test accuracy {100 * test['mean']:.2f} ± {100 * test['sd']:.2f} %" in out
    assert "Run it: upcycled run results/small/sweep/chosen.toml --path 'my code'" in out


def test_tuning_on_private_data_is_warned_about(here, capsys):
    sweep_file(here, FEW)
    private = "privacy={mechanism='model_clipping', clip_norm=1.0, noise_std=1.0}"
    assert main(["sweep", "small.toml", private, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "warning: tuning on private data is not covered by the stated epsilon" in err
    assert "what the sweep itself has spent" in out


def test_random_draws_from_ranges_run_and_are_repeatable(here, capsys):
    sweep_file(here, RANGES)
    assert main(["sweep", "small.toml", "--random", "3", "--json", "seeds=[0]"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["sweep", "small.toml", "--random", "3", "--json", "seeds=[0]"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len(first["ranking"]) == 3
    assert main(["sweep", "small.toml", "--random", "3", "--json", "seeds=[0]", "--draw-seed", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["ranking"] != first["ranking"]


def test_optuna_asks_for_the_same_points_again_and_goes_on_where_it_was(here, monkeypatch):
    sweep_file(here, RANGES)
    how = How(optuna=12, seeds=(0,))
    first = sweep(how)
    assert 1 < len(first.ranking) <= 12
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    assert sweep(how).as_json() == first.as_json()


def test_optuna_finds_the_top_of_a_hill_better_than_draws_do():
    space = {"x": Range(low=0.0, high=1.0), "y": ("far", ["near"])}

    def height(point):
        values = dict(point.values)
        return 1 - abs(values["x"] - 0.3) - 0.5 * (values["y"] == "far")

    seen = []
    search(space, 40, 0, lambda points: [seen.append(point) or height(point) for point in points])
    assert len(seen) == 40
    drawn = [height(point) for point in draws(space, 40, 0)]
    assert np.mean([height(point) for point in seen[20:]]) > np.mean(drawn) + 0.1


def test_a_point_without_a_score_is_told_to_optuna_as_bad():
    search({"x": (1, 2)}, 3, 0, lambda points: [None for _ in points])


def test_optuna_that_is_missing_is_one_sentence(here, monkeypatch, capsys):
    sweep_file(here, RANGES)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "small.toml", "--optuna", "5"]) == 2
    assert has_all(capsys.readouterr().err, "error: --optuna", "optuna", "'.[sweep]'")
    assert not (here / "results").exists()


def test_a_list_of_lists_can_be_swept(here):
    sweep_file(here, '\n[model]\nkind = "mlp"\n\n[sweep]\n"model.hidden" = [[3], [4, 4]]\n')
    found = sweep(How(seeds=(0,)))
    assert sorted(dict(r.point.values)["model.hidden"] for r in found.ranking) == [[3], [4, 4]]
    assert Path(found.chosen_file).exists()


def test_a_points_name_does_not_depend_on_where_it_stands():
    assert Point((("a", 1),)).mark == grid({"a": (0, 1)})[1].mark
    with pytest.raises(InputError):
        grid({"a": Range(low=0, high=1)})

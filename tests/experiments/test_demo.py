"""The demonstration and its plot."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from tests.experiments.small import everything_under
from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.experiments.demo import SEEDS, contestants, curve, run_demo, write_comparison


def png_size(path):
    """Width and height from the header of a PNG."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "out"
    return output, run_demo(contestants(2, 2, str(output)), "upcycled demo")


def test_upcycled_runs_have_as_many_iterations_and_half_of_the_data_rounds_and_messages(demo):
    _, found = demo
    assert [c.title for c, _ in found.rows] == [
        "vanilla, no noise",
        "upcycled, no noise",
        "vanilla, epsilon 4",
        "upcycled, epsilon 4",
    ]
    for c, outcome in found.rows:
        for seed in outcome.seeds:
            rounds = 1 if c.is_upcycled else 2
            assert seed.summary.iterations == 2
            assert seed.summary.data_rounds == rounds
            assert seed.summary.messages == 2 * rounds * 9  # down and up, 30 % of 30 clients


def test_kernels_are_compiled_before_the_first_row_is_timed(tmp_path, monkeypatch):
    from upcycled.experiments import demo as module

    seen = []
    monkeypatch.setattr(module, "train", lambda data, spec: seen.append((spec.iterations, spec.privacy.noise_std)))
    monkeypatch.setattr(module, "prepare_batch", lambda *args: seen.append("batch") or (_ for _ in ()).throw(KeyError))
    with pytest.raises(KeyError):
        run_demo(contestants(2, 2, str(tmp_path / "out")), "upcycled demo")
    assert seen == [(1, 0.0), (1, None), "batch"]


def test_two_of_them_end_at_the_proven_epsilon_and_the_others_promise_nothing(demo):
    _, found = demo
    epsilons = [outcome.worst_epsilon for _, outcome in found.rows]
    assert epsilons[:2] == [None, None]
    assert epsilons[2:] == pytest.approx([4.0, 4.0], abs=1e-6)
    assert max(epsilons[2:]) <= 4.0
    assert [run["epsilon"] for run in found.as_json()["runs"]] == epsilons


def test_rows_differ_in_upcycling_and_noise_alone(demo):
    """One solver, one projection, one participation and no stragglers: a row's difference has one cause."""
    _, found = demo
    settings = [dict(c.experiment.resolved()) for c, _ in found.rows]
    noise = [{key: one["privacy"].pop(key, None) for key in ("noise_std", "epsilon", "delta")} for one in settings]
    upcycled = [one.pop("upcycle", None) for one in settings]
    names = {one.pop("name") for one in settings}
    assert all(one == settings[0] for one in settings)
    assert (settings[0]["clients"]["participation"], settings[0]["clients"]["stragglers"]) == (0.3, 0.0)
    assert [one["noise_std"] for one in noise] == [0.0, 0.0, None, None]
    assert noise[0] == noise[1]
    assert noise[2] == noise[3]
    assert [one is None for one in upcycled] == [True, False, True, False]
    assert len(names) == 4


def test_differences_are_paired_by_seed_and_said_first(demo):
    output, found = demo
    for i, (group, one) in enumerate(found.differences.items()):
        vanilla, upcycled = (
            [seed.summary.accuracy for seed in outcome.seeds] for _, outcome in found.rows[2 * i : 2 * i + 2]
        )
        assert one.differences == tuple(b - a for a, b in zip(vanilla, upcycled, strict=True))
        told = json.loads((output / "demo.json").read_text())["differences"][i]
        assert told == {"kind": group, "mean": one.mean, "interval": list(one.interval), "confidence": 0.95}
    assert has_all(found.note, "Half", "messages; accuracy", "upcycled", "vanilla")
    assert SEEDS >= 16


def test_the_norm_bound_leaves_most_samples_as_they_are(demo):
    _, found = demo
    notes = [words for _, outcome in found.rows for seed in outcome.seeds for words in seed.summary.notes]
    assert not any("norm_bound" in words for words in notes)


def test_the_demo_writes_a_real_plot_a_summary_and_every_run(demo):
    output, found = demo
    width, height = png_size(found.plot)
    assert width >= 1000
    assert height >= 600
    assert json.loads((output / "demo.json").read_text())["runs"][1]["upcycled"] is True
    assert found.report == output / "report.html"
    page = found.report.read_text()
    assert page.startswith("<!")
    places = [
        page.index(words) for words in ("Half the messages", "Summary of all experiments", "Learning curves</h2>")
    ]
    assert places == sorted(places)
    assert (output / "upcycled-epsilon-4" / "seed-1" / "metrics.jsonl").read_text().count("\n") == 2


def test_a_second_demo_replaces_the_first(tmp_path):
    output = tmp_path / "out"
    run_demo(contestants(1, 3, str(output))[:2], "first")
    run_demo(contestants(1, 2, str(output))[:2], "second")
    assert json.loads((output / "demo.json").read_text())["repeat"] == "second"
    assert sorted(p.name for p in (output / "vanilla-no-noise").iterdir()) == ["seed-0", "seed-1"]


def test_a_folder_with_other_things_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "vanilla-no-noise").mkdir()
    (tmp_path / "vanilla-no-noise" / "thesis.txt").write_text("two years of work")
    with pytest.raises(InputError, match="holds other things, but it must be a new or empty folder"):
        run_demo(contestants(1, 2, str(tmp_path)), "")
    assert everything_under(tmp_path) == {"vanilla-no-noise": b"", "vanilla-no-noise/thesis.txt": b"two years of work"}


@pytest.mark.parametrize(("rounds", "seeds", "words"), [(0, 2, r"--rounds.*0, .*>= 1"), (3, 1, r"--seeds.*1, .*>= 2")])
def test_too_few_rounds_or_seeds_are_refused(rounds, seeds, words):
    with pytest.raises(InputError, match=words):
        contestants(rounds, seeds, "out")


def test_a_curve_takes_the_model_after_the_upcycled_iteration():
    rows = [
        {"data_round": m, "accuracy": accuracy, "loss": 1.0}
        for m, accuracy in ((1, 0.1), (1, 0.2), (2, 0.3), (2, None), (3, 0.5))
    ]
    found = curve("FedAvg", True, [rows, rows])
    assert found.rounds.tolist() == [1, 2, 3]
    assert np.allclose(found.accuracy, [[20, 30, 50], [20, 30, 50]])


def test_a_plot_of_one_seed_and_one_round_is_possible(tmp_path):
    rows = [{"data_round": 1, "accuracy": 0.5, "loss": 0.7}]
    write_comparison(tmp_path / "a.png", [curve("FedAvg", False, [rows])], "title", "subtitle")
    assert png_size(tmp_path / "a.png")[0] > 500

"""The numbers of the report: curves, epsilon over time, distributions over clients."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.report_cases import (
    DATA,
    EXPERIMENTS,
    LOCAL,
    PRIVATE,
    rows_of,
    run_one,
)
from upcycled.privacy.ledger.ledger import EpsilonOverRounds, Ledger
from upcycled.report import collect
from upcycled.report.charts import curve, thinned
from upcycled.report.collect import spending
from upcycled.report.distributions import bins_of, clients_of, distribution


@pytest.fixture(scope="module")
def folder(several):
    return several


def test_a_curve_is_the_mean_and_sd_over_seeds_of_what_the_files_hold(folder):
    part = collect(folder / "fedavg-upcycled").parts[0]
    found = curve(part)
    seeds = [rows_of(folder / "fedavg-upcycled" / f"seed-{seed}") for seed in (0, 1)]
    accuracy = 100 * np.array([[row["accuracy"] for row in rows] for rows in seeds])
    assert found.iteration.tolist() == list(range(1, 11))
    assert found.data_round.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert list(found.is_upcycled) == [False, True] * 5
    assert np.allclose(found.mean["accuracy"], accuracy.mean(axis=0))
    # Of two values a, b the sample standard deviation is |a - b| / sqrt(2).
    assert np.allclose(found.sd["accuracy"], np.abs(accuracy[0] - accuracy[1]) / math.sqrt(2))
    sent = np.cumsum([row["bytes_up"] + row["bytes_down"] for row in seeds[0]]) / 1e6
    assert np.allclose(found.megabytes, sent)
    spent = [np.cumsum([row["seconds"] for row in rows]) for rows in seeds]
    assert np.allclose(found.seconds, (spent[0] + spent[1]) / 2)
    assert np.isnan(found.epsilon).all()


def test_unscored_iterations_count_for_bytes_and_not_as_points(tmp_path):
    run_one(tmp_path, "sparse", seeds=(0,), **EXPERIMENTS["fedavg-vanilla"] | {"iterations": 7, "eval_every": 3})
    found = curve(collect(tmp_path / "sparse").parts[0])
    assert found.iteration.tolist() == [3, 6, 7]
    each = rows_of(tmp_path / "sparse" / "seed-0")[0]
    assert np.allclose(found.megabytes, np.array([3, 6, 7]) * (each["bytes_up"] + each["bytes_down"]) / 1e6)
    assert np.isnan(found.sd["accuracy"]).all()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=300), st.integers(6, 50))
def test_thinning_keeps_whole_rounds_the_first_and_the_last(sizes, most):
    groups = [m for m, size in enumerate(sizes) for _ in range(size)]
    kept = thinned(groups, most)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == len(groups) - 1
    rounds = {groups[k] for k in kept}
    assert kept == [k for k, m in enumerate(groups) if m in rounds]
    if len(groups) <= most:
        assert len(kept) == len(groups)
    else:
        assert len(rounds) <= max(2, most * len(sizes) / len(groups))


@pytest.mark.parametrize("name", PRIVATE)
def test_epsilon_over_rounds_ends_at_the_runs_own(folder, name):
    part = collect(folder / name).parts[0]
    for seed in part.seeds:
        assert seed.spent.rounds == (1, 2, 3, 4, 5)
        assert seed.spent.worst[-1] == pytest.approx(seed.summary.privacy.epsilon.max, rel=1e-12)
        assert list(seed.spent.worst) == sorted(seed.spent.worst)
    found = curve(part)
    assert found.epsilon[-1] == pytest.approx(np.mean([seed.spent.worst[-1] for seed in part.seeds]))
    if name == "erm-upcycled":
        assert (np.diff(found.epsilon)[::2] == 0).all()  # an upcycled iteration costs nothing


def test_epsilon_over_rounds_of_objective_perturbation_ends_at_the_runs_own(tmp_path):
    mechanism = {"mechanism": "objective_perturbation", "norm_bound": 1.0, "alpha": 5.0}
    more = {"algorithm": {"name": "fedprox", "mu": 0.5}, "privacy": mechanism, "clients": {"participation": 0.4}}
    run_one(tmp_path, "objective", seeds=(0,), **more)
    seed = collect(tmp_path).parts[0].seeds[0]
    assert seed.spent.worst[-1] == pytest.approx(seed.summary.privacy.epsilon.max, rel=1e-12)


@pytest.mark.slow
def test_epsilon_over_rounds_of_dpsgd_ends_at_the_runs_own(tmp_path):
    more = {"algorithm": {"name": "fedavg"}, "local": LOCAL, "data": DATA | {"clients": 2}, "iterations": 2}
    more |= {"privacy": {"mechanism": "dpsgd", "clip_norm": 1.0, "noise_multiplier": 2.0}}
    run_one(tmp_path, "dpsgd", seeds=(0,), **more)
    seed = collect(tmp_path).parts[0].seeds[0]
    assert seed.spent.worst[-1] == pytest.approx(seed.summary.privacy.epsilon.max, rel=1e-12)


def test_a_run_that_was_stopped_and_went_on_shows_all_its_charges(folder):
    part = collect(folder / "fedavg-upcycled").parts[0]
    # Rounds 2 and 3 were done twice: after the second time of round 2, four charges had been written.
    spent = EpsilonOverRounds(0.0, (1, 3, 5, 3, 5), (1, 2, 3, 2, 3), (1.0, 2.0, 3.0, 4.0, 5.0), is_complete=True)
    found = curve(replace(part, seeds=(replace(part.seeds[0], spent=spent),)))
    assert found.epsilon[:6].tolist() == [1, 1, 4, 4, 5, 5]


def test_a_run_that_charged_nothing_has_no_line(folder, tmp_path):
    ledger = folder / "erm-vanilla" / "seed-0" / "ledger.jsonl"
    (tmp_path / "ledger.jsonl").write_text(ledger.read_text().splitlines()[0] + "\n")
    assert spending(Ledger.read(ledger), 1e-5).rounds == (1, 2, 3, 4, 5)
    assert spending(Ledger.read(tmp_path / "ledger.jsonl"), 1e-5) is None


def test_clients_have_their_mean_accuracy_and_their_largest_epsilon(folder):
    part = collect(folder / "erm-upcycled").parts[0]
    lines = [
        [
            json.loads(line)
            for line in (folder / "erm-upcycled" / f"seed-{s}" / "clients.jsonl").read_text().splitlines()
        ]
        for s in (0, 1)
    ]
    for k, client in enumerate(clients_of(part)):
        assert client.numbers["accuracy"] == pytest.approx(50 * (lines[0][k]["accuracy"] + lines[1][k]["accuracy"]))
        assert client.numbers["epsilon"] == max(lines[0][k]["epsilon"], lines[1][k]["epsilon"])
    assert any(lines[0][k]["epsilon"] != lines[1][k]["epsilon"] for k in range(5))
    known = [client.numbers["accuracy"] for client in clients_of(part)]
    found = distribution(clients_of(part), "accuracy", bins_of(known))
    assert sum(found.counts) == 5
    assert (found.low, found.high) == (min(known), max(known))
    assert found.median == pytest.approx(np.median(known))


@pytest.mark.parametrize("value", [4.0, -1e6])
def test_values_that_differ_by_rounding_alone_have_bins(value):
    values = np.array([value, np.nextafter(value, 9e9)])
    bins = bins_of(values.tolist())
    assert bins.high - bins.low >= 0.1
    assert sum(bins.counts(values)) == max(bins.counts(values)) == 2


def test_a_wide_range_of_epsilons_is_binned_on_a_logarithmic_scale():
    bins = bins_of([0.1, 1.0, 10.0, 100.0])
    assert bins.is_log
    counts = bins.counts(np.array([0.1, 1.0, 10.0, 100.0]))
    places = np.flatnonzero(counts)
    assert sum(counts) == 4
    assert len(places) == 4
    assert np.ptp(np.diff(places)) <= 1  # equal factors are equally far apart

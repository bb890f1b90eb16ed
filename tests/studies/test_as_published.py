"""The chain from our gains to the paper's: which settings each link takes, and what its numbers are, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import upcycled as up
from studies.common.store import Cells
from studies.paper.__main__ import main
from studies.paper.choose import Point
from studies.paper.published.chain import (
    BESIDE,
    CHAIN,
    COMMENTS,
    DOUBLE,
    ONE,
    SEEDS,
    SHORTEST,
    TUNING,
    Gains,
    Known,
    Run,
    chain,
    gains_of,
    next_runs,
    pairs,
)
from studies.paper.published.page import block_of, paper_gains
from studies.paper.settings import load_settings
from studies.paper.sources import Store
from tests.wording import has_all

BY_NAME = {link.name: link for link in (*CHAIN, *BESIDE)}


class Invented:
    """Cells by a formula: accuracy grows with rho, and has its best learning rate by model and samples."""

    best: ClassVar = {
        (ONE, "validation"): 0.01,
        (DOUBLE, "validation"): 0.1,
        (ONE, "seeds"): 0.05,
        (DOUBLE, "seeds"): 0.3,
    }

    def __init__(self, own_best=0.01):
        self.own_best = own_best

    def __call__(self, softmax, spec):
        away = abs(np.log10(spec.lr / self.best[softmax, spec.part]))
        wrong = sum(abs(value - self.own_best) for _, value in spec.own)
        gain = (
            0.0 if spec.rho is None else 0.01 * spec.rho * (1 + 0.1 * (spec.seed % 3)) * (2 if softmax == DOUBLE else 1)
        )
        return {"accuracy": 0.8 - 0.02 * away - 0.001 * wrong + gain + 0.001 * spec.seed, "loss": 1.0, "seconds": 0.1}

    def has(self, run):
        return True


@pytest.fixture(scope="module")
def settings():
    return load_settings()


@pytest.fixture(scope="module")
def block(settings):
    return next(one for one in pairs(settings) if (one.method.name, one.column.data) == ("feddyn", "syn_0_0"))


def test_the_pairs_are_table_ones_synthetic_columns(settings):
    found = pairs(settings)
    assert len(found) == 28
    assert {(one.column.stragglers, one.part, one.seeds) for one in found} == {(0.9, "seeds", SEEDS)}
    assert len(SEEDS) == 16
    # The official code's comments have settings for two methods on every set, all of them points of the grid.
    grid = settings.grids["syn"]
    assert len(COMMENTS) == 8
    assert all(lr in grid.lr and rho in grid.rho for lr, rho in COMMENTS.values())


def test_each_link_takes_the_settings_it_says(block):
    known = Invented()
    default = (("alpha", 0.01),)
    assert BY_NAME["ours"].sides(block, known) == (Point(0.01, default, None), Point(0.01, default, 0.9))
    other = Invented(own_best=1.0)
    assert BY_NAME["ours"].sides(block, other)[0] == Point(0.01, (("alpha", 1.0),), None)
    assert BY_NAME["defaults"].sides(block, other)[0] == Point(0.01, default, None)
    assert BY_NAME["double"].sides(block, other)[1] == Point(0.1, default, 0.9)
    assert BY_NAME["on-test"].sides(block, other) == (Point(0.3, default, None), Point(0.3, default, 0.9))
    assert BY_NAME["comments"].sides(block, other) == (Point(0.005, default, None), Point(0.005, default, 0.3))
    assert BY_NAME["comments"].sides(replace(block, method=replace(block.method, name="scaffold")), other) is None

    class Apart(Invented):
        """Upcycled runs do best at another learning rate."""

        def __call__(self, softmax, spec):
            self.best = Invented.best | ({} if spec.rho is None else {(DOUBLE, "seeds"): 1.0})
            return super().__call__(softmax, spec)

    assert [p.lr for p in BY_NAME["on-test"].sides(block, Apart())] == [0.3, 1.0]
    assert [p.lr for p in BY_NAME["shared-lr"].sides(block, Apart())] == [1.0, 1.0]


def test_tries_on_test_samples_are_the_reported_runs_and_those_on_validation_never_see_them(block):
    on_test, on_validation = BY_NAME["on-test"].tries(block), BY_NAME["double"].tries(block)
    assert {run.spec.seed for run in on_test} == set(TUNING) <= set(SEEDS)
    assert {run.spec.seed for run in on_validation} == {100, 101}
    assert {run.spec.part for run in on_validation} == {"validation"}
    assert len(on_test) == len(on_validation) == 8 * 6 * 2  # learning rates, vanilla and five rho, seeds
    assert min(run.spec.lr for run in on_test) == SHORTEST
    finals = {Run(DOUBLE, spec) for side in BY_NAME["on-test"].finals(block, Invented()) for spec in side}
    assert len(finals) == 32
    assert len(finals & set(on_test)) == 2 * len(TUNING)


def test_gains_and_steps_by_hand(settings):
    wanted = pairs(settings, ("fedavg", "syn_iid", "syn_1_1"))
    found, beside = chain(wanted, Invented())
    by_seed = np.array([0.9 * (1 + 0.1 * (seed % 3)) for seed in SEEDS])
    for one, factor in zip(found, (1, 1, 2, 2, 2), strict=True):
        np.testing.assert_allclose(one.by_seed, factor * by_seed, atol=1e-9)
        assert set(one.by_pair) == {("fedavg", "syn_iid"), ("fedavg", "syn_1_1")}
    assert found[2].minus(found[1]).mean == pytest.approx(by_seed.mean())
    assert found[2].minus(found[1]).is_significant
    assert not found[3].minus(found[2]).is_significant
    assert beside[0].by_seed.shape == (len(TUNING),)
    text = "\n".join(block_of(found, beside, wanted, settings))
    assert f"{by_seed.mean():+.2f}" in text
    printed = list(paper_gains(wanted).values())
    assert printed == pytest.approx([0.77, 1.09], abs=1e-9)
    assert "where the paper prints +0.93" in text
    assert f"{np.mean(printed) - 2 * by_seed.mean():+.2f} stays unexplained" in text


def test_a_pair_without_all_its_runs_is_in_no_link(settings):
    class Gap(Invented):
        def __call__(self, softmax, spec):
            if spec.data == "syn_1_1" and softmax == DOUBLE and spec.part == "seeds" and spec.seed == 9:
                return None
            return super().__call__(softmax, spec)

    wanted = pairs(settings, ("fedavg", "syn_iid", "syn_1_1"))
    found, beside = chain(wanted, Gap())
    assert all(set(one.by_pair) == {("fedavg", "syn_iid")} for one in found)
    assert "Not computed yet: 1 of 2 pairs" in "\n".join(block_of(found, beside, wanted, settings))
    assert isinstance(gains_of(CHAIN[2], wanted, Gap()), Gains)


def test_one_softmax_takes_the_reproductions_own_cells(settings, block, tmp_path):
    known = Known(Cells(tmp_path / "cells.parquet"), Store(tmp_path, settings))
    missing = next_runs([block], known)
    spec = missing[0].spec
    known.store.cells(spec).add(spec.key, {"accuracy": 0.5, "loss": 1.0})
    assert Run(ONE, spec) not in next_runs([block], known)
    assert known(ONE, spec)["accuracy"] == 0.5
    assert known(DOUBLE, spec) is None


def test_the_small_version_runs_is_kept_and_goes_on(tmp_path, monkeypatch, capsys):
    data = up.data.synthetic("iid", clients=5, dim=4, sizes=30, seed=0)
    arrays = {}
    for part, shards in (("train", data.train), ("test", data.test)):
        found = {"x": shards.x, "y": shards.y, "client": np.repeat(np.arange(5), shards.sizes)}
        arrays |= {f"syn_iid_{part}_{key}": value for key, value in found.items()}
    np.savez(tmp_path / "upcycled_synthetic.npz", **arrays)
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ["as-published", "--quick", "--only", "syn_iid", "fedavg", "--results", "here"]
    assert main([*words, "--budget"]) == 0
    assert not (tmp_path / "here" / "quick" / "as-published").exists()
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "a softmax inside the model too (`double`)" in out
    assert has_all(err, "Syn(iid), 90", "stragglers, FedAvg")
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "as-published: 0" in err
    kept = json.loads((tmp_path / "here" / "quick" / "as-published.json").read_text())
    assert json.loads(out) == kept
    assert [one["link"] for one in kept["chain"]] == ["ours", "defaults", "double", "on-test", "shared-lr"]
    assert main(["as-published", "--only", "femnist"]) == 2
    assert "Syn" in capsys.readouterr().err

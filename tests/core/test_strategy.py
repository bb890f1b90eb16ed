from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from upcycled.coefficients import Observed, as_rule, extrapolate
from upcycled.core.algorithm import Server
from upcycled.core.errors import InputError
from upcycled.core.upcycling import Strategy


def at(*values):
    return Server(np.array(values, dtype=np.float32))


def test_an_upcycled_iteration_extrapolates_the_last_data_step():
    # w(2m-2) = (1, 2), w(2m-1) = (3, 1), rho = 0.5: w(2m) = (3 + 0.5 * 2, 1 - 0.5 * 1) = (4, 0.5).
    strategy = Strategy(up.FedAvg(), as_rule(0.5))
    state = strategy.start(at(1, 2))
    assert strategy.kind(state) == "data"
    state = strategy.after_data(state, at(3, 1), noise_std=0.0)
    assert strategy.kind(state) == "upcycled"
    state = strategy.upcycle(state, horizon=None)
    assert state.server.model.tolist() == [4.0, 0.5]
    assert strategy.kind(state) == "data"
    # Next data step from (4, 0.5) to (6, 0.5): the extrapolation starts at the upcycled iterate, (6 + 0.5 * 2, 0.5).
    state = strategy.upcycle(strategy.after_data(state, at(6, 0.5), 0.0), None)
    assert state.server.model.tolist() == [7.0, 0.5]
    assert (state.iteration, state.data_rounds) == (4, 2)


def test_server_vectors_that_move_go_along_and_the_others_stay():
    before = Server(np.float32([0]), {"c": np.float32([1]), "v": np.float32([1])})
    now = Server(np.float32([1]), {"c": np.float32([3]), "v": np.float32([3])})
    moved = extrapolate(Observed((before, now), 1, None, 0, 0.0), 0.5, moves=("c",))
    assert moved.vectors["c"].tolist() == [4.0]
    assert moved.vectors["v"].tolist() == [3.0]


def test_only_scaffolds_control_variate_moves():
    from upcycled.algorithms import ALGORITHMS

    assert {name: kind().moves for name, kind in ALGORITHMS.items() if kind().moves} == {"scaffold": ("c",)}


@pytest.mark.parametrize(("iterations", "rounds"), [(1, 1), (2, 1), (3, 2), (160, 80), (161, 81)])
def test_an_upcycled_run_has_half_the_data_rounds_rounded_up(iterations, rounds):
    assert Strategy(up.FedAvg(), as_rule(0.5)).data_rounds(iterations) == rounds
    assert Strategy(up.FedAvg()).data_rounds(iterations) == iterations


@pytest.mark.parametrize(
    ("coefficient", "expected"),
    [
        (up.coefficients.Constant(0.7), [0.7, 0.7, 0.7]),
        (up.coefficients.LambdaHalf([1.0, 0.5]), [0.5, 0.25, 0.25]),
        (up.coefficients.Proximal(mu=0.5, lam=lambda m: 0.5 * m), [1 / 2, 1 / 3, 1 / 4]),
        (up.coefficients.Decaying(0.8), [0.4, 0.4, 0.4]),
        (up.coefficients.Decaying(0.8, open_ended=True), [0.8, 0.8 / 2**0.5, 0.8 / 3**0.5]),
    ],
)
def test_the_coefficient_forms_of_the_paper(coefficient, expected):
    # Decaying over a horizon of M = 4 is c / sqrt(4) in every round.
    assert [coefficient.coefficient_at(m, 4) for m in (1, 2, 3)] == pytest.approx(expected)


class HalfARule:
    """It does not say what it looks at."""

    depth = 2

    def start(self):
        return {}

    def move(self, own, seen, moves):
        raise AssertionError


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: as_rule(float("nan")), r"upcycle.*nan.*>= 0"),
        (lambda: as_rule(-0.1), r"upcycle.*-0\.1"),
        (lambda: as_rule("much"), r"upcycle.*'much'"),
        (lambda: as_rule(HalfARule()), "depth, uses_spread, start"),
        (lambda: up.coefficients.Proximal(mu=0.0), r"Proximal \bmu\b.*0\.0"),
        (lambda: up.coefficients.Proximal(mu=1.0, lam=[0.1, -1.0]), r"Proximal lam.*-1\.0"),
        (lambda: up.coefficients.LambdaHalf(lam=[]), "LambdaHalf lam"),
    ],
)
def test_a_wrong_coefficient_is_named_with_what_is_right(wrong, words):
    with pytest.raises(InputError) as error:
        wrong()
    assert re.search(words, str(error.value))


def test_a_vanilla_run_remembers_nothing_that_a_rule_would_use():
    strategy = Strategy(up.FedAvg())
    start = strategy.start(at(1, 2))
    assert (start.iteration, start.data_rounds, start.attempt, start.phase, start.noise_std) == (0, 0, 0, 0, 0.0)
    assert (start.clip_scale, start.seen) == (1.0, ())
    after = strategy.after_data(start, at(3, 1), 0.5, mean=np.float32([3, 1]), spread=2.0)
    assert (after.iteration, after.data_rounds, after.noise_std) == (1, 1, 0.5)
    assert (after.seen, after.mean, after.spread) == ((), None, None)
    assert not strategy.uses_spread
    assert not strategy.uses_noise_energy
    assert strategy.kind(after) == "data"


class Blind:
    """A rule that looks at no iterate."""

    depth = 0
    uses_spread = False

    def start(self):
        return {}

    def move(self, own, seen, moves):
        assert seen.iterates == ()
        return up.Move(Server(seen.mean), None), own


def test_a_rule_of_depth_zero_keeps_and_sees_no_iterate(tmp_path):
    strategy = Strategy(up.FedAvg(), as_rule(Blind()))
    state = strategy.start(at(1, 2))
    for _ in range(3):
        assert state.seen == ()
        state = strategy.after_data(state, at(3, 1), 0.0, mean=np.float32([3, 1]))
        assert state.seen == ()
        state = strategy.upcycle(state, None)
    data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    arguments = {"algorithm": up.FedAvg(), "upcycle": Blind(), "checkpoint": tmp_path, "progress": False}
    whole = up.train(data, iterations=4, **arguments)
    assert up.train(data, iterations=4, **arguments).params.equal(whole.params)


def test_a_data_round_forgets_its_failed_attempts_and_keeps_what_is_carried():
    strategy = Strategy(up.FedAvg(), as_rule(0.5))
    carried = {"attempt": 3, "noise_energy": 0.25, "clip_scale": 0.5, "statistics": np.float32([7])}
    state = replace(strategy.start(at(1, 2)), **carried, aggregator={"trust": np.ones(2)})
    after = strategy.after_data(state, at(3, 1), 0.0, mean=np.float32([3, 1]), spread=2.0)
    assert (after.attempt, after.phase, after.noise_energy, after.clip_scale) == (0, 0, 0.25, 0.5)
    assert after.statistics is state.statistics
    assert after.aggregator is state.aggregator
    assert (after.mean.tolist(), after.spread) == ([3, 1], 2.0)
    assert [one.model.tolist() for one in after.seen] == [[1, 2], [3, 1]]

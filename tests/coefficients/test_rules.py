"""Rules that set the step from what was released: hand-derived numbers, invariances, safeguards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up
from upcycled.coefficients import Anderson, FedExP, Hypergradient, Observed, Repeated, Trend
from upcycled.coefficients.energy import LEAST_PART, cosine, without_noise
from upcycled.core.algorithm import Server
from upcycled.core.errors import InputError
from upcycled.core.strategy import Upcycled

RULES = [Trend(), Hypergradient(), FedExP(), Anderson()]
NAMES = [type(rule).__name__ for rule in RULES]


def server(*values, **vectors):
    return Server(np.array(values, dtype=np.float32), {k: np.array(v, dtype=np.float32) for k, v in vectors.items()})


def seen(before, now, *, round=1, phase=0, noise_std=0.0, mean=None, spread=None):
    before, now = (one if isinstance(one, Server) else server(*one) for one in (before, now))
    mean = None if mean is None else np.array(mean, dtype=np.float32)
    return Observed((before, now), round, None, phase, noise_std, mean, spread)


def play(rule, points, moves=(), **shown):
    """Let a rule answer pulls: ``points`` are the updates that come back; return the coefficients and iterates."""
    own, y, rhos, iterates = rule.start(), np.zeros(len(points[0]), dtype=np.float32), [], []
    for m, update in enumerate(points, start=1):
        now = y + np.array(update, dtype=np.float32)
        move, own = rule.move(own, seen(server(*y), server(*now), round=m, **shown), moves)
        rhos.append(move.rho)
        iterates.append(move.server.model)
        y = move.server.model
    return rhos, iterates, own


# Hand-derived numbers, rule by rule.


def test_the_trend_goes_on_by_the_agreement_above_its_threshold():
    # Agreement, averaged from 0 with memory 1/2: 0, 1/2, 3/4. g = (c - 0.2) / 0.8 = 0.375, 0.6875; rho = g / (1 - g).
    rhos, iterates, own = play(Trend(memory=0.5, threshold=0.2, reach=0.9, most=9.0), [(1.0, 0.0)] * 3)
    assert rhos == pytest.approx([0.0, 0.6, 2.2])
    # Sent were 0, 1 and 1 + 1 + 0.6 = 2.6, so the moving mean is 0.9 * (0.9 * 0 + 0.1 * 1) + 0.1 * 2.6.
    assert iterates[1].tolist() == pytest.approx([2.6, 0.0])
    assert own["mean"].tolist() == pytest.approx([0.35, 0.0])


def test_the_trend_makes_no_move_when_the_pull_is_across_or_against_the_way_travelled():
    assert play(Trend(memory=0.0), [(1.0, 0.0), (0.0, 1.0)])[0] == [0.0, 0.0]
    assert play(Trend(memory=0.0), [(1.0, 0.0), (-1.0, 0.0)])[0] == [0.0, 0.0]


def test_the_trend_looks_past_the_last_step():
    # Sent 0, 4, 3 (rho stays 0 by a high threshold): the last step was -1, the way from the mean 0.4 is +2.6.
    rule = Trend(memory=0.0, threshold=0.99, growth=99.0)
    _, _, own = play(rule, [(4.0,), (-1.0,), (1.0,)])
    assert float(own["agreement"]) == pytest.approx(1.0)


def test_the_trend_moves_the_model_alone():
    rule = Trend(memory=0.0)
    _, own = rule.move(rule.start(), seen(server(0.0, c=[0.0]), server(1.0, c=[1.0])), ("c",))
    move, _ = rule.move(own, seen(server(1.0, c=[1.0]), server(2.0, c=[2.0])), ("c",))
    assert move.server.model.tolist() == pytest.approx([6.0])
    assert move.server.vectors["c"].tolist() == [2.0]


def test_the_hypergradient_step_grows_by_the_averaged_cosine():
    # Both updates are (1, 0): the cosine is 1, its average (memory 1/2, from 0) 1/2, so log(1 + rho) = 0.2 / 2.
    rhos, _, _ = play(Hypergradient(rate=0.2, memory=0.5), [(1.0, 0.0), (1.0, 0.0)])
    assert rhos == pytest.approx([0.0, np.expm1(0.1)])


def test_the_hypergradient_step_shrinks_when_updates_turn_back_and_stays_above_its_least():
    # The cosine is -1: log(1 + rho) = -0.2 / 2 after the second round, and the floor log(1/2) is reached later.
    rhos, _, _ = play(Hypergradient(), [(1.0,), (-1.0,)])
    assert rhos == pytest.approx([0.0, np.expm1(-0.1)])
    assert min(play(Hypergradient(rate=10.0), [(1.0,), (-1.0,), (1.0,), (-1.0,)])[0]) == pytest.approx(-0.5)


def test_fedexp_is_half_the_ratio_of_the_clients_energy_to_their_means():
    # Energy of the mean 1, of the clients 6: 6 / (2 + 0.001 * 6) - 1.
    rule = FedExP(most=9.0, small=1e-3)
    move, _ = rule.move(rule.start(), seen((0.0, 0.0), (1.0, 0.0), spread=6.0), ())
    assert move.rho == pytest.approx(6 / 2.006 - 1)
    # Energy of the clients 1.5: below 2, so the plain step.
    assert rule.move(rule.start(), seen((0.0,), (1.0,), spread=1.5), ())[0].rho == 0.0


def test_fedexp_uses_the_aggregate_and_not_the_server_step():
    rule = FedExP(most=9.0, small=1e-9)
    move, _ = rule.move(rule.start(), seen((0.0,), (7.0,), mean=(1.0,), spread=4.0), ())
    assert move.rho == pytest.approx(1.0)
    assert move.server.model.tolist() == pytest.approx([14.0])


def test_two_points_of_anderson_find_the_fixed_point_of_a_linear_iteration():
    # y -> y - (y - 4) / 2 from 0: updates 2, then 1 at y = 2; the secant's root is 4. A tiny ridge leaves it there.
    rule = Anderson(points=2, ridge=1e-12, most=10.0)
    _, iterates, _ = play(rule, [(2.0,), (1.0,)])
    assert iterates[0].tolist() == [2.0]
    assert iterates[1].tolist() == pytest.approx([4.0], rel=1e-5)


def test_andersons_weights_with_a_ridge_by_hand():
    # Updates 2 and 1: gram [[4, 2], [2, 1]], ridge 0.1 * (4 + 1) / 2 = 0.25. Solving [[4.25, 2], [2, 1.25]] a = (1, 1)
    # gives (-0.75, 2.25) / det, so a = (-0.5, 1.5). Ends are 2 and 3: 3 - 0.5 * (2 - 3) = 3.5.
    _, iterates, _ = play(Anderson(points=2, ridge=0.1), [(2.0,), (1.0,)])
    assert iterates[1].tolist() == pytest.approx([3.5])


def test_anderson_moves_no_further_than_its_limit_in_lengths_of_the_update():
    _, iterates, _ = play(Anderson(points=2, ridge=1e-12, most=0.25), [(2.0,), (1.0,)])
    assert iterates[1].tolist() == pytest.approx([3.25])


def test_anderson_combines_the_vectors_that_move_with_the_model():
    rule = Anderson(points=2, ridge=1e-12, most=10.0)
    _, own = rule.move(rule.start(), seen(server(0.0, c=[0.0]), server(2.0, c=[8.0])), ("c",))
    move, _ = rule.move(own, seen(server(2.0, c=[8.0]), server(3.0, c=[12.0])), ("c",))
    # Weights -1 and 2, as above: c = 2 * 12 - 8.
    assert move.server.vectors["c"].tolist() == pytest.approx([16.0], rel=1e-4)


def test_what_is_left_of_an_energy_is_at_least_a_fixed_part():
    assert without_noise(8.0, 2.0) == 6.0
    assert without_noise(8.0, 100.0) == 8.0 * LEAST_PART
    assert cosine(1.0, 0.0, 1.0) == 0.0
    assert cosine(9.0, 1.0, 1.0) == 1.0
    assert cosine(float("inf"), 1.0, 1.0) == 0.0


# What holds for every rule.


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@settings(max_examples=25)
@given(factor=st.sampled_from([2.0**-20, 0.5, 8.0, 2.0**20]), seed=st.integers(0, 99))
def test_units_and_the_order_of_coordinates_do_not_matter(rule, factor, seed):
    """Powers of two scale floats exactly, so iterates must scale with them; a permutation changes sums by rounding."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(6, 5)).astype(np.float32) + 1
    order = rng.permutation(5)
    spread = float((updates**2).sum())
    _, base, _ = play(rule, updates, spread=spread)
    _, scaled, _ = play(rule, factor * updates, spread=factor**2 * spread)
    assert np.array_equal(np.array(scaled), np.float32(factor) * np.array(base))
    _, shuffled, _ = play(rule, updates[:, order], spread=spread)
    assert np.allclose(np.array(shuffled), np.array(base)[:, order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rules_own_state_is_arrays_and_survives_a_checkpoint(rule):
    from upcycled.core.strategy import State
    from upcycled.runtime.checkpointing.snapshot import MemoryRows, Snapshot, from_bytes, to_bytes

    _, _, own = play(rule, np.random.default_rng(0).normal(size=(5, 4)) + 1, spread=9.0)
    assert own
    assert all(isinstance(value, np.ndarray) for value in own.values())
    nobody = MemoryRows(np.zeros(0, dtype=np.int64), {})
    state = State(server(1.0), rule=own, mean=server(2.0).model, spread=3.0)
    back = from_bytes(to_bytes(Snapshot(state, nobody, nobody, {}, {}))).state
    assert {name: (value.dtype, value.tolist()) for name, value in back.rule.items()} == {
        name: (value.dtype, value.tolist()) for name, value in own.items()
    }
    assert (back.mean.tolist(), back.spread) == ([2.0], 3.0)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_is_a_pure_function_of_its_state_and_what_it_sees(rule):
    updates = np.random.default_rng(1).normal(size=(4, 3)) + 1
    _, _, own = play(rule, updates, spread=30.0)
    before = {name: value.copy() for name, value in own.items()}
    look = seen((0.0, 0.0, 0.0), (1.0, 2.0, 0.5), round=5, spread=30.0)
    one, two = (rule.move(own, look, ())[0] for _ in range(2))
    assert one.server.model.tobytes() == two.server.model.tobytes()
    assert all(np.array_equal(own[name], before[name]) for name in before)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_further_iterations_after_the_same_data_round_repeat_the_iterate(rule):
    _, _, own = play(rule, np.ones((6, 2)), spread=30.0)
    look = seen((0.0, 0.0), (1.0, 1.0), phase=1, spread=30.0)
    move, after = rule.move(own, look, ())
    assert move.server is look.iterates[-1]
    assert after is own


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_sudden_growth_of_the_update_is_answered_by_the_plain_step(rule):
    updates = np.ones((12, 2))
    _, _, own = play(rule, updates, spread=100.0)
    now = server(50.0, 50.0)
    move, _ = rule.move(own, seen(server(0.0, 0.0), now, round=13, spread=1e6), ())
    assert move.server.model.tobytes() == now.model.tobytes()


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e38])
def test_numbers_at_the_edge_do_not_break_a_rule(rule, bad):
    with np.errstate(over="ignore", invalid="ignore"):
        _, _, own = play(rule, np.ones((4, 2)), spread=4.0)
        now = server(bad, 1.0)
        move, _ = rule.move(own, seen(server(0.0, 0.0), now, round=5, spread=float(np.float64(bad) ** 2)), ())
    assert np.array_equal(move.server.model, now.model, equal_nan=True)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_model_that_stands_still_stays_where_it_is(rule):
    _, iterates, _ = play(rule, np.zeros((5, 3)), spread=0.0)
    assert all(one.tolist() == [0.0, 0.0, 0.0] for one in iterates)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@settings(max_examples=12)
@given(seed=st.integers(0, 999), largest=st.floats(0.05, 1.95), sampling=st.floats(0.0, 3.0))
def test_a_rule_never_diverges_on_a_quadratic_where_the_plain_step_does_not(rule, seed, largest, sampling):
    """y -> y - A y + noise with eigenvalues of A up to ``largest`` < 2: vanilla contracts, so must the rule."""
    rng = np.random.default_rng(seed)
    eigenvalues = rng.uniform(0.01, largest, size=8)
    turn, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    matrix = turn @ np.diag(eigenvalues) @ turn.T
    strategy = Upcycled(up.FedAvg(), rule)
    state = strategy.start(Server(rng.normal(size=8).astype(np.float32) * 10))
    pulls = []
    for _ in range(300):
        y = state.server.model.astype(np.float64)
        mean = (y - matrix @ y + sampling * rng.normal(size=8)).astype(np.float32)
        pulls.append(float(np.linalg.norm(mean - y)))
        state = strategy.after_data(state, Server(mean), 0.0, mean, float(3 * ((mean - y) ** 2).sum()))
        state = strategy.upcycle(state, None)
    # A move is made at pulls of up to twice the usual one, which rises by one per cent in energy a round at most, and
    # multiplies the pull by up to |1 - (1 + rho) largest| <= 9: bounded by 2 * 9 * 1.01^150 of the first, or of noise.
    assert max(pulls) < 18 * 1.01**150 * max(pulls[0], 6 * sampling)


# Privacy noise.


def test_subtracting_the_known_noise_makes_energies_unbiased():
    """Pulls of signal 3 e_1 with noise std 0.5 in 400 dimensions: raw energy 109, signal 9; products need nothing."""
    rng = np.random.default_rng(7)
    size, std, count = 400, 0.5, 4000
    signal = np.zeros(size)
    signal[0] = 3.0
    pulls = signal + std * rng.normal(size=(count, size))
    displaced = signal + std * rng.normal(size=(count, size))
    raw = (pulls**2).sum(axis=1)
    error = raw.std() / np.sqrt(count)
    assert abs(raw.mean() - size * std**2 - 9.0) < 4 * error
    assert abs(raw.mean() - 9.0) > 50 * error
    products = (pulls * displaced).sum(axis=1)
    assert abs(products.mean() - 9.0) < 4 * products.std() / np.sqrt(count)


@pytest.mark.parametrize(("told", "least", "most"), [(True, 0.85, 1.0), (False, 0.2, 0.75)])
def test_the_noise_in_the_way_travelled_is_counted_with_the_moves_made(told, least, most):
    """A steady pull of norm 1 under noise of energy 1: only a rule that is told finds the agreement of about one."""
    rule, rng = Trend(memory=0.98, growth=50.0, most=1e-6), np.random.default_rng(3)
    size, std = 2000, 1 / np.sqrt(2000)
    own, y = rule.start(), np.zeros(size, dtype=np.float32)
    pull = np.zeros(size)
    pull[0] = 1.0
    for m in range(1, 400):
        now = (y + pull + std * rng.normal(size=size)).astype(np.float32)
        move, own = rule.move(own, Observed((Server(y), Server(now)), m, None, 0, std if told else 0.0), ())
        y = move.server.model
    assert least < float(own["agreement"]) <= most


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_noise_counted_in_the_way_travelled_is_what_a_walk_of_noise_alone_covers(monkeypatch, rho):
    """Nobody pulls, so all of t is noise: its squared norm must be what the rule has counted, moves by rho included."""
    monkeypatch.setattr(Trend, "_rho", lambda self, agreement: rho)
    rule, rng, size, std = Trend(growth=1e6), np.random.default_rng(5), 40_000, 0.3
    own, y = rule.start(), np.zeros(size, dtype=np.float32)
    for m in range(1, 26):
        way = None if m == 1 else float(((y - own["mean"]).astype(np.float64) ** 2).sum())
        now = (y + std * rng.normal(size=size)).astype(np.float32)
        move, own = rule.move(own, Observed((Server(y), Server(now)), m, None, 0, std), ())
        y = move.server.model
    # 40,000 coordinates: the sum's own scatter is sqrt(2 / 40,000) = 0.7 %, and correlated over a few rounds.
    assert way == pytest.approx(float(own["carried"]), rel=0.04)
    # sum_j 0.9^(2 j) (1 + rho)^2 V: the first round, before anything was seen, made the plain step.
    full = (1 + rho) ** 2 * size * std**2 * sum(0.81**j for j in range(23)) + 0.81**23 * size * std**2
    assert float(own["carried"]) == pytest.approx(full)


def spread_of_a_private_round(federation, std, seed):
    found = []

    class Spy(FedExP):
        def move(self, own, look, moves):
            found.append(look.spread)
            return FedExP.move(self, own, look, moves)

    up.train(
        federation,
        algorithm=up.FedAvg(),
        upcycle=Spy(),
        iterations=2,
        privacy=up.privacy.ModelClipping(clip_norm=5.0, noise_std=std),
        local=up.LocalSGD(lr=0.1, momentum=0.0, epochs=1, batch_size=8),
        engine="sequential",
        seed=seed,
        progress=False,
    )
    return found[0]


def test_fedexp_sees_through_the_noise_of_the_clients(federation):
    """With noise known and subtracted the spread of noisy releases is the spread of quiet ones, on the mean."""
    spreads = {}
    for std in (1e-6, 0.05):
        spreads[std] = np.array([spread_of_a_private_round(federation, std, seed) for seed in range(30)])
    # Without the subtraction the mean would be larger by D std^2.
    size = up.train(federation, algorithm=up.FedAvg(), iterations=1, progress=False).params.numel()
    gap = spreads[0.05].mean() - spreads[1e-6].mean()
    error = (spreads[0.05] - spreads[1e-6]).std() / np.sqrt(30)
    assert abs(gap) < 4 * error
    assert size * 0.05**2 > 8 * error


def test_a_central_mechanism_gives_fedexp_nothing_to_extrapolate(federation):
    privacy = up.privacy.CentralDPFedAvg(clip_norm=5.0, noise_multiplier=0.001)
    run = up.train(federation, algorithm=up.FedAvg(), upcycle=FedExP(), iterations=6, privacy=privacy, progress=False)
    assert [r.coefficient for r in run.history if r.kind == "upcycled"] == [0.0, 0.0, 0.0]


def test_under_a_central_mechanism_the_spread_is_the_energy_of_the_noisy_mean_less_its_noise(federation):
    looks = []

    class Spy(FedExP):
        def move(self, own, look, moves):
            looks.append(look)
            return FedExP.move(self, own, look, moves)

    privacy = up.privacy.CentralDPFedAvg(clip_norm=5.0, noise_multiplier=0.3)
    up.train(federation, algorithm=up.FedAvg(), upcycle=Spy(), iterations=12, privacy=privacy, progress=False)
    for look in looks:
        d = look.mean.astype(np.float64) - look.iterates[-2].model
        assert look.noise_std > 0
        assert look.spread == pytest.approx(max(0.0, d @ d - d.size * look.noise_std**2), rel=1e-4, abs=1e-6)
    assert any(look.spread > 0 for look in looks)


# Several iterations per data round.


def test_repeated_goes_on_along_the_last_move_while_rho_is_large():
    # 0 -> 1 by data, then + 0.8, then + 0.64, then + 0.512.
    rule = Repeated(up.coefficients.Constant(0.8), times=3)
    strategy = Upcycled(up.FedAvg(), rule)
    state = strategy.after_data(strategy.start(server(0.0)), server(1.0), 0.0)
    places = []
    while strategy.kind(state) == "upcycled":
        state = strategy.upcycle(state, None)
        places.append(float(state.server.model[0]))
    assert places == pytest.approx([1.8, 2.44, 2.952])


def test_repeated_repeats_the_iterate_where_rho_is_small():
    rule = Repeated(up.coefficients.Constant(0.4), times=3)
    strategy = Upcycled(up.FedAvg(), rule)
    state = strategy.upcycle(strategy.after_data(strategy.start(server(0.0)), server(1.0), 0.0), None)
    moved = state.server
    state = strategy.upcycle(strategy.upcycle(state, None), None)
    assert state.server is moved
    assert state.rho == 0.0
    assert strategy.kind(state) == "data"


def test_the_schedule_of_data_rounds_is_fixed_whatever_the_rule_wants(federation):
    for times in (1, 2, 3):
        run = up.train(
            federation,
            algorithm=up.FedAvg(),
            upcycle=Repeated(Trend(), times=times),
            iterations=12,
            engine="sequential",
            progress=False,
        )
        kinds = [r.kind == "data" for r in run.history]
        assert kinds == [i % (1 + times) == 0 for i in range(12)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Trend(threshold=1.0), "Trend threshold is 1.0"),
        (lambda: Trend(most=0), "Trend most is 0"),
        (lambda: Hypergradient(least=-1.0), "Hypergradient least is -1.0"),
        (lambda: FedExP(small=0.0), "FedExP small is 0.0"),
        (lambda: Anderson(points=1), "Anderson points is 1"),
        (lambda: Repeated(Trend(), times=0), "Repeated times is 0"),
        (lambda: Repeated("much"), "Repeated rule is 'much'"),
        (lambda: Repeated(Repeated(Trend())), "Repeated rule is Repeated("),
    ],
)
def test_a_wrong_setting_of_a_rule_is_named_with_what_is_right(wrong, words):
    with pytest.raises(InputError) as error:
        wrong()
    assert words in str(error.value)


@pytest.mark.parametrize("rule", [*RULES, Repeated(Trend())], ids=[*NAMES, "Repeated"])
def test_rules_are_frozen_dataclasses_with_defaults(rule):
    assert dataclasses.is_dataclass(rule)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.depth_of_nothing = 1


def test_auto_is_the_constant_that_the_page_names():
    data = up.data.synthetic(0.5, 0.5, clients=4, seed=0)

    def run(upcycle):
        return up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=upcycle, iterations=6, progress=False)

    auto = run("auto")
    assert torch.equal(auto.params, run(0.1).params)
    assert not torch.equal(auto.params, run(None).params)
    assert [record.coefficient for record in auto.history if record.kind == "upcycled"] == [0.1] * 3

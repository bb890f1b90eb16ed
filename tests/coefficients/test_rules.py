"""A rule of one's own (``examples/own_rule.py``) by hand-derived numbers, and what rules are told of privacy noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import upcycled as up
from examples.own_rule import FedExP
from upcycled.coefficients import Observed
from upcycled.core.algorithm import Server
from upcycled.core.upcycling import State
from upcycled.training.checkpoint.snapshot import MemoryRows, Snapshot, from_bytes, to_bytes


def server(*values):
    return Server(np.array(values, dtype=np.float32))


def moved(rule, now, mean=None, **shown):
    """Return the rule's move after a data round that led from zero to ``now``."""
    aggregate = np.array(now if mean is None else mean, dtype=np.float32)
    seen = Observed((server(*np.zeros(len(now))), server(*now)), 1, None, **{"noise_std": 0.0} | shown, mean=aggregate)
    return rule.move(rule.start(), seen, ())[0]


def test_the_step_is_half_the_ratio_of_the_clients_energy_to_their_means():
    # Energy of the mean 1, of the clients 6: 6 / (2 + 0.001 * 6) - 1.
    rule = FedExP(most=9.0, small=1e-3)
    assert moved(rule, (1.0, 0.0), spread=6.0).coefficient == pytest.approx(6 / 2.006 - 1)
    # Energy of the clients 1.5: below 2, so the plain step.
    assert moved(rule, (1.0,), spread=1.5).coefficient == 0.0
    assert moved(FedExP(most=0.5), (1.0, 0.0), spread=6.0).coefficient == 0.5


def test_it_uses_the_aggregate_and_not_the_server_step():
    move = moved(FedExP(most=9.0, small=1e-9), (7.0,), mean=(1.0,), spread=4.0)
    assert move.coefficient == pytest.approx(1.0)
    assert move.server.model.tolist() == pytest.approx([14.0])


def test_known_noise_is_subtracted_and_at_least_a_quarter_is_left():
    rule = FedExP(most=99.0, small=1e-9)
    assert moved(rule, (2.0, 2.0), noise_std=1.0, spread=24.0).coefficient == pytest.approx(24 / (2 * 6) - 1)
    assert moved(rule, (2.0, 2.0), noise_std=9.0, spread=24.0).coefficient == pytest.approx(24 / (2 * 2) - 1)


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e38])
def test_numbers_at_the_edge_make_no_move(bad):
    with np.errstate(over="ignore", invalid="ignore"):
        move = moved(FedExP(), (bad, 1.0), spread=float(np.float64(bad) ** 2))
    assert np.array_equal(move.server.model, server(bad, 1.0).model, equal_nan=True)
    assert moved(FedExP(), (0.0, 0.0), spread=0.0).coefficient == 0.0


def test_a_rules_own_state_survives_a_checkpoint():
    nobody = MemoryRows(np.zeros(0, dtype=np.int64), {})
    own = {"start": server(3.0).model, "noise": np.array(0.5)}
    state = State(server(1.0), rule=own, mean=server(2.0).model, spread=3.0)
    back = from_bytes(to_bytes(Snapshot(state, nobody, nobody, {}, {}))).state
    assert {name: (value.dtype, value.tolist()) for name, value in back.rule.items()} == {
        name: (value.dtype, value.tolist()) for name, value in own.items()
    }
    assert (back.mean.tolist(), back.spread) == ([2.0], 3.0)


class Spy(FedExP):
    """Notes what it is shown."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "looks", [])

    def move(self, own, seen, moves):
        self.looks.append(seen)
        return super().move(own, seen, moves)


def spread_of_a_private_round(federation, std, seed):
    rule = Spy()
    up.train(
        federation,
        algorithm=up.FedAvg(),
        upcycle=rule,
        iterations=2,
        privacy=up.privacy.ModelClipping(clip_norm=5.0, noise_std=std),
        local=up.LocalSGD(lr=0.1, momentum=0.0, epochs=1, batch_size=8),
        engine="sequential",
        seed=seed,
        progress=False,
    )
    return rule.looks[0].spread


def test_the_spread_is_told_without_the_noise_of_the_clients(federation):
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


def test_a_central_mechanism_gives_nothing_to_extrapolate(federation):
    privacy = up.privacy.CentralDPFedAvg(clip_norm=5.0, noise_multiplier=0.001)
    run = up.train(federation, algorithm=up.FedAvg(), upcycle=FedExP(), iterations=6, privacy=privacy, progress=False)
    assert [r.coefficient for r in run.history if r.kind == "upcycled"] == [0.0, 0.0, 0.0]


def test_under_a_central_mechanism_the_spread_is_the_energy_of_the_noisy_mean_less_its_noise(federation):
    rule = Spy()
    privacy = up.privacy.CentralDPFedAvg(clip_norm=5.0, noise_multiplier=0.3)
    up.train(federation, algorithm=up.FedAvg(), upcycle=rule, iterations=12, privacy=privacy, progress=False)
    for look in rule.looks:
        d = look.mean.astype(np.float64) - look.iterates[-2].model
        assert look.noise_std > 0
        assert look.spread == pytest.approx(max(0.0, d @ d - d.size * look.noise_std**2), rel=1e-4, abs=1e-6)
    assert any(look.spread > 0 for look in rule.looks)


def test_auto_is_the_constant_that_the_page_names():
    data = up.data.synthetic(0.5, 0.5, clients=4, seed=0)

    def run(upcycle):
        return up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=upcycle, iterations=6, progress=False)

    auto = run("auto")
    assert torch.equal(auto.params, run(0.1).params)
    assert not torch.equal(auto.params, run(None).params)
    assert [record.coefficient for record in auto.history if record.kind == "upcycled"] == [0.1] * 3

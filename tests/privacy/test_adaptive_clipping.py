"""Bounds that follow updates: what they cost, what their noise is, where they end up, and that runs go on with them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import upcycled as up
from upcycled.core.mechanism import Release, Trained
from upcycled.core.sampling import everybody
from upcycled.privacy.mechanisms.clipping import FollowReleases, NoisyCount
from upcycled.privacy.noise.sources import SeededNoise
from upcycled.training.loop import iterate
from upcycled.training.plan import make_plan, plan_of
from upcycled.training.state import start_run

QUIET = {"algorithm": up.FedAvg(), "iterations": 6, "progress": False, "local": up.LocalSGD(lr=0.1, epochs=1)}
CENTRAL = {"clip_norm": 0.5, "quantile": 0.5}
CLIENTS = 6


@pytest.fixture(scope="module")
def data():
    return up.data.synthetic(0.5, 0.5, clients=CLIENTS, sizes=40, seed=0)


def fitted(data, privacy, **more):
    return plan_of(data.facts(), up.RunSpec(**QUIET | more, privacy=privacy)).mechanism


def scales(data, privacy, **more):
    """The scale of each coming data round."""
    plan = make_plan(data, up.RunSpec(**QUIET | more, privacy=privacy))
    engine = plan.engine.open(plan.task, 1)
    found = [run.state.clip_scale for run, _ in iterate(plan, engine, start_run(plan))]
    engine.close()
    return found


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("secret", [False, True])
def test_sum_and_count_together_cost_what_the_noise_multiplier_says(data, secret, share):
    """The stds by the formula of Andrew et al., and the charge by the norm of what one client moves."""
    z, asked = 3.0, {"noise_multiplier": 3.0, "secret_sampling": secret}
    draws = {"sampling": "poisson", "participation": 0.5} if secret else {}
    one = fitted(data, up.privacy.CentralDPFedAvg(**CENTRAL, **asked, count_share=share), **draws)
    fixed = fitted(data, up.privacy.CentralDPFedAvg(clip_norm=0.5, **asked), **draws)
    sigma_b, std = one.adaptive.count.noise_std, one.adaptive.noise.noise_std
    assert sigma_b == pytest.approx(z / (2 * math.sqrt(share)), rel=1e-4)
    assert std / 0.5 == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5, rel=1e-4)
    charge, usual = (each.charge(everybody(CLIENTS)) for each in (one, fixed))
    assert charge.kind == usual.kind
    ratio = charge.sensitivity / charge.noise_std
    np.testing.assert_allclose(ratio, usual.sensitivity / usual.noise_std, rtol=1e-4)
    # A replaced client moves the sum by 2 C and the count by 1; one that takes part adds C and 1/2 at most.
    moves, bit = (0.5, 0.5) if secret else (1.0, 1.0)
    assert (ratio > math.hypot(moves / std, bit / sigma_b)).all()  # the grid's part is above
    np.testing.assert_allclose(ratio, math.hypot(moves / std, bit / sigma_b), rtol=1e-4)


@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize("secret", [False, True])
def test_epsilon_is_met_and_not_exceeded(data, secret, noise):
    draws = {"sampling": "poisson", "participation": 0.5} if secret else {}
    privacy = up.privacy.CentralDPFedAvg(**CENTRAL, epsilon=4.0, delta=1e-3, secret_sampling=secret)
    run = up.train(data, privacy=privacy, noise=noise, **QUIET, **draws)
    assert run.privacy.max_epsilon(1e-3) == pytest.approx(4.0, rel=1e-3)
    assert run.privacy.max_epsilon(1e-3) <= 4.0
    local = up.privacy.UpdateClipping(clip_norm=0.5, epsilon=4.0, delta=1e-3, fill=0.5)
    usual = replace(local, fill=None)
    both = [up.train(data, privacy=each, noise=noise, **QUIET).privacy.max_epsilon(1e-3) for each in (local, usual)]
    assert both[0] == both[1]


def test_an_attack_on_sum_and_count_finds_the_charged_mu_and_no_more(data):
    """The most powerful test between two worlds that differ in one client: its statistic's shift, in stds, is mu."""
    one = fitted(data, up.privacy.CentralDPFedAvg(**CENTRAL, noise_multiplier=4.0, count_share=0.4))
    central, count = one.adaptive.noise, one.adaptive.count
    size, sent = 3, np.zeros(3, dtype=np.float32)
    charged = one.charge(everybody(CLIENTS))
    mu = float(charged.sensitivity[0] / charged.noise_std[0])
    clipped, below = np.zeros((CLIENTS, size)), np.zeros((CLIENTS, size))
    clipped[0, 0], below[0, 0] = 9.0, -0.5 * (1 - 1e-4)  # just below the bound, on the other side
    seen = []
    for vectors in (clipped, below):
        release = Release(np.arange(CLIENTS), vectors, np.full(CLIENTS, 40), np.ones(CLIENTS, dtype=np.int64))
        found = []
        for attempt in range(500):
            noise = SeededNoise(3, 1, attempt)
            mean = central.aggregate(release, sent, noise)
            norms = np.linalg.norm(central.clipped(vectors, sent), axis=1)
            fraction = count.fraction(norms < 0.5 * (1 - 1e-6), size, noise)
            found.append((mean[0] * CLIENTS / central.noise_std, fraction * CLIENTS / count.noise_std))
        seen.append(np.array(found))
    shift = seen[1].mean(0) - seen[0].mean(0)
    for world in seen:
        centred = world - world.mean(0)
        assert abs(np.corrcoef(centred.T)[0, 1]) < 0.15
        for column in centred.T:
            assert stats.kstest(column, "norm").pvalue > 1e-3
    direction = shift / np.linalg.norm(shift)
    apart = (seen[1] @ direction).mean() - (seen[0] @ direction).mean()
    assert apart == pytest.approx(mu, rel=1e-3)  # the same noise in both worlds: the means' errors cancel
    assert apart <= mu


@pytest.mark.parametrize("scale", [0.25, 1.0, 8.0])
def test_a_round_at_a_scale_is_one_at_the_first_bound_of_updates_over_it(data, scale):
    one = fitted(data, up.privacy.UpdateClipping(clip_norm=0.5, noise_std=0.3, fill=0.5))
    rng, sent = np.random.default_rng(0), np.full(42, 0.7, dtype=np.float32)
    updates = rng.normal(0, 1, (CLIENTS, 42)) * scale * np.array([1e-4, 0.1, 1, 9, 99, 0.05])[:, None]
    cohort, steps, samples = everybody(CLIENTS), np.ones(CLIENTS, dtype=np.int64), np.full(CLIENTS, 40)

    def released(at, moved):
        noise = SeededNoise(5, 1)
        return one.at(at).release(Trained((sent + moved), steps), sent, cohort, samples, noise).vectors - sent

    np.testing.assert_allclose(released(scale, updates), scale * released(1.0, updates / scale), atol=3e-6 * scale)
    at = one.at(scale)
    release = Release(cohort.clients, np.zeros((CLIENTS, 42), dtype=np.float32), samples, steps)
    np.testing.assert_allclose(at.release_noise_std(release), scale * 0.3)
    assert at.mean_noise_std(release) == pytest.approx(scale * 0.3 / math.sqrt(CLIENTS))
    assert at.charge(cohort).noise_std.tolist() == one.charge(cohort).noise_std.tolist()
    pure = released(scale, 0 * updates)
    assert stats.kstest(pure.ravel() / (0.3 * scale), "norm").pvalue > 1e-3


def test_the_first_round_is_the_fixed_bounds_bit_for_bit(data):
    for privacy in (
        up.privacy.UpdateClipping(clip_norm=0.2, noise_std=0.01, fill=0.5),
        up.privacy.CentralDPFedAvg(clip_norm=0.2, noise_multiplier=0.0, quantile=0.5),
    ):
        fixed = replace(privacy, **{"fill" if hasattr(privacy, "fill") else "quantile": None})
        one, other = (up.train(data, privacy=p, **QUIET | {"iterations": 1}).params for p in (privacy, fixed))
        assert torch.equal(one, other)
        two, others = (up.train(data, privacy=p, **QUIET).params for p in (privacy, fixed))
        assert not torch.equal(two, others)


def test_without_noise_the_bound_finds_the_quantile_of_the_norms():
    norms, rule = np.linspace(0.1, 2.0, 20), NoisyCount(0.7, 0.2, 0.0, 20.0, is_centred=False)
    for start in (0.01, 50.0):
        scale = start
        for _ in range(150):
            scale = rule.next_scale(scale, rule.fraction(norms < scale, 0, SeededNoise(0, 1)))
        assert (norms < scale).mean() == pytest.approx(0.7, abs=0.06)


def test_without_noise_updates_fill_the_bound_as_asked():
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(30, 5))
    norms, rule = np.linalg.norm(updates, axis=1), FollowReleases(0.6, 0.2, clip_norm=1.0)
    for start in (0.01, 50.0):
        scale = start
        for _ in range(200):
            kept = updates * np.minimum(1, scale / norms)[:, None]
            scale = rule.next_scale(scale, kept, np.zeros(30))
        assert np.mean(np.minimum(1, norms / scale) ** 2) == pytest.approx(0.6, abs=1e-3)


def test_a_round_without_releases_leaves_the_bound_where_it_is():
    assert FollowReleases(0.6, 0.2, clip_norm=1.0).next_scale(0.7, np.zeros((0, 5)), np.zeros(0)) == 0.7


def test_what_releases_say_of_the_bound_is_unbiased_and_no_louder_than_stated():
    rng, size, clients, std = np.random.default_rng(2), 40, 25, 0.4
    update = rng.normal(size=(clients, size))
    update *= np.linspace(0.2, 1.0, clients)[:, None] / np.linalg.norm(update, axis=1)[:, None]
    away = []
    for _ in range(2000):
        noisy = update + std * rng.normal(size=update.shape)
        variance = (2 * size * std**4 + 4 * std**2) / clients
        moved = FollowReleases(0.5, 1e-3, 1.0).next_scale(1.0, noisy, np.full(clients, std))
        away.append(math.log(moved) * 1e3 * (1 + variance) + 0.5)
    assert np.mean(away) == pytest.approx(
        np.mean(np.linspace(0.2, 1.0, clients) ** 2), abs=4 * np.std(away) / 2000**0.5
    )
    assert 0.8 * variance < np.var(away) < 1.05 * variance


def test_a_bound_that_cannot_be_seen_for_noise_stays_about_where_it_is(data):
    """At epsilon 1 a clipped update is a hundredth of its noise."""
    loud = scales(data, up.privacy.UpdateClipping(clip_norm=0.5, epsilon=1.0, delta=1e-3, fill=0.5), iterations=40)
    assert max(abs(math.log(scale)) for scale in loud) < 0.3
    quiet = scales(data, up.privacy.UpdateClipping(clip_norm=50.0, noise_std=0.01, fill=0.5), iterations=40)
    assert quiet[-1] < 0.3


@pytest.mark.parametrize(
    "privacy",
    [
        up.privacy.UpdateClipping(clip_norm=0.5, noise_std=0.05, fill=0.5),
        up.privacy.CentralDPFedAvg(clip_norm=0.5, noise_multiplier=0.5, quantile=0.3),
    ],
)
def test_a_run_that_is_stopped_goes_on_with_its_bound(data, privacy, tmp_path):
    asked = QUIET | {"upcycle": 0.3, "privacy": privacy, "iterations": 8}
    whole = up.train(data, **asked)
    ends = [lambda record: up.STOP if record.iteration == 5 else None]
    assert len(up.train(data, **asked, checkpoint=tmp_path, callbacks=ends).history) == 5
    assert torch.equal(up.train(data, **asked, checkpoint=tmp_path).params, whole.params)


def test_the_noise_that_weights_and_rules_are_told_is_the_rounds_own(data):
    """Precision weights do not change with a common scale, so runs differ by the scale alone where all is scaled."""
    told = {}

    class Listening(up.aggregators.Precision):
        def combine(self, own, received):
            told[int(own["rounds"])] = received.noise_std[0]
            return super().combine(own, received)

    privacy = up.privacy.UpdateClipping(clip_norm=5.0, noise_std=0.1, fill=0.5)
    found = [1.0, *scales(data, privacy, aggregation=Listening())]
    assert found[3] < 0.9
    assert [told[m] for m in range(6)] == pytest.approx([0.1 * scale for scale in found[:6]])


def test_wrong_numbers_are_one_sentence(data):
    for name in ("fill", "adapt_rate"):
        with pytest.raises(up.InputError, match=f"{name} is 0"):
            up.privacy.UpdateClipping(clip_norm=1.0, noise_std=1.0, **{name: 0})
    for name in ("quantile", "count_share"):
        with pytest.raises(up.InputError, match=f"{name} is 1"):
            up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0, **{name: 1})
    privacy = up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1e9, quantile=0.5)
    with pytest.raises(up.InputError, match="count_share"):
        fitted(data, privacy)

"""Hand-written mutants: faults that break a privacy claim, each planted into the real code by ``monkeypatch``.

Every function is called with a ``pytest.MonkeyPatch`` and the number of the last client.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upcycled.algorithms.scaffold import Scaffold
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Participation
from upcycled.core.solvers import ShiftedMinimiser
from upcycled.core.vectors import grid_scale, on_grid
from upcycled.engines.dpsgd import noisy
from upcycled.engines.dpsgd.noisy import NoisyGradient
from upcycled.engines.fused.engine import FusedEngine
from upcycled.engines.sequential import Sequential
from upcycled.privacy.ledger.composition import Spent
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms import bolt_on, central, clipping, dpsgd, erm_output, gaussian_noise
from upcycled.privacy.mechanisms import objective_perturbation as objective
from upcycled.privacy.mechanisms.central import CentralNoise
from upcycled.privacy.mechanisms.clipping import Clipped
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise
from upcycled.privacy.mechanisms.objective_perturbation import Cover
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training import round as data_round
from upcycled.training.state import Run


def _noise(patch, change):
    """Let Gaussian mechanisms draw other noise than they charge for: ``change(std, clients)`` is what they take."""

    def add(self, values, cohort, source):
        std = self.noise_std[cohort.rows]
        steps = source.gaussian_steps(cohort.clients, values.shape[-1], grid_scale(std))
        return on_grid(values, np.rint(steps * change(std, cohort)[:, None]), std)

    patch.setattr(GaussianNoise, "add", add)


def no_noise_at_the_last_client(patch, last):
    _noise(patch, lambda std, cohort: np.where(cohort.clients == last, 0.0, 1.0))


def std_is_sigma_squared(patch, last):
    _noise(patch, lambda std, cohort: std)  # times sigma once more


def noise_four_times_too_small(patch, last):
    _noise(patch, lambda std, cohort: np.full(std.size, 0.25))


def no_projection_at_the_last_client(patch, last):
    own = erm_output.project

    def project(train, norm_bound):
        found = own(train, norm_bound)
        x = np.array(found.x)
        x[train.offsets[last] :] = train.x[train.offsets[last] :]
        return replace(found, x=x)

    patch.setattr(erm_output, "project", project)


def no_clipping_at_the_last_client(patch, last):
    """Cohorts of these tests have everybody, in order."""
    own = clipping.clip

    def clip(vectors, clip_norm):
        found = own(vectors, clip_norm)
        if len(vectors) == last + 1:
            found[last] = vectors[last]
        return found

    patch.setattr(clipping, "clip", clip)


def noise_reused_between_rounds(patch, last):
    def noise_for(self, plan, round, attempt):
        return self.noise or SeededNoise(plan.spec.seed, 1, attempt)

    patch.setattr(Run, "noise_for", noise_for)


def noise_reused_between_runs(patch, last):
    def noise_for(self, plan, round, attempt):
        return self.noise or SeededNoise(7, round, attempt)

    patch.setattr(Run, "noise_for", noise_for)


def noise_reused_between_clients(patch, last):
    def of_the_first(own):
        def drawn(self, clients, count, purpose=Purpose.NOISE, start=0):
            return own(self, np.zeros_like(clients), count, purpose, start)

        return drawn

    for name in ("uniforms", "normals"):
        patch.setattr(SeededNoise, name, of_the_first(getattr(SeededNoise, name)))


def noise_reused_between_steps(patch, last):
    own = SeededNoise.gaussian_steps

    def gaussian_steps(self, clients, count, scale, purpose=Purpose.NOISE, start=0):
        return own(self, clients, count, scale, purpose, 0)

    patch.setattr(SeededNoise, "gaussian_steps", gaussian_steps)


def clip_after_noise(patch, last):
    def release(self, trained, sent, cohort, num_samples, noise):
        made = replace(self, clip_norm=1e30)
        vectors = Clipped.own_release(made, trained, sent, cohort, num_samples, noise)
        return replace(vectors, vectors=clipping.clip(vectors.vectors, self.clip_norm).astype(np.float32))

    patch.setattr(Clipped, "own_release", Clipped.release, raising=False)
    patch.setattr(Clipped, "release", release)


def calibrated_by_the_n_of_all(patch, last):
    own = erm_output.gd_sensitivity
    patch.setattr(erm_output, "gd_sensitivity", lambda *, n, **rest: own(n=np.full_like(n, n.sum()), **rest))


def calibrated_by_the_mean_n(patch, last):
    own = erm_output.gd_sensitivity
    patch.setattr(erm_output, "gd_sensitivity", lambda *, n, **rest: own(n=np.full_like(n, int(n.mean())), **rest))


def memory_of_unreleased_models(patch, last):
    kept = {}
    step = Scaffold.server_step
    for engine in (Sequential, FusedEngine):

        def train(self, asked, noise=None, own=engine.train):
            kept["vectors"] = (found := own(self, asked, noise)).vectors
            return found

        patch.setattr(engine, "train", train)

    def server_step(self, server, memory, arrived):
        exact = replace(arrived, release=replace(arrived.release, vectors=kept["vectors"]))
        return step(self, server, memory, arrived)[0], step(self, server, memory, exact)[1]

    patch.setattr(Scaffold, "server_step", server_step)


def charges_stop_after_round_2(patch, last):
    own = Ledger.charge

    def charge(self, iteration, round, attempt, charge):
        return own(self, iteration, round, attempt, charge) if round <= 2 else None

    patch.setattr(Ledger, "charge", charge)


def charges_are_nothing_after_round_2(patch, last):
    own = Ledger.charge

    def charge(self, iteration, round, attempt, charge):
        less = charge if round <= 2 else replace(charge, sensitivity=charge.sensitivity * 1e-6)
        return own(self, iteration, round, attempt, less)

    patch.setattr(Ledger, "charge", charge)


class _OtherCoins:
    """A noise source whose coins of records are ``change(source, clients, count, start)``."""

    def __init__(self, noise, change):
        self._noise, self._change = noise, change

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def uniforms(self, clients, count, purpose=Purpose.NOISE, start=0):
        if purpose is not Purpose.POISSON:
            return self._noise.uniforms(clients, count, purpose, start)
        return self._change(self._noise, clients, count, start)


def _coins(patch, change):
    """Let the sequential engine draw the batches of DP-SGD by other coins."""
    own = NoisyGradient.__init__

    def init(self, solver, gradients, x, y, client, std, noise, dropout):
        own(self, solver, gradients, x, y, client, std, _OtherCoins(noise, change), dropout)

    patch.setattr(NoisyGradient, "__init__", init)


def coins_from_the_public_seed(patch, last):
    public = SeededNoise(0, 1)
    _coins(patch, lambda noise, clients, count, start: public.uniforms(clients, count, Purpose.POISSON, start))


def batches_at_twice_the_rate(patch, last):
    _coins(patch, lambda noise, *asked: noise.uniforms(*asked[:2], Purpose.POISSON, asked[2]) / 2)


def batches_of_a_fixed_size(patch, last):
    """The records of the smallest coins: which ones is secret and how many is not."""

    def ranks(noise, clients, count, start):
        coins = noise.uniforms(clients, count, Purpose.POISSON, start)
        return coins.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") / count

    _coins(patch, ranks)


def one_coin_for_all_records(patch, last):
    def first(noise, clients, count, start):
        return np.repeat(noise.uniforms(clients, count, Purpose.POISSON, start)[:, :1], count, axis=1)

    _coins(patch, first)


def system_noise_that_repeats(patch, last):
    own = SystemNoise.gaussian_steps

    def gaussian_steps(self, clients, count, scale, purpose=Purpose.NOISE, start=0):
        from upcycled.core.randomness import words

        def same(many):
            return words(np.array(7, dtype=np.uint64), many)

        return own(SystemNoise(same), clients, count, scale, purpose, start)

    patch.setattr(SystemNoise, "gaussian_steps", gaussian_steps)


def seeded_noise_under_system(patch, last):
    own = Run.noise_for

    def noise_for(self, plan, round, attempt):
        is_real = self.noise is not None and self.noise.name == "system"
        return SeededNoise(plan.spec.seed, round, attempt) if is_real else own(self, plan, round, attempt)

    patch.setattr(Run, "noise_for", noise_for)


def noise_a_tenth_too_small(patch, last):
    _noise(patch, lambda std, cohort: np.full(std.size, 0.9))


def noise_without_a_tail(patch, last):
    """Nothing beyond 3 std, and the variance that is charged for."""

    def add(self, values, cohort, source):
        std = self.noise_std[cohort.rows]
        scale = grid_scale(std)
        steps = source.gaussian_steps(cohort.clients, values.shape[-1], scale)
        limit = 3 * scale[:, None]
        return on_grid(values, np.rint(np.clip(steps, -limit, limit) / 0.99748), std)  # the std of a clipped normal

    patch.setattr(GaussianNoise, "add", add)


def release_is_not_clipped(patch, last):
    own = Clipped.release
    patch.setattr(Clipped, "release", lambda self, *given: own(replace(self, clip_norm=1e30), *given))


def clipping_lets_a_fifth_pass(patch, last):
    own = clipping.clip

    def clip(vectors, clip_norm):
        norms = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
        return np.where(norms <= 1.2 * clip_norm, vectors, own(vectors, clip_norm))

    patch.setattr(clipping, "clip", clip)
    patch.setattr(central, "clip", clip)


def projection_lets_a_fifth_pass(patch, last):
    own = erm_output.project

    def project(train, norm_bound):
        found = own(train, norm_bound)
        norms = np.linalg.norm(train.x.astype(np.float64), axis=1, keepdims=True)
        return replace(found, x=np.where(norms <= 1.2 * norm_bound, train.x, found.x))

    for module in (erm_output, bolt_on, objective):
        patch.setattr(module, "project", project)


def gradients_of_records_let_a_fifth_pass(patch, last):
    own = noisy.add_clipped

    def add_clipped(total, each, clip_norm, step, most):
        norms = np.linalg.norm(each.astype(np.float64), axis=1)
        lenient = norms <= 1.2 * clip_norm
        own(total, each[lenient], 2 * clip_norm, step, most)
        own(total, each[~lenient], clip_norm, step, most)

    patch.setattr(noisy, "add_clipped", add_clipped)


def gradients_of_records_are_not_clipped(patch, last):
    own = noisy.add_clipped
    patch.setattr(noisy, "add_clipped", lambda total, each, clip_norm, *rest: own(total, each, 1e30, *rest))


def secret_rate_doubled(patch, last):
    own = data_round._cohort

    def cohort(plan, run):
        rate = min(1.0, 2 * plan.participation.sampler.fraction)
        who = Participation(rate, stragglers=plan.participation.stragglers)
        return own(replace(plan, participation=who) if plan.mechanism.draws_secretly else plan, run)

    patch.setattr(data_round, "_cohort", cohort)


def half_the_secret_rate_is_charged(patch, last):
    own = CentralNoise.charge

    def charge(self, cohort):
        made = own(self, cohort)
        return replace(made, sampling_rate=made.sampling_rate / 2)

    patch.setattr(CentralNoise, "charge", charge)


def central_noise_divided_twice(patch, last):
    own = CentralNoise.aggregate
    patch.setattr(
        CentralNoise,
        "aggregate",
        lambda self, *given: own(replace(self, noise_std=self.noise_std / self.expected), *given),
    )


def cover_noise_without_the_root_of_d(patch, last):
    own = Cover.applied
    patch.setattr(Cover, "applied", lambda self, *given: own(replace(self, rate=self.rate * self.size**0.5), *given))


def solver_stops_half_way(patch, last):
    own = ShiftedMinimiser.steps.fget
    patch.setattr(ShiftedMinimiser, "steps", property(lambda self: own(self) // 2))


def calibrated_by_the_least_need(patch, last):
    """Of all clients, where all are to have the noise that the neediest needs."""
    own = gaussian_noise.settle

    def settle(std_of, sensitivity, setting, per_client):
        std, shared = own(std_of, sensitivity, setting, True)
        return (std if per_client else np.full_like(std, std.min())), shared

    patch.setattr(gaussian_noise, "settle", settle)


def half_of_the_steps_are_charged(patch, last):
    own = dpsgd._Charged.charge

    def charge(self, cohort):
        made = own(self, cohort)
        return replace(made, steps=-(-made.steps // 2))

    patch.setattr(dpsgd._Charged, "charge", charge)


def inner_steps_are_not_charged(patch, last):
    own = dpsgd.DPSGD.fit
    patch.setattr(dpsgd.DPSGD, "fit", lambda self, setting: own(self, replace(setting, gradients_per_step=1)))


def values_are_not_on_the_grid(patch, last):
    def on_grid(values, steps, noise_std):
        return values + steps * gaussian_noise.grid_step(noise_std)[:, None]

    patch.setattr(gaussian_noise, "on_grid", on_grid)


def ledger_adds_up_every_other_charge(patch, last):
    own = Spent.add
    calls = {}

    def add(self, charge, rounds=1):
        calls[id(self)] = calls.get(id(self), 0) + 1
        own(self, charge if calls[id(self)] % 2 else replace(charge, sensitivity=0 * charge.sensitivity), rounds)

    patch.setattr(Spent, "add", add)


def draws_of_real_noise_are_not_charged(patch, last):
    own = GaussianNoise.charge
    patch.setattr(GaussianNoise, "charge", lambda self, cohort: replace(own(self, cohort), draws=None))


def coins_that_lie_low(patch, last):
    """A generator of the system's coins that gives squares of uniforms: rates are compared as they should be."""
    for source in (SeededNoise, SystemNoise):

        def uniforms(self, clients, count, purpose=Purpose.NOISE, start=0, own=source.uniforms):
            found = own(self, clients, count, purpose, start)
            return found**2 if purpose is Purpose.COHORT else found

        patch.setattr(source, "uniforms", uniforms)

"""Faults that the audit must find, each a mutation of the real code by ``monkeypatch``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upcycled.algorithms.scaffold import Scaffold
from upcycled.core.streams import Purpose
from upcycled.core.vectors import grid_scale, on_grid
from upcycled.engines.fused.fused_engine import FusedEngine
from upcycled.engines.noisy import NoisyGradient
from upcycled.engines.sequential import Sequential
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms import clipping, erm_output
from upcycled.privacy.mechanisms.clipping import Clipped
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise
from upcycled.privacy.noise import SeededNoise, SystemNoise
from upcycled.runtime.state import Run


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

        def train(self, work, own=engine.train):
            kept["vectors"] = (found := own(self, work)).vectors
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


class _PublicCoins:
    def __init__(self, noise):
        self._noise, self._public = noise, SeededNoise(0, 1)

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def uniforms(self, clients, count, purpose=Purpose.NOISE, start=0):
        source = self._public if purpose is Purpose.POISSON else self._noise
        return source.uniforms(clients, count, purpose, start)


def coins_from_the_public_seed(patch, last):
    own = NoisyGradient.__init__

    def init(self, solver, gradients, x, y, client, std, noise, dropout):
        own(self, solver, gradients, x, y, client, std, _PublicCoins(noise), dropout)

    patch.setattr(NoisyGradient, "__init__", init)


def system_noise_that_repeats(patch, last):
    own = SystemNoise.gaussian_steps

    def gaussian_steps(self, clients, count, scale, purpose=Purpose.NOISE, start=0):
        from upcycled.core.streams import words

        def same(many):
            return words(np.array(7, dtype=np.uint64), many)

        return own(SystemNoise(same), clients, count, scale, purpose, start)

    patch.setattr(SystemNoise, "gaussian_steps", gaussian_steps)

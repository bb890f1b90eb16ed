"""Bounds that follow the clients' updates: charged noisy counts at a trusted server, or local releases, for nothing.

**Scale.** A round at scale s divides updates u_i by s, hands them to the mechanism as it was fitted, whose bound is C,
and multiplies what comes out by s. The bound is then s C, and the noise grows and shrinks with it. s is a function of
what was released before, so dividing is part of the question asked of the data and multiplying is post-processing: a
round costs what it costs at s = 1, whatever s is. For Gaussian noise a question may depend on earlier answers (sums of
squares are a filter: Smith and Thakurta 2022), and for sampled releases every question has the same dominating pair.
So ledgers, calibration and budgets are those of the fixed bound, exactly.

**Central** (Andrew et al. 2021, arXiv:1905.03871). Beside the sum of clipped updates the server publishes how many
clients are below the bound, b~ = (sum_i b_i + N(0, sigma_b^2)) / m with b_i = 1 where u_i was not clipped, and then

    s <- s exp(-rate (b~ - quantile) / (1 + v^2)),     v = sigma_b / m.

Replacing a client moves the sum by 2 C and the count by 1. Divided by their stds, the two are one Gaussian vector with
std 1, and a client moves it by mu with mu^2 = (2 C / std)^2 + 1 / sigma_b^2. Secret Poisson draws: with b_i - 1/2 in
the place of b_i (the 1/2 is put back by the public m), a client that takes part adds a vector of norm at most
sqrt((C / std)^2 + (1 / (2 sigma_b))^2), and one that does not adds zero, as the sampled analysis asks. With z the
noise multiplier that is charged, std = z_delta C and share the count's part of the squares, either way

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) = z / sqrt(1 - share),     sigma_b = z / (2 sqrt(share)).

**Local**, from releases. A release is u + noise with ||u|| <= s C, so ||r_i - w||^2 / (s C)^2 - D (std_i / C)^2 has
the mean f_i = (||u_i|| / (s C))^2: how much of the bound's square the update fills, 1 where it was clipped. Its
variance is at most v_i^2 = 2 D (std_i / C)^4 + 4 (std_i / C)^2. With f^ the mean over m clients, v^2 its variance,

    s <- s exp(rate (f^ - fill) / (1 + v^2)).

In both, 1 / (1 + v^2) is how much of the measured number is signal: where its noise is larger than what it measures
(few clients, or a small epsilon) the bound stays about where it is, and does not walk at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, Limits
from upcycled.core.mechanism import NoiseSource
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Real, grid_scale, grid_step

INSIDE: Final = Limits(above=0, below=1)
FARTHEST = 2.0**20
"""A scale stays between 1 over it and it: beyond, float32 models are no longer moved, or are nothing but noise."""
BELOW = 1 - 1e-6
"""An update counts as below the bound up to this part of it: a clipped one is at it, to the last bits."""


def moved(scale: float, rate: float, away: float, variance: float) -> float:
    """Return scale exp(rate away / (1 + variance)), by a factor of e at most and within the limits of a scale.

    >>> moved(1.0, 0.2, 0.0, 0.0), round(moved(2.0, 0.2, -0.5, 1.0), 6), moved(FARTHEST, 9.0, 1.0, 0.0) == FARTHEST
    (1.0, 1.902459, True)
    """
    by = float(np.clip(rate * away / (1 + variance), -1.0, 1.0))
    return float(np.clip(scale * math.exp(by), 1 / FARTHEST, FARTHEST)) if math.isfinite(by) else scale


@dataclass(frozen=True)
class NoisyCount:
    """How many clients are below the bound, published with noise, and how the bound follows it."""

    quantile: float
    rate: float
    noise_std: float
    """sigma_b."""
    expected: float
    """m, the public denominator."""
    is_centred: bool
    """Whether 1/2 is taken off each client's bit, for secret draws."""

    def __post_init__(self) -> None:
        # Bits are then whole numbers of steps: rounding to the grid moves none of them.
        if float(grid_step(np.array([self.noise_std]))[0]) > 0.5:
            raise InputError(
                field="count_share",
                but=f"the count's noise would be {self.noise_std:g}: it must have more of the noise",
            )

    def fraction(self, is_below: NDArray[np.bool_], used: int, noise: NoiseSource) -> float:
        """Return b~; ``used`` numbers of the server's stream were taken before, for the sum."""
        bits = is_below.astype(np.float64) - (0.5 if self.is_centred else 0.0)
        std, server = np.array([self.noise_std]), np.zeros(1, dtype=np.int64)
        step = float(grid_step(std)[0])
        total = float(bits.sum())
        if step > 0:
            start = used + used % 2  # whole pairs of uniforms
            drawn = noise.gaussian_steps(server, 1, grid_scale(std), Purpose.CENTRAL, start)[0, 0]
            total = step * (np.rint(total / step) + float(drawn))
        return total / self.expected + (0.5 if self.is_centred else 0.0)

    def next_scale(self, scale: float, fraction: float) -> float:
        """Return the scale of the next round.

        >>> rule = NoisyCount(quantile=0.5, rate=0.2, noise_std=0.0, expected=10.0, is_centred=False)
        >>> round(rule.next_scale(1.0, fraction=1.0), 6)  # nobody is clipped: a smaller bound
        0.904837
        """
        return moved(scale, self.rate, self.quantile - fraction, (self.noise_std / self.expected) ** 2)


@dataclass(frozen=True)
class FollowReleases:
    """How a bound follows local releases."""

    fill: float
    rate: float
    clip_norm: float
    """C, the first bound."""

    def next_scale(self, scale: float, updates: Real, noise_std: Real) -> float:
        """Return the scale of the next round, from a cohort's released updates and their known noise.

        ``noise_std`` has an entry a client: what the round at scale 1 would have.

        >>> rule = FollowReleases(fill=0.5, rate=0.2, clip_norm=1.0)
        >>> round(rule.next_scale(1.0, np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(2)), 6)  # all fill it: a larger one
        1.105171
        """
        if not len(updates):
            return scale
        bound, size = scale * self.clip_norm, updates.shape[-1]
        noise = np.square(noise_std / self.clip_norm)
        filled = np.einsum("cd,cd->c", updates, updates) / bound**2 - size * noise
        variance = float((2 * size * noise**2 + 4 * noise).mean()) / len(updates)
        return moved(scale, self.rate, float(filled.mean()) - self.fill, variance)

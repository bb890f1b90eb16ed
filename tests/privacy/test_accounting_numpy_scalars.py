"""Counts and sizes come out of NumPy as its own scalars, and are numbers like any other."""

from __future__ import annotations

import numpy as np
import pytest

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc
from upcycled.privacy import audit


def test_numpy_scalars_are_taken_for_the_numbers_they_are() -> None:
    sizes = np.array([224, 45])
    assert acc.erm_sensitivity(lipschitz=np.float32(2), n=sizes[0], a=0.5) == pytest.approx(2 * 2 / 112)
    assert acc.softmax_constants(classes=np.int64(2), norm_bound=np.float32(1), bias=True) == pytest.approx((2, 1))
    assert acc.pure_round_epsilon(epsilon=np.float64(1.0), rounds=np.int32(4), delta=0) == 0.25
    assert acc.sampled_gaussian_epsilon(q=np.float64(1), noise_multiplier=2, steps=np.int64(4), delta=1e-5) > 0
    counts = np.sum(np.ones((95, 1)), dtype=np.int64)
    result = audit.one_run(canaries=np.int64(1000), guesses=np.int64(100), correct=counts, delta=1e-5)
    assert result.epsilon_lower == pytest.approx(2.165175799)
    with pytest.raises(InputError, match=r"rounds.*True"):
        acc.pure_round_epsilon(epsilon=1.0, rounds=np.True_, delta=0)

"""What studies claim from pairs: counted by hand."""

from __future__ import annotations

import pytest

from studies.common.statistics import better_and_worse, paired, paired_json, sure


def around(mean, spread=0.1):
    return paired([mean + spread, mean - spread, mean + spread, mean - spread], [0.0] * 4)


def test_a_difference_is_ours_minus_theirs_seed_by_seed():
    found = paired([81.0, 92.0, 73.0, 64.0], [80.0, 90.0, 70.0, 60.0])
    assert found.differences == (1.0, 2.0, 3.0, 4.0)
    # t(3 df, 97.5 %) = 3.18245, sd = sqrt(5/3): half the interval is 3.18245 * 1.29099 / 2.
    assert paired_json(found) == {
        "mean": 2.5,
        "low": pytest.approx(0.4457, abs=1e-4),
        "high": pytest.approx(4.5543, abs=1e-4),
        "is_significant": True,
        "by_seed": [1.0, 2.0, 3.0, 4.0],
    }
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0])


def test_claims_are_counted_on_either_side_of_zero():
    family = [around(1.0), around(-1.0), around(-2.0), around(0.01)]
    assert better_and_worse(family) == (1, 2)
    assert better_and_worse(family, [False, True, False, True]) == (1, 1)


def test_holms_correction_keeps_less_the_larger_the_family_is():
    # Mean 0.3 with standard error 0.11547 / 2: t = 5.196 with 3 degrees of freedom, p = 0.0138.
    one = around(0.3)
    assert one.p_value == pytest.approx(0.0138, abs=1e-4)
    assert sure([one] * 3) == [True] * 3  # 3 p = 0.041
    assert sure([one] * 4) == [False] * 4  # 4 p = 0.055

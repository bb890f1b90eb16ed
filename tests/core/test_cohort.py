from __future__ import annotations

import re

import numpy as np
import pytest

from upcycled.core.errors import InputError
from upcycled.core.sampling import Participation


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"), [(0.3, 30, 9), (0.29, 100, 29), (0.01, 30, 1), (1.0, 7, 7)]
)
def test_a_fixed_fraction_takes_floor_of_it_and_at_least_one(fraction, clients, expected):
    cohort = Participation(fraction).draw(seed=0, round=1, num_clients=clients, epochs=1)
    assert cohort.clients.size == expected


def test_the_cohort_is_a_function_of_seed_round_and_attempt():
    who = Participation(0.3, stragglers=0.5)
    one, same = who.draw(1, 4, 30, 10), who.draw(1, 4, 30, 10)
    assert np.array_equal(one.clients, same.clients)
    assert np.array_equal(one.epochs, same.epochs)
    assert not np.array_equal(one.clients, who.draw(1, 5, 30, 10).clients)
    assert not np.array_equal(one.clients, who.draw(2, 4, 30, 10).clients)
    assert not np.array_equal(one.clients, who.draw(1, 4, 30, 10, attempt=1).clients)


def test_poisson_takes_each_client_by_its_own_coin():
    # Sizes are Binomial(200, 0.3): mean 60, sd 6.48; over 400 rounds the mean has sd 0.32 and the sd is within 10 %.
    sizes = [Participation(0.3, "poisson").draw(0, m, 200, 1).clients.size for m in range(400)]
    assert abs(np.mean(sizes) - 60) < 4 * 0.324
    assert abs(np.std(sizes) - 6.48) < 0.7


def test_stragglers_train_one_to_nine_of_ten_epochs_and_the_others_all():
    epochs = np.concatenate([Participation(1.0, stragglers=0.9).draw(0, m, 100, 10).epochs for m in range(100)])
    # 10,000 clients: 1,000 +- 30 run all ten epochs, each shorter length 1,000 +- 30.
    counts = np.bincount(epochs, minlength=11)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 1000).max() < 5 * 30


def test_the_straggler_coin_does_not_depend_on_the_rest_of_the_cohort():
    whole = Participation(1.0, stragglers=0.5).draw(0, 3, 30, 10)
    part = Participation(0.3, stragglers=0.5).draw(0, 3, 30, 10)
    assert np.array_equal(whole.epochs[part.clients], part.epochs)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fraction": 0.0}, r"participation.*0\.0.*0.*<= 1"),
        ({"fraction": 1.2}, r"participation.*1\.2"),
        ({"fraction": float("nan")}, r"participation.*nan"),
        ({"stragglers": -0.1}, r"stragglers.*-0\.1"),
        ({"sampling": "poison"}, r"did you mean 'poisson'\?"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(wrong, words):
    with pytest.raises(InputError) as error:
        Participation(**wrong)
    assert re.search(words, str(error.value))


@pytest.mark.parametrize(
    ("fraction", "clients", "stragglers"), [(0.3, 30, 0.9), (1.0, 7, 0.5), (0.3, 30, 0.0), (1.0, 600, 0.5)]
)
def test_small_cohorts_of_many_rounds_are_drawn_at_once_and_are_those_of_one_round(fraction, clients, stragglers):
    who = Participation(fraction, stragglers=stragglers)
    for m in (1, 2, 56, 57, 58, 1000, 2**40):
        drawn = who.draw(5, m, clients, 10)
        alone = who.cohort_of(who.sampler.draw(5, m, clients, 0), 5, m, 10)
        assert drawn.clients.dtype == drawn.epochs.dtype == np.int64
        assert np.array_equal(drawn.clients, alone.clients)
        assert np.array_equal(drawn.epochs, alone.epochs)


def test_a_cohort_that_somebody_changes_is_drawn_as_before():
    who = Participation(0.3, stragglers=0.9)
    drawn = who.draw(5, 3, 30, 10)
    before = drawn.clients.copy(), drawn.epochs.copy()
    drawn.clients[:], drawn.epochs[:] = 0, 0
    again = who.draw(5, 3, 30, 10)
    assert np.array_equal(again.clients, before[0])
    assert np.array_equal(again.epochs, before[1])

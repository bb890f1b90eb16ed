"""Values that core's small objects cannot have, and the names of code that cannot be loaded."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import upcycled as up
from upcycled.core.sampling import MOST_EMPTY_COHORTS, Participation, PoissonSampler, as_sampler
from upcycled.core.user_code import looked_up


class Own:
    """A sampler of somebody's own, which draws what it is told to."""

    name, fraction = "own", 0.5

    def __init__(self, drawn):
        self.drawn = drawn

    def draw(self, seed, round, num_clients, attempt):
        return self.drawn


def test_everybody_comes_to_every_round_of_a_full_poisson_sampler():
    assert PoissonSampler(1.0).draw(0, 1, 5, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("drawn", [[0, 0], [-1], [3], [0.5], [[0]]])
def test_an_own_sampler_draws_different_clients_that_there_are(drawn):
    with pytest.raises(up.InputError, match=r"draw.*0.*2"):
        as_sampler(Own(drawn)).draw(0, 1, 3, 0)


def test_an_own_samplers_draw_is_taken_as_it_is():
    sampler = as_sampler(Own([2, 0]))
    assert (sampler.name, sampler.fraction) == ("own", 0.5)
    assert sampler.draw(0, 1, 3, 0).tolist() == [2, 0]
    assert as_sampler(Own([])).draw(0, 1, 3, 0).dtype == np.int64


def test_a_fraction_that_leaves_every_cohort_empty_is_refused():
    with pytest.raises(up.InputError, match=rf"{MOST_EMPTY_COHORTS} Poisson draws.*row"):
        Participation(as_sampler(Own([]))).draw_nonempty(0, 1, 3, 1)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_private_run_has_as_many_rounds_as_can_be_known_in_advance(fraction):
    with pytest.raises(up.InputError, match="private run"):
        Participation(PoissonSampler(fraction)).rounds_of_clients(0, 3, 10**12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: up.LocalSGD(nesterov=True), r"momentum.*0"),
        (lambda: up.LocalAdam(betas=0.9), r"pair.*numbers"),
        (lambda: up.LocalAdam(betas=(0.9, 0.99, 0.999)), r"pair.*numbers"),
        (lambda: up.LocalSGD(lr=lambda m, rounds: 0.1).rate, "it must be a number"),
    ],
)
def test_a_solver_says_what_it_cannot_be(make, words):
    with pytest.raises(up.InputError, match=words):
        make()


def test_a_module_that_fails_to_load_is_told_from_one_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_another.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "breaks.py").write_text("1 / 0\n")
    with pytest.raises(up.InputError, match=r"needs_another.*ModuleNotFoundError"):
        looked_up("needs_another:x", "field")
    with pytest.raises(up.InputError, match=r"importing.*ZeroDivisionError"):
        looked_up("breaks:x", "field")
    with pytest.raises(up.InputError, match=r"there.*module 'no_such_module'"):
        looked_up("no_such_module:x", "field")
    assert not {"needs_another", "breaks"} & set(sys.modules)

"""What is protected, in plain words: the limit on guesses, and what is said of simulations and of trusted servers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from upcycled.core.mechanism import Promise
from upcycled.privacy.accounting.gaussian import gaussian_delta
from upcycled.privacy.ledger.statement import best_guess, plain_words

RECORD = Promise(released="a model", checked=())


def said(promise=RECORD, is_simulation=False, worst=1.0, delta=0.0, claim="proven"):
    return dict(plain_words(promise, claim, is_simulation, worst, delta))


def test_the_limit_on_guesses_holds_for_the_best_test_of_gaussian_noise_and_is_tight_for_randomised_response():
    # Between N(0, 1) and N(mu, 1) the best guess is right with probability Phi(mu/2).
    for mu in (0.1, 0.5, 1.0, 3.0):
        for epsilon in (0.0, 0.3, 1.0, 4.0):
            delta = gaussian_delta(rounds=1, sensitivity=mu, noise_std=1.0, epsilon=epsilon)
            assert norm.cdf(mu / 2) <= best_guess(epsilon, delta) + 1e-12
    # At epsilon = 0 delta is the total variation, and the limit is reached.
    assert best_guess(0.0, gaussian_delta(rounds=1, sensitivity=1.0, noise_std=1.0, epsilon=0.0)) == pytest.approx(
        norm.cdf(0.5)
    )
    # Who tells the truth with probability e/(1 + e) has epsilon 1.
    assert best_guess(1.0, 0.0) == pytest.approx(math.e / (1 + math.e))


def test_a_limit_is_rounded_upwards_and_a_useless_one_is_called_so():
    assert "at most 73.2 times in 100" in said(worst=1.0)["how far"]  # 73.106
    assert "next to no limit" not in said(worst=2.9)["how far"]  # 94.8
    assert said(worst=3.0)["how far"].endswith("that is next to no limit")  # 95.3
    assert "at most 100.0 times" in said(worst=1000.0)["how far"]
    assert said(worst=np.inf)["how far"] == "no limit is proven"


def test_a_simulation_protects_nothing_and_says_so_first():
    assert said(is_simulation=True)["protected"].startswith("nothing, for this is a simulation")
    assert "nothing" not in said()["protected"]


def test_no_claim_is_no_protection():
    assert said(Promise(released="", checked=(), is_claimed=False)) == {
        "protected": "nothing: no limit is claimed for this mechanism"
    }


def test_who_is_trusted_and_what_a_unit_is():
    central = Promise(released="", checked=(), unit="client", sees="aggregates")
    assert "one hospital" in said(central)["protected"]
    assert "not from the server" in said(central)["from whom"]
    assert "one patient" in said()["protected"]
    assert "the server" in said()["from whom"]
    assert "add up" in said()["not protected"]

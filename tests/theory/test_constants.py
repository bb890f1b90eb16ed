"""C1, C2, C3: against the printed formulas, against the proof carried out by sympy, against mpmath."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up

L, B, mu, rho, K, c, g, d, h = sp.symbols("L B mu rho K c g d h", positive=True)
ROOT = sp.sqrt(2 / K)

# Lemmas "converge" and "selected" of the paper's appendix, as printed, before the coefficient c = mu/(mu + lambda).
PRINTED_HAT = (
    1 / mu - L * B / (mu**2 * rho) - L * B**2 / (2 * rho**2),
    L**2 / (mu**2 * rho) + (L + mu) / mu**2 + L * (L + rho) * B / rho**2,
    L * (L + rho) ** 2 / (2 * rho**2),
)
PRINTED_TILDE = (
    2 * B**2 / (K * rho**2) + (2 * L * B + rho) / rho * ROOT * B / rho,
    4 * L * B / (K * rho**2) + (2 * L * B + rho) / rho * ROOT * L / rho + 2 * L * (L + rho) / rho * ROOT * B / rho,
    2 / K * L**2 / rho**2 + 2 * L * (L + rho) / rho * ROOT * L / rho,
)
# Eq. (c1) to (c3), with the bracket of (c2) closed.
PRINTED = (
    1 / mu - L * B / (mu**2 * rho) - L * B**2 / (2 * rho**2) - 2 * B**2 / (K * rho**2)
    - (2 * L * B + rho) / rho * ROOT * B / rho,
    L**2 / (mu**2 * rho) + (L + mu) / mu**2 + L * (L + rho) * B / rho**2 + 4 * L * B / (K * rho**2)
    + (4 * L**2 * B + rho * L * (1 + 2 * B)) / rho**2 * ROOT,
    L * (L + rho) ** 2 / (2 * rho**2) + 2 / K * L**2 / rho**2 + 2 * L * (L + rho) / rho * ROOT * L / rho,
)  # fmt: skip


def proof(form):
    """The bound on E f(w(2m+1)) - f(w(2m-1)) from the proof's own steps; g = ||grad f||, d = ||w(2m) - w(2m-1)||."""
    apart = (B * g + L * d) / rho  # E||w_i - w(2m)||: strong convexity, smoothness, dissimilarity
    moved = apart + d  # ||w_tilde - w(2m-1)||
    phi = L / mu * moved + d  # ||Phi||
    slip = 1 / mu if form == "paper" else 1
    hat = -(g**2) / mu + slip * g * phi + L / 2 * moved**2
    if form == "sharp":  # unbiased: L/2 E||w_bar - w_tilde||^2, and the variance is at most E||w_i - w(2m)||^2 / K
        return hat, L / 2 * apart**2 / K
    lost = 1 if form == "paper" else L
    return hat, (g + 2 * L * moved) * ROOT * apart + lost * 2 / K * apart**2


def sorted_by_powers(expression):
    terms = sp.Poly(sp.expand(expression), g, d)
    return terms.coeff_monomial(g**2), terms.coeff_monomial(g * d), terms.coeff_monomial(d**2)


def at(expression, values):
    return sp.N(expression.subs(values), 30)


POINTS = [
    {L: sp.Rational(3, 2), B: sp.Rational(5, 4), mu: sp.Rational(7, 3), rho: sp.Rational(2), K: 7},
    {L: sp.Rational(26), B: sp.Rational(17, 4), mu: sp.Rational(900), rho: sp.Rational(880), K: 9},
    {L: sp.Rational(1, 5), B: sp.Rational(1), mu: sp.Rational(1, 2), rho: sp.Rational(3, 5), K: 1},
]


def made(values, form, lam=0.0):
    return up.theory.constants(
        smoothness=float(values[L]),
        dissimilarity=float(values[B]),
        mu=float(values[mu]),
        strong_convexity=float(values[rho]),
        cohort=int(values[K]),
        lam=lam,
        form=form,
    )


def test_the_printed_c1_c2_and_c3_are_the_sums_of_their_printed_parts():
    for i, sign in enumerate((-1, 1, 1)):
        assert sp.simplify(PRINTED_HAT[i] + sign * PRINTED_TILDE[i] - PRINTED[i]) == 0


def test_the_printed_parts_are_what_the_printed_proof_gives_slips_included():
    hat, tilde = (sorted_by_powers(part) for part in proof("paper"))
    for i, sign in enumerate((-1, 1, 1)):
        assert sp.simplify(sign * hat[i] - PRINTED_HAT[i]) == 0
        assert sp.simplify(tilde[i] - PRINTED_TILDE[i]) == 0


@pytest.mark.parametrize("form", up.theory.FORMS)
@pytest.mark.parametrize("values", POINTS)
def test_every_part_agrees_with_the_proof_carried_out_symbolically(form, values):
    found, ratio = made(values, form, lam=2 * float(values[mu])), sp.Rational(1, 3)
    hat, tilde = (sorted_by_powers(part) for part in proof(form))
    for i, (sign, power) in enumerate(((-1, 0), (1, 1), (1, 2)), start=1):
        expected_hat = at(sign * hat[i - 1] * ratio**power, values)
        expected_tilde = at(tilde[i - 1] * ratio**power, values)
        total = expected_hat + (-1 if i == 1 else 1) * expected_tilde
        scale = 1e-12 * float(abs(expected_hat) + abs(expected_tilde) + (1 / values[mu] if i == 1 else 0))
        assert abs(getattr(found, f"C{i}_hat") - expected_hat) <= scale
        assert abs(getattr(found, f"C{i}_tilde") - expected_tilde) <= scale
        assert abs(getattr(found, f"C{i}") - total) <= scale


numbers = st.floats(0.01, 1000.0)


@settings(max_examples=200)
@given(numbers, st.floats(1, 50), numbers, numbers, st.integers(1, 1000), st.floats(0, 1000))
def test_the_paper_s_constants_agree_with_an_independent_evaluation_to_twelve_digits(s, b, m, r, k, lam):
    found = up.theory.constants(smoothness=s, dissimilarity=b, mu=m, strong_convexity=r, cohort=k, lam=lam)
    with mpmath.workdps(50):
        s, b, m, r, k, lam = (mpmath.mpf(value) for value in (s, b, m, r, k, lam))
        ratio, root = m / (m + lam), mpmath.sqrt(2 / k)
        first = [1 / m, -s * b / (m**2 * r), -s * b**2 / (2 * r**2), -2 * b**2 / (k * r**2)]
        first.append(-(2 * s * b + r) / r * root * b / r)
        second = [
            s**2 / (m**2 * r),
            (s + m) / m**2,
            s * (s + r) * b / r**2,
            4 * s * b / (k * r**2),
        ]
        second.append((4 * s**2 * b + r * s * (1 + 2 * b)) / r**2 * root)
        third = [
            s * (s + r) ** 2 / (2 * r**2),
            2 * s**2 / (k * r**2),
            2 * s**2 * (s + r) / r**2 * root,
        ]
        for name, terms, power in (("C1", first, 0), ("C2", second, 1), ("C3", third, 2)):
            size = sum(abs(term) for term in terms) * ratio**power
            assert abs(getattr(found, name) - sum(terms) * ratio**power) <= 1e-12 * size


def test_exact_fractions_give_the_same_numbers():
    # K = 2 makes sqrt(2/K) rational, so everything is a fraction.
    s, b, m, r, ratio = Fraction(3, 2), Fraction(2), Fraction(5), Fraction(4), Fraction(1, 4)
    found = up.theory.constants(smoothness=1.5, dissimilarity=2, mu=5, strong_convexity=4, cohort=2, lam=15)
    c1 = 1 / m - s * b / (m**2 * r) - s * b**2 / (2 * r**2) - b**2 / r**2 - (2 * s * b + r) * b / r**2
    c2 = (s**2 / (m**2 * r) + (s + m) / m**2 + s * (s + r) * b / r**2 + 2 * s * b / r**2) * ratio
    c2 += (4 * s**2 * b + r * s * (1 + 2 * b)) / r**2 * ratio
    c3 = (s * (s + r) ** 2 / (2 * r**2) + s**2 / r**2 + 2 * s**2 * (s + r) / r**2) * ratio**2
    for name, exact in (("C1", c1), ("C2", c2), ("C3", c3)):
        assert getattr(found, name) == pytest.approx(float(exact), rel=1e-14)


@settings(max_examples=100)
@given(numbers, st.floats(1, 20), numbers, numbers, st.none() | st.integers(1, 500), numbers, st.floats(0.1, 10))
def test_units_are_right_in_the_proven_forms(s, b, m, r, k, lam, scale):
    # Measuring f in other units scales L, mu, rho and lambda alike: C1 has the unit 1/L, C2 none, C3 that of L.
    for form in ("repaired", "sharp"):
        one, other = (
            up.theory.constants(
                smoothness=q * s,
                dissimilarity=b,
                mu=q * m,
                strong_convexity=q * r,
                cohort=k,
                lam=q * lam,
                form=form,
            )
            for q in (1.0, scale)
        )
        size = 1 / m + one.C1_tilde + abs(one.C1_hat)
        assert math.isclose(other.C1 * scale, one.C1, rel_tol=1e-9, abs_tol=1e-9 * size)
        assert math.isclose(other.C2, one.C2, rel_tol=1e-9)
        assert math.isclose(other.C3 / scale, one.C3, rel_tol=1e-9)


def test_units_are_wrong_in_the_printed_ones():
    one, other = (
        up.theory.constants(
            smoothness=s, dissimilarity=1, mu=10 * s, strong_convexity=11 * s, cohort=None, lam=s, form="paper"
        )
        for s in (1.0, 2.0)
    )
    assert not math.isclose(other.C1 * 2, one.C1, rel_tol=1e-3)


def quadratic_run(mu, rounds):
    """One client, F = f = w^2/2, so L = 1, B = 1, rho = mu + 1; FedProx from w = 1: w <- mu/(mu + 1) w."""
    return np.array([(mu / (mu + 1)) ** t for t in range(rounds + 1)])


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0, 10.0])
def test_a_quadratic_attains_the_repaired_c1_and_refutes_the_printed_lemma_where_mu_is_above_one(mu):
    about = up.theory.constants(
        smoothness=1, dissimilarity=1, mu=mu, strong_convexity=mu + 1, cohort=None, lam=math.inf
    )
    w = quadratic_run(mu, 1)
    fall, squared = (w[0] ** 2 - w[1] ** 2) / 2, w[0] ** 2
    # (1 - (mu/(mu+1))^2)/2 = (2 mu + 1)/(2 (mu + 1)^2) = 1/mu - 1/(mu (mu+1)) - 1/(2 (mu+1)^2)
    assert about.in_form("repaired").C1 * squared == pytest.approx(fall, rel=1e-14)
    assert (about.C1 * squared > fall * (1 + 1e-12)) == (mu > 1)


def test_the_theorem_as_printed_is_refuted_by_the_same_quadratic():
    # The paper's sum runs over m = 0 .. M; lambda = infinity leaves FedProx alone, so the h terms are zero.
    mu, rounds = 10.0, 20
    about = up.theory.constants(
        smoothness=1, dissimilarity=1, mu=mu, strong_convexity=mu + 1, cohort=None, lam=math.inf
    )
    squares = quadratic_run(mu, rounds) ** 2
    none = np.zeros(rounds)
    printed = up.theory.rate_bound(constants=about, initial_loss=0.5, h1=none, h2=none)
    repaired = up.theory.rate_bound(constants=about.in_form("repaired"), initial_loss=0.5, h1=none, h2=none)
    assert about.C1 > 0
    assert squares.sum() / rounds > printed
    assert squares.sum() / rounds <= repaired


@settings(max_examples=200)
@given(numbers, st.floats(1, 50), numbers, st.integers(1, 1000))
def test_the_printed_sampling_error_is_no_less_than_the_sharp_one_so_its_lemma_is_true(s, b, r, k):
    given_ = {"smoothness": s, "dissimilarity": b, "mu": 1.0, "strong_convexity": r, "cohort": k, "lam": 0.0}
    paper, sharp = up.theory.constants(**given_), up.theory.constants(**given_, form="sharp")
    for name in ("C1_tilde", "C2_tilde", "C3_tilde"):
        assert getattr(paper, name) >= getattr(sharp, name)


def test_the_sharp_sampling_error_covers_an_exact_enumeration_of_cohorts():
    # Four clients F_i = L_i/2 (w - v_i)^2 with p_i = 1/4; all 4^K draws with replacement are enumerated.
    import itertools

    curvature, centre = np.array([1.0, 0.6, 0.3, 0.9]), np.array([1.0, -2.0, 0.5, 3.0])
    m, w0, draws = 4.0, 2.5, 3

    def f(w):
        return float(np.mean(curvature / 2 * (w - centre) ** 2))

    gradients = curvature * (w0 - centre)
    sent = (curvature * centre + m * w0) / (curvature + m)
    expected = np.mean([f(np.mean(sent[list(who)])) for who in itertools.product(range(4), repeat=draws)])
    norm = abs(gradients.mean())
    b = math.sqrt(float(np.mean(gradients**2))) / norm
    about = up.theory.constants(
        smoothness=1.0, dissimilarity=b, mu=m, strong_convexity=m + 0.3, cohort=draws, lam=math.inf, form="sharp"
    )
    assert expected <= f(w0) - about.C1 * norm**2
    assert expected - f(sent.mean()) <= about.C1_tilde * norm**2
    # Not by much more than the proof gives away: nearly the variance alone remains.
    assert expected - f(sent.mean()) >= 0.05 * about.C1_tilde * norm**2


def test_lambda_may_be_one_number_per_round_and_infinity_is_plain_fedprox():
    found = up.theory.constants(
        smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=[0.0, 4.0, math.inf]
    )
    alone = [
        up.theory.constants(smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=x)
        for x in (0.0, 4.0, math.inf)
    ]
    assert found.C2.tolist() == [one.C2 for one in alone]
    assert found.C3.tolist() == [one.C3 for one in alone]
    assert found.C2[2] == found.C3[2] == 0
    assert found.ratio.tolist() == [1.0, 0.5, 0.0]
    assert found.C1 == alone[0].C1 == alone[2].C1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"smoothness": 0}, r"smoothness.*0.*0"),
        ({"dissimilarity": 0}, r"dissimilarity.*0.*>= 1: i\.i\.d\. clients.*B = 1"),
        ({"dissimilarity": math.inf}, r"dissimilarity.*inf"),
        ({"mu": 0}, r"\bmu\b.*\b0\b"),
        ({"strong_convexity": -1}, r"strong_convexity.*-1"),
        ({"cohort": 0}, r"cohort.*0.*integer >= 1"),
        ({"cohort": 2.5}, r"cohort.*2\.5"),
        ({"lam": -1}, r"lam.*-1.*>= 0"),
        ({"lam": [1, -2]}, r"\blam\b.*-2\b"),
        ({"lam": [1, math.nan]}, r"\blam\b.*\bnan\b"),
        ({"lam": []}, "data round"),
        ({"lam": "two"}, r"lam.*'two'"),
        ({"form": "sharpe"}, r"did you mean 'sharp'\?"),
    ],
)
def test_numbers_that_no_problem_has_are_refused_in_one_sentence(wrong, words):
    given_ = {"smoothness": 1, "dissimilarity": 1.5, "mu": 1, "strong_convexity": 1, "cohort": 3, "lam": 1} | wrong
    with pytest.raises(up.InputError) as error:
        up.theory.constants(**given_)
    assert re.search(words, str(error.value))
    assert "\n" not in str(error.value)

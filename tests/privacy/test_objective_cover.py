"""delta = 0 of objective perturbation: what floating point does to a minimiser is bounded, and covered."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import upcycled as up
from tests.privacy.runs import cohort, setting
from tests.privacy.test_tilt_noise import known_words
from tests.reference import softmax_gradient
from upcycled.core.engine import Task
from upcycled.core.layout import layout_of
from upcycled.core.mechanism import Ask, Release, Trained
from upcycled.core.objective import softmax_loss
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import Problem, ShiftedMinimiser
from upcycled.core.vectors import Shards, grid_step
from upcycled.engines import certified
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.models.linear import LinearModel
from upcycled.privacy.mechanisms.objective_perturbation import Cover, fold
from upcycled.privacy.mechanisms.requirements import constants_of
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise

# The privacy loss, by other means.


def test_a_shift_at_the_bound_costs_what_the_cover_is_charged_and_no_more():
    """2 gamma/a + g sqrt(D), along the diagonal, where the L1 distance is sqrt(D) times the L2 distance."""
    size, a, gamma, rate = 42, 0.5, 1e-10, 2.5e6
    grid = float(grid_step(np.array([1 / rate]))[0])
    scale = mpmath.mpf(math.ceil(math.sqrt(size) / (rate * grid)))
    each = (2 * gamma / a / grid + math.sqrt(size)) / math.sqrt(size)  # how many steps each number moves by
    loss = size * each / scale  # each number's log-ratio, k steps away, is k/t: see test_tilt_noise
    privacy = up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0, gamma=gamma, cover_alpha=rate)
    charged = privacy.fit(setting(sizes=[224])).charge(cohort([0])).epsilon[0]
    exact = up.privacy.objective_round_epsilon(alpha=20, classes=2, norm_bound_squared=2, n=224, a=a)
    assert loss <= charged - exact
    assert loss == pytest.approx(charged - exact, rel=1e-6)


def one_number(x, data, a, alpha):
    """The density of the minimiser of mean log(1 + exp(-z x)) + a/2 x^2 + n x, n of density alpha exp(-alpha |n|)/2."""
    z = np.array(data)[:, None]
    sigmoid = 1 / (1 + np.exp(z * x))
    slope, curvature = -(z * sigmoid).mean(axis=0) + a * x, (z**2 * sigmoid * (1 - sigmoid)).mean(axis=0) + a
    return alpha / 2 * np.exp(-alpha * np.abs(slope)) * curvature


def released(data, error, a, alpha, step, scale):
    """P(k) of the released integer, k = -reach .. reach, by quadrature: rint((x + error)/step) + discrete Laplace."""
    reach, q = 60, math.exp(-1 / scale)
    chances = []
    for k in range(-reach, reach + 1):
        inside = (k - 0.5 + (np.arange(200) + 0.5) / 200) * step - error
        chances.append(one_number(inside, data, a, alpha).mean() * step)
    away = np.abs(np.arange(-reach, reach + 1)[:, None] - np.arange(-reach, reach + 1)[None, :])
    return (q**away * (1 - q) / (1 + q)) @ np.array(chances)


def test_the_density_that_is_integrated_is_one():
    assert released((1, -1), 0.0, 0.5, 1.5, 0.25, 6.0).sum() == pytest.approx(1, abs=1e-3)


def test_by_quadrature_a_solver_that_errs_against_its_neighbour_stays_within_epsilon_thanks_to_its_cover():
    """One number, n = 2: one neighbour's solver errs by + gamma/a, the other's by - gamma/a, before a coarse grid."""
    a, alpha, gamma, step, scale = 0.5, 1.5, 0.2, 0.25, 6.0
    # Records of |z| <= 1: gradients differ by 2/n at most, curvatures lie between 0 and 1/4.
    exact = 2 * alpha / 2 + math.log(1 + 0.25 / (2 * a))
    cover = (2 * gamma / a / step + 1) / scale
    ratios = {}
    for error in (0.0, gamma / a):
        one, two = (released(data, off, a, alpha, step, scale) for data, off in (((1, 1), error), ((1, -1), -error)))
        middle = slice(20, 101)  # far out, what the quadrature leaves out shows
        ratios[error] = np.abs(np.log(one / two))[middle].max()
    assert ratios[gamma / a] <= exact + cover
    # The errors show, so that the cover is needed.
    assert ratios[gamma / a] > ratios[0.0] + cover / 3


# The fold.


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.floats(0.1, 3),
)
def test_the_fold_brings_no_two_points_further_apart(one, two, radius):
    points = np.array([one, two])
    found = fold(points, np.array([0.5, -1.0, 0.0]), np.full(2, radius))
    assert np.linalg.norm(found[0] - found[1]) <= np.linalg.norm(points[0] - points[1]) * (1 + 1e-12) + 1e-14


def test_the_fold_keeps_what_is_near_and_ends_at_the_centre():
    centre, direction = np.array([1.0, 2.0]), np.array([0.6, 0.8])
    distances = np.array([0.0, 0.5, 2.0, 2.5, 3.9, 4.0, 1e9, 1e300])
    found = fold(centre + distances[:, None] * direction, centre, np.full(8, 2.0))
    expected = centre + np.array([0, 0.5, 2.0, 1.5, 0.1, 0, 0, 0])[:, None] * direction
    assert np.allclose(found, expected, rtol=1e-14)
    assert np.array_equal(found[5:], np.tile(centre, (3, 1)))


# Every tilt.


class Tilt:
    """A source whose tilts have this norm and direction, and whose cover is zero: what would leave without it."""

    name = "tilt"

    def __init__(self, norm, direction, rate):
        self.norm, self.direction, self.rate = norm, direction, rate

    def exponentials(self, clients, count, purpose, start=0):
        return np.full((clients.size, count), self.norm * self.rate / count)

    def normals(self, clients, count, purpose, start=0):
        return np.tile(self.direction, (clients.size, 1))

    def laplace_steps(self, clients, count, scale, purpose, start=0):
        return np.zeros((clients.size, count))


def exact_minimiser(x, y, start, tilt, a):
    """Newton's method with 60 digits, for two classes: weights (2, features), then two biases."""
    x = np.column_stack([x, np.ones(len(x))])
    features = x.shape[1]
    to = lambda vector: mpmath.matrix([mpmath.mpf(float(v)) for v in vector])  # noqa: E731
    rows = [[mpmath.mpf(float(v)) for v in row] for row in x]

    def place(k, j):
        return k * (features - 1) + j if j < features - 1 else 2 * (features - 1) + k

    point, centre, linear = to(start), to(start), tilt
    for _ in range(60):
        gradient, hessian = a * (point - centre) + linear, a * mpmath.eye(len(start))
        for row, label in zip(rows, y, strict=True):
            scores = [mpmath.fsum(point[place(k, j)] * row[j] for j in range(features)) for k in (0, 1)]
            p = 1 / (1 + mpmath.exp(scores[0] - scores[1]))
            for k, sign in ((0, -1), (1, 1)):
                for j in range(features):
                    gradient[place(k, j)] += sign * (p - int(label)) * row[j] / len(rows)
                    for k2, sign2 in ((0, -1), (1, 1)):
                        for j2 in range(features):
                            curved = p * (1 - p) * sign * sign2 * row[j] * row[j2] / len(rows)
                            hessian[place(k, j), place(k2, j2)] += curved
        point = point - mpmath.lu_solve(hessian, gradient)
        if mpmath.norm(gradient) < mpmath.mpf(10) ** -40 * (1 + mpmath.norm(linear)):
            break
    else:
        raise AssertionError("Newton's method did not end")
    return point


LENGTHS = ("none", "usual", "likely", "radius", "between", "folded", "longest", "far beyond", "out of all bounds")


@pytest.mark.parametrize("length", LENGTHS)
def test_for_every_tilt_what_leaves_is_within_its_promise_of_the_exact_minimiser(length):
    mpmath.mp.dps = 60
    rng = np.random.default_rng(LENGTHS.index(length))
    n, features, size, a, alpha = 5, 2, 6, 0.5, 4.0
    x, y = rng.normal(size=(n, features)), rng.integers(0, 2, n)
    x = (x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)) * 0.999).astype(np.float32)
    start = rng.normal(size=size).astype(np.float32)
    facts = setting(sizes=[n], num_parameters=size)
    privacy = up.privacy.ObjectivePerturbation(alpha, norm_bound=1.0)
    fitted = privacy.fit(facts)
    gamma, rate = fitted.shared["gamma"], fitted.shared["cover_alpha"]
    cover = Cover(
        constants_of(facts, facts.convex, 1.0),
        a,
        size,
        np.array([n]),
        np.array([alpha]),
        gamma,
        rate,
    )
    mine = np.zeros(1, dtype=np.int64)
    radius, longest = float(cover.radius(mine)[0]), float(cover.longest(mine, np.zeros(1))[0])
    norm = {
        "none": 0.0,
        "usual": size / alpha,
        "likely": float(cover.likely_norm(mine)[0]),
        "radius": a * radius,
        "between": 1.5 * a * radius,
        "folded": 2 * a * radius,
        "longest": longest,
        "far beyond": 1e3 * longest,
        "out of all bounds": 1e300,
    }[length]
    direction = rng.normal(size=size)
    source, everyone = Tilt(norm, direction, alpha), Cohort(mine, np.array([fitted.solver(None).local.epochs]))
    problem = fitted.problem(Problem(a=a), start, everyone, source)
    # Rounding is bounded for tilts of this length, so none may be longer.
    assert np.linalg.norm(problem.b) == pytest.approx(min(norm, longest), rel=1e-13)
    module = up.models.logistic((features,), 2)
    shards = Shards(x, y, np.array([0, n]))
    task = Task(module, layout_of(module), 2, shards, None, fitted.solver(None), 0, up.losses.CrossEntropy())
    trained = certified.train_certified(task, fitted.solver(None), Ask(1, 1, 0, everyone, start, problem))
    found = fold(trained.vectors, start.astype(np.float64), cover.radius(mine))[0]
    to = [mpmath.mpf(d) for d in direction.tolist()]
    length_of = mpmath.norm(to)
    tilt = mpmath.matrix([mpmath.mpf(norm) * d / length_of for d in to])
    exact = exact_minimiser(x, y, start, tilt, mpmath.mpf(a))
    away = exact - mpmath.matrix([mpmath.mpf(float(v)) for v in start])
    far = mpmath.norm(away)
    kept = 1 if far <= radius else max(2 * radius - far, 0) / far
    folded = [mpmath.mpf(float(w)) + kept * v for w, v in zip(start, away, strict=True)]
    off = mpmath.norm([f - mpmath.mpf(v) for f, v in zip(folded, found.tolist(), strict=True)])
    assert off <= gamma / a
    if length in ("longest", "far beyond", "out of all bounds"):
        assert np.array_equal(found, start)
    elif length in ("none", "usual", "likely"):
        assert kept == 1
    # What is released is that, on the grid, in float32.
    sent = fitted.release(trained, start, everyone, np.array([n]), source).vectors[0]
    grid = float(grid_step(np.array([1 / rate]))[0])
    assert np.array_equal(sent, (grid * np.rint(found / grid)).astype(np.float32))


def test_a_likely_tilt_is_exceeded_with_a_probability_below_e_to_the_minus_50():
    for size in (2, 42, 7850):
        cover = Cover(
            constants_of(setting(), softmax_loss(2), 1.0), 0.5, size, np.array([9]),
            np.array([3.0]), 1e-9, 1.0,
        )  # fmt: skip
        likely = cover.likely_norm(np.zeros(1, dtype=np.int64))[0]
        assert stats.gamma.logsf(likely * 3.0, size) < -50
        # The linear terms of algorithms, and such a tilt, stay within the radius.
        assert cover.radius(np.zeros(1, dtype=np.int64))[0] * 0.5 >= 3 * likely


# The steps.


@pytest.mark.parametrize("engine", [SEQUENTIAL, FUSED], ids=["sequential", "fused"])
@pytest.mark.parametrize("length", [0.0, 1.0, 1e4])
def test_a_tilt_of_any_length_is_solved_in_the_same_number_of_steps(monkeypatch, engine, length):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(30, 4)) / 4).astype(np.float32), rng.integers(0, 2, 30)
    module = up.models.logistic((4,), 2)
    solver = ShiftedMinimiser(lipschitz=2.0, smoothness=1.0, a=0.5, gamma=1e-8)
    # (S + a)(L/a)(S/(S + a))^T <= gamma: 6e8 (2/3)^T <= 1.
    assert solver.steps == math.ceil(math.log(6e8) / math.log(1.5)) == 50
    b = rng.normal(size=10)
    b *= length / np.linalg.norm(b)
    steps, original = [], LinearModel.gradient_sum
    monkeypatch.setattr(
        LinearModel, "gradient_sum", lambda *given, **named: steps.append(1) or original(*given, **named)
    )
    task = Task(
        module, layout_of(module), 2, Shards(x, y, np.array([0, 30])), None, solver, 0, up.losses.CrossEntropy()
    )
    opened = engine.open(task, 1)
    start = rng.normal(size=10).astype(np.float32)
    everyone = Cohort(np.array([0]), np.array([solver.local.epochs]))
    found = opened.train(Ask(1, 1, 0, everyone, start, Problem(0.5, b[None]))).vectors[0]
    opened.close()
    if engine is SEQUENTIAL:
        assert len(steps) == 50
    left = softmax_gradient(found, x.astype(np.float64), y, 2) + 0.5 * (found - start) + b
    assert np.linalg.norm(left) <= 1e-8 + 1e-15 * length


def test_objective_perturbation_brings_the_solver_whose_steps_say_nothing_about_the_tilt():
    fitted = up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0).fit(setting())
    solver = fitted.solver(None)
    assert type(solver) is ShiftedMinimiser
    assert solver.gamma == fitted.shared["gamma"] / 2  # rounding has the other half
    assert solver.local.epochs == solver.steps


# The release through the real mechanism.


@pytest.mark.parametrize("source", [SeededNoise(3, 1), SystemNoise(known_words(9))], ids=["seeded", "system"])
def test_the_cover_arrives_with_its_stated_scale_whatever_it_covers(source):
    """sqrt(D)/cover_alpha, Laplace: two thirds and three halves of it fail, and so does the Gamma-norm noise of old."""
    size, rate = 42, 1e4
    privacy = up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0, gamma=1e-9, cover_alpha=rate)
    fitted = privacy.fit(setting(sizes=[50] * 200))
    everyone, zero = cohort(range(200)), np.zeros(size, dtype=np.float32)
    trained = Trained(np.zeros((200, size)), np.ones(200, dtype=np.int64))
    vectors = fitted.release(trained, zero, everyone, np.full(200, 50), source).vectors.astype(np.float64)
    scale = math.sqrt(size) / rate
    assert stats.kstest(vectors.ravel(), "laplace", args=(0, scale)).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(vectors.ravel(), "laplace", args=(0, wrong * scale)).pvalue < 1e-9
    # Numbers of one release are independent: their squares too, which those of a vector with a norm are not.
    squares = vectors**2
    assert squares.sum(axis=1).var() == pytest.approx(size * squares.var(), rel=0.4)
    four = Release(np.arange(4), vectors[:4], np.full(4, 50), np.ones(4, dtype=np.int64))
    assert fitted.mean_noise_std(four) == pytest.approx(math.sqrt(2) * scale / 2)
    # Points elsewhere are covered by the same noise: with seeded words, by the very same.
    if source.name == "seeded":
        moved = Trained(np.full((200, size), 0.25), trained.num_steps)
        found = fitted.release(moved, zero, everyone, np.full(200, 50), source).vectors
        assert np.allclose(found, vectors + 0.25, rtol=0, atol=2e-8)  # float32 has 2^-26 there


def test_a_linear_term_that_the_fold_would_eat_stops_the_run_in_one_sentence():
    fitted = up.privacy.ObjectivePerturbation(4.0, norm_bound=1.0, gamma=0.5).fit(setting(sizes=[9]))
    b = np.zeros((1, 42))
    source, sent = SeededNoise(1, 1), np.zeros(42, dtype=np.float32)
    cover = Cover(
        constants_of(setting(), softmax_loss(2), 1.0),
        0.5,
        42,
        np.array([9]),
        np.array([4.0]),
        0.5,
        1.0,
    )
    room = cover.linear_room(np.zeros(1, dtype=np.int64))[0]
    b[0, 0] = room * 0.999
    fitted.problem(Problem(0.5, b), sent, cohort([0]), source)
    b[0, 0] = room * 1.001
    with pytest.raises(up.DivergedError, match=r"linear.*grown"):
        fitted.problem(Problem(0.5, b), sent, cohort([0]), source)

"""One logit, Huber's loss and weights of classes: their constants, solvers, noise and densities, by other means."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import upcycled as up
from tests.privacy.runs import QUIET, cohort, setting
from tests.wording import has_all
from upcycled.audit.attacks import audit_worlds, neighbours
from upcycled.core.engine import Task
from upcycled.core.layout import layout_of
from upcycled.core.mechanism import Ask, Trained
from upcycled.core.objective import huber_loss, one_logit_loss, softmax_loss
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, LocalSGD, NominalSGD, Problem, ShiftedMinimiser
from upcycled.core.vectors import Shards, grid_step
from upcycled.engines.certified import refuses_certified
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.losses import BinaryCrossEntropy, CrossEntropy, Huber, Multilabel, proven_loss
from upcycled.privacy.accounting.objective import loss_round_epsilon
from upcycled.privacy.mechanisms.requirements import project
from upcycled.privacy.noise.sources import SeededNoise
from upcycled.training.plan import make_plan

# Each loss, how many outputs, and (L/R~)^2, S/R~^2, rank and the most that eigenvalues over R~^2 add up to, by hand.
PROVEN = {
    "three classes": (CrossEntropy(), 3, 2.0, 0.5, 2, 2 / 3),
    "weighted classes": (CrossEntropy(class_weight=(0.5, 3.0, 1.0)), 3, 18.0, 1.5, 2, 2.0),
    "smoothed labels": (CrossEntropy(label_smoothing=0.1), 3, 2.0, 0.5, 2, 2 / 3),
    "one logit": (BinaryCrossEntropy(), 1, 1.0, 0.25, 1, 0.25),
    "one weighted logit": (BinaryCrossEntropy(class_weight=(4.0, 0.5)), 1, 16.0, 1.0, 1, 1.0),
    "Huber": (Huber(threshold=0.7), 1, 0.49, 1.0, 1, 1.0),
    "Huber on three outputs": (Huber(threshold=0.7), 3, 0.49 / 3, 1 / 3, 3, 1.0),
}


def target(objective, outputs, rng):
    """A target, often far from any output."""
    if objective.targets == "classes":
        return torch.tensor(int(rng.integers(0, max(outputs, 2))))
    drawn = torch.from_numpy(rng.normal(size=outputs) * 10.0 ** rng.integers(-1, 3))
    return drawn if outputs > 1 else drawn[0]


def loss_of(objective, x, y):
    """One record's loss as a function of all parameters: torch's own, of weights and a bias."""

    def loss(flat):
        outputs = flat.reshape(-1, x.numel() + 1)
        z = outputs[:, :-1] @ x + outputs[:, -1]
        return objective.per_sample(z[None], y[None])[0]

    return loss


def derivatives(loss, flat):
    """The gradient by torch, and the Hessian from differences of gradients."""

    def gradient(point):
        at = point.clone().requires_grad_()
        return torch.autograd.grad(loss(at), at)[0]

    step = 1e-5
    moved = step * torch.eye(flat.numel(), dtype=torch.float64)
    hessian = torch.stack([(gradient(flat + move) - gradient(flat - move)) / (2 * step) for move in moved])
    return gradient(flat), (hessian + hessian.T) / 2


@pytest.mark.parametrize("case", PROVEN)
def test_no_gradient_or_hessian_exceeds_the_constants_and_some_come_near(case):
    objective, outputs, slope, curvature, rank, trace = PROVEN[case]
    about = proven_loss(objective, outputs).about
    squared = 2.0**2 + 1
    lipschitz, smoothness = about.lipschitz(squared), about.smoothness(squared)
    assert lipschitz == pytest.approx(math.sqrt(slope * squared))
    assert smoothness == pytest.approx(curvature * squared)
    assert about.outputs == outputs
    rng = np.random.default_rng(0)
    steepest = most_curved = largest_sum = 0.0
    for attempt in range(36):
        x = torch.from_numpy(rng.normal(size=2))
        x *= 2 / x.norm()
        y = target(objective, outputs, rng)
        flat = torch.from_numpy(rng.normal(size=3 * outputs) * (10.0 ** rng.uniform(-2, 1.3), 30.0)[attempt % 2])
        if attempt < 10:  # undecided, where curvature is largest; two classes may share all of it
            flat = torch.zeros(3 * outputs, dtype=torch.float64)
            if attempt % 2 and outputs == 3 and objective.targets == "classes":
                flat[-1] = -50.0
                flat[6:8] = 0.0
            heaviest = int(np.argmax(getattr(objective, "class_weight", None) or (1.0,)))
            y = y * 0 if objective.targets == "numbers" else torch.tensor(heaviest)
        slopes, hessian = derivatives(loss_of(objective, x, y), flat)
        steepest = max(steepest, slopes.norm().item())
        eigenvalues = torch.linalg.eigvalsh(hessian).numpy()
        most_curved, largest_sum = max(most_curved, eigenvalues[-1]), max(largest_sum, eigenvalues.sum())
        assert (np.abs(eigenvalues) > 1e-6).sum() <= rank == about.rank
    assert 0.94 * lipschitz <= steepest <= lipschitz * (1 + 1e-12)
    assert 0.94 * smoothness <= most_curved <= smoothness * (1 + 1e-7)
    assert largest_sum <= trace * squared * (1 + 1e-7)
    assert largest_sum == pytest.approx(trace * squared, rel=0.05)
    assert about.rank / about.spread == pytest.approx(trace)


@pytest.mark.parametrize("case", PROVEN)
def test_derivatives_in_numpy_are_those_of_what_is_trained(case):
    objective, outputs = PROVEN[case][:2]
    rng = np.random.default_rng(1)
    z = rng.normal(size=(40, outputs)) * 10.0 ** rng.integers(-2, 3, (40, 1))
    y = torch.stack([target(objective, outputs, rng) for _ in range(40)])
    exact = torch.from_numpy(z.copy()).requires_grad_()
    objective.per_sample(exact, y).sum().backward()
    found = proven_loss(objective, outputs).slopes(z, y.numpy())
    assert found == pytest.approx(exact.grad.numpy(), abs=1e-13)


@dataclass(frozen=True)
class Steeper(Huber):
    """Twice what it derives from."""

    def per_sample(self, outputs, targets):
        return 2 * super().per_sample(outputs, targets)


def test_a_loss_without_a_proof_has_no_constants():
    unproven = [up.losses.SquaredError(), up.losses.AbsoluteError(), up.losses.Poisson(), up.losses.Quantile()]
    for objective in (*unproven, Multilabel(), Steeper()):
        assert proven_loss(objective, 1) is None
    assert proven_loss(BinaryCrossEntropy(), 2) is None
    assert proven_loss(CrossEntropy(), 1) is None


# Solvers.


def records(case, n, rng, features=4, norm=1.0):
    """Records within the norm, and targets as the loss takes them."""
    objective, outputs = PROVEN[case][:2]
    x = rng.normal(size=(n, features))
    x *= norm / np.maximum(norm, np.linalg.norm(x, axis=1, keepdims=True)) * 0.999999
    y = np.stack([target(objective, outputs, rng).numpy() for _ in range(n)])
    return x.astype(np.float32), y if objective.targets == "classes" else y.astype(np.float32)


def solve(case, solver, parts, *, a, b=None, start=None, engine=SEQUENTIAL, bias=True):
    """The solutions of clients with these records, in float64."""
    objective, outputs = PROVEN[case][:2]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    module = nn.Linear(x.shape[1], outputs, bias=bias)
    offsets = np.cumsum([0, *(len(part[1]) for part in parts)])
    task = Task(module, layout_of(module), 2, Shards(x, y, offsets), None, solver, 0, objective)
    assert engine.refuses(task) is None
    model = np.zeros(task.layout.size, dtype=np.float32) if start is None else start
    count = len(parts)
    everyone = Cohort(np.arange(count), np.full(count, solver.local.epochs))
    opened = engine.open(task, 1)
    try:
        return opened.train(Ask(1, 1, 0, everyone, model, Problem(a, b))).vectors
    finally:
        opened.close()


SOLVERS = {
    "gradient descent": lambda s: CertifiedGD(s, 0.3, 40),
    "promised gradient norm": lambda s: CertifiedMinimiser(3.0, s, 0.3, 1e-7),
    "shifted": lambda s: ShiftedMinimiser(3.0, s, 0.3, 1e-7),
    "minibatches": lambda s: NominalSGD(LocalSGD(lr=0.5, epochs=3, batch_size=8)),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("case", ["one logit", "Huber", "Huber on three outputs"])
def test_compiled_solvers_agree_with_the_numpy_ones_to_rounding(case, name):
    rng = np.random.default_rng(3)
    parts = [records(case, n, rng) for n in (33, 5, 70)]
    outputs = PROVEN[case][1]
    start, b = rng.normal(size=5 * outputs).astype(np.float32), rng.normal(size=(3, 5 * outputs))
    solver = SOLVERS[name](PROVEN[case][3] * 2.0)
    one, two = (solve(case, solver, parts, a=0.3, b=b, start=start, engine=kind) for kind in (SEQUENTIAL, FUSED))
    assert one.dtype == two.dtype == np.float64
    assert np.abs(one - start).max() > 0.1
    assert np.abs(one - two).max() < 1e-10


def rest(case, flat, x, y, a, b, start):
    """The gradient of the local objective, by torch."""
    objective, outputs = PROVEN[case][:2]

    def mean(point):
        weight, bias = point[: x.shape[1] * outputs].reshape(outputs, -1), point[x.shape[1] * outputs :]
        z = torch.from_numpy(x.astype(np.float64)) @ weight.T + bias
        return objective.per_sample(z, torch.from_numpy(y)).mean()

    at = torch.from_numpy(flat).requires_grad_()
    return torch.autograd.grad(mean(at), at)[0].numpy() + a * (flat - start) + b


@pytest.mark.parametrize("case", PROVEN)
def test_the_promised_gradient_norm_is_reached_on_the_objective_as_torch_has_it(case):
    rng = np.random.default_rng(4)
    x, y = records(case, 30, rng)
    about = proven_loss(*PROVEN[case][:2]).about
    size = 5 * about.outputs
    start, b = rng.normal(size=size).astype(np.float32), rng.normal(size=size) * 3
    for kind in (CertifiedMinimiser, ShiftedMinimiser):
        solver = kind(about.lipschitz(2.0), about.smoothness(2.0), 0.2, 1e-8)
        found = solve(case, solver, [(x, y)], a=0.2, b=b[None], start=start)[0]
        # torch rounds targets of numbers as they are, but its Huber and sigmoid in another order.
        assert np.linalg.norm(rest(case, found, x, y, 0.2, b, start)) <= 1e-8 + 1e-13


def test_a_threshold_is_taken_in_float64_and_never_rounded_up():
    """0.1 in float32 is more than 0.1: one record far away pulls by it, and the minimiser is threshold/a away."""
    objective = Huber(threshold=0.1)
    module = nn.Linear(1, 1, bias=False)
    shards = Shards(np.ones((1, 1), np.float32), np.array([1e9], np.float32), np.array([0, 1]))
    solver = CertifiedGD(1.0, 0.5, 200)
    task = Task(module, layout_of(module), 1, shards, None, solver, 0, objective)
    for engine in (SEQUENTIAL, FUSED):
        opened = engine.open(task, 1)
        everyone = Cohort(np.array([0]), np.array([200]))
        found = opened.train(Ask(1, 1, 0, everyone, np.zeros(1, np.float32), Problem(0.5))).vectors[0, 0]
        opened.close()
        assert found == pytest.approx(0.2, rel=1e-14)


@pytest.mark.parametrize("engine", [SEQUENTIAL, FUSED], ids=["sequential", "fused"])
def test_engines_refuse_certified_solvers_for_other_losses_and_models(engine):
    shards = Shards(np.zeros((2, 3), np.float32), np.zeros(2, np.float32), np.array([0, 2]))
    solver = CertifiedGD(1.0, 0.5, 3)
    for module, loss in (
        (nn.Linear(3, 1), up.losses.SquaredError()),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), Huber()),
    ):
        task = Task(module, layout_of(module), 1, shards, None, solver, 0, loss)
        assert engine.refuses(task) == refuses_certified(task)
        assert "cross_entropy, binary_cross_entropy (one logit) or huber only" in engine.refuses(task)


# How far one record moves the minimiser.


def opposite_pulls(case, n, norm):
    """Neighbours whose first record pulls with all of L, in opposite directions; the start makes sure of that."""
    objective, outputs = PROVEN[case][:2]
    x, other = np.zeros((n, 4), np.float32), np.zeros((n, 4), np.float32)
    if objective.targets == "numbers":
        x[0, 0] = other[0, 0] = norm
        far = np.zeros((n, outputs) if outputs > 1 else n, np.float32)
        high, low = far.copy(), far.copy()
        high[0], low[0] = 3e38, -3e38
        return (x, high), (other, low), np.zeros(5 * outputs, np.float32)
    # The bias is sure of another class than the record's, whichever way its features point.
    x[0, 0], other[0, 0] = norm, -norm
    heaviest = int(np.argmax(objective.class_weight or (1.0,)))
    start = np.zeros(5 * outputs, np.float32)
    if outputs == 1:
        start[-1] = 300.0 if heaviest == 0 else -300.0
    else:
        start[4 * outputs + (heaviest + 1) % outputs] = 300.0
    y = np.full(n, heaviest)
    return (x, y), (other, y), start


@pytest.mark.parametrize("case", PROVEN)
def test_one_record_moves_the_minimiser_no_further_than_stated_and_nearly_so_far(case):
    rng = np.random.default_rng(5)
    about, norm, a, n = proven_loss(*PROVEN[case][:2]).about, 3.0, 0.4, 12
    lipschitz, smoothness = about.lipschitz(norm**2 + 1), about.smoothness(norm**2 + 1)
    bound = up.privacy.erm_sensitivity(lipschitz=lipschitz, n=n, a=a, gamma=1e-4)
    solver = CertifiedMinimiser(lipschitz, smoothness, a, 1e-4)
    one, two, start = opposite_pulls(case, n, norm)
    found = solve(case, solver, [one, two], a=a, start=start)
    farthest = np.linalg.norm(found[0] - found[1])
    for _ in range(3):
        x, y = records(case, n, rng, norm=norm)
        x2, y2 = x.copy(), y.copy()
        x2[0], y2[0] = -x[0], records(case, 1, rng)[1][0]
        start = (rng.normal(size=5 * about.outputs) * 3).astype(np.float32)
        found = solve(case, solver, [(x, y), (x2, y2)], a=a, start=start)
        farthest = max(farthest, np.linalg.norm(found[0] - found[1]))
    assert farthest <= bound
    # Features turn round and the bias does not: R/R~ = 0.949 of it. Smoothed labels leave nobody wholly wrong.
    assert farthest >= (0.85 if case == "smoothed labels" else 0.94) * bound


@pytest.mark.parametrize("case", ["one logit", "Huber", "weighted classes"])
def test_one_record_moves_bolt_on_sgd_no_further_than_stated_and_a_good_part_of_it(case):
    about, norm, n = proven_loss(*PROVEN[case][:2]).about, 6.0, 20
    lipschitz, smoothness = about.lipschitz(norm**2 + 1), about.smoothness(norm**2 + 1)
    local = LocalSGD(lr=1 / (smoothness + 0.1), epochs=2, batch_size=5)
    bound = up.privacy.sgd_sensitivity(
        lipschitz=lipschitz, lr=local.lr, passes=2, batch=5, n=n, a=0.1, smoothness=smoothness
    )
    one, two, start = opposite_pulls(case, n, norm)
    found = solve(case, NominalSGD(local), [one], a=0.1, start=start)
    other = solve(case, NominalSGD(local), [two], a=0.1, start=start)
    assert 0.8 * bound <= np.linalg.norm(found - other) <= bound


# Noise.


def facts(loss, size, **changes):
    return setting(convex=loss, num_parameters=size, **changes)


@pytest.mark.parametrize(
    ("loss", "size", "slope", "curvature"),
    [
        (one_logit_loss(), 21, 1.0, 0.25),
        (huber_loss(0.5), 21, 0.5, 1.0),
        (huber_loss(0.5, 3), 63, 0.5 / math.sqrt(3), 1 / 3),
        (softmax_loss(2, 3.0), 42, 3 * math.sqrt(2), 1.5),
    ],
)
def test_the_noise_of_a_release_is_what_its_constants_ask_for(loss, size, slope, curvature):
    """R = 1 and a bias: R~^2 = 2. Sensitivities by hand, with the solvers' own steps."""
    n, a = 50, 0.5
    lipschitz, smoothness = slope * math.sqrt(2), curvature * 2
    clients = facts(loss, size, sizes=[n] * 200)
    privacy = up.privacy.ErmOutput(1.0, epsilon=2.0, delta=1e-5).fit(clients)
    moves = 2 * lipschitz / (n * a) * (1 - (1 - a / (smoothness + a)) ** 50)
    charged = privacy.charge(cohort([0]))
    grid = float(grid_step(charged.noise_std)[0]) * math.sqrt(size)
    assert charged.sensitivity[0] == pytest.approx(moves * (1 + 1e-5) + grid, rel=1e-12)
    std = up.privacy.gaussian_noise_std(sensitivity=float(charged.sensitivity[0]), rounds=40, epsilon=2.0, delta=1e-5)
    assert charged.noise_std[0] == pytest.approx(std, rel=1e-6)
    zeros = Trained(np.zeros((200, size)), np.ones(200, dtype=np.int64))
    everyone, sent = cohort(range(200)), np.zeros(size, dtype=np.float32)
    released = privacy.release(zeros, sent, everyone, np.full(200, n), SeededNoise(1, 1)).vectors.ravel()
    assert stats.kstest(released, "norm", args=(0, std)).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(released, "norm", args=(0, wrong * std)).pvalue < 1e-9
    # Bolt-on: 2 k L lr / batch without a quadratic term, at a rate that S allows.
    local = up.LocalSGD(lr=1.9 / smoothness, epochs=3, batch_size=10)
    bolt_on = up.privacy.BoltOnSGD(1.0, noise_std=1.0)
    free = facts(loss, size, sizes=[n], penalty=0.0, local=local)
    moves = bolt_on.fit(free).charge(cohort([0])).sensitivity[0]
    assert moves == pytest.approx(2 * 3 * lipschitz * local.lr / 10, rel=1e-4)
    with pytest.raises(up.InputError, match="BoltOnSGD"):
        bolt_on.fit(facts(loss, size, penalty=0.0, local=up.LocalSGD(lr=2.1 / smoothness)))


@pytest.mark.parametrize("options", [{}, {"gamma": 1e-9}])
def test_one_logit_at_half_the_regularisation_has_the_decision_noise_of_two_logits(options):
    """a/2 (|u|^2 + |v|^2) is least, given v - u, at (a/2)/2 |v - u|^2; the noise of v - u is sqrt(2) that of v."""
    privacy = up.privacy.ErmOutput(1.0, epsilon=2.0, delta=1e-5, **options)
    two = privacy.fit(facts(softmax_loss(2), 42, penalty=0.5)).charge(cohort([0, 1, 2])).noise_std
    one = privacy.fit(facts(one_logit_loss(), 21, penalty=0.25)).charge(cohort([0, 1, 2])).noise_std
    # Equal but for the grids, each of which is a part of the noise between 2^-20 and 2^-21.
    assert one == pytest.approx(math.sqrt(2) * two, rel=1e-4)
    # And the two models are the same one: half the parameters, the same decisions.
    rng = np.random.default_rng(0)
    x, y = records("one logit", 40, rng)
    single = solve("one logit", CertifiedMinimiser(2.0, 0.5, 0.25, 1e-10), [(x, y)], a=0.25)[0]
    module = nn.Linear(4, 2)
    solver = CertifiedMinimiser(2.0, 1.0, 0.5, 1e-10)
    task = Task(module, layout_of(module), 2, Shards(x, y, np.array([0, 40])), None, solver, 0, CrossEntropy())
    work = Ask(1, 1, 0, Cohort(np.array([0]), np.array([1])), np.zeros(10, np.float32), Problem(0.5))
    both = SEQUENTIAL.open(task, 1).train(work).vectors[0]
    assert single == pytest.approx(np.concatenate([both[4:8] - both[:4], both[9:] - both[8:9]]), abs=1e-8)


# Objective perturbation: the density of what is released.


def one_logit_log_density(w, x, y, a, alpha, pull):
    """The noise that makes w the minimiser, times its derivative's determinant; ``pull`` is a (w - w_bar)."""
    p = 1 / (1 + np.exp(-(x @ w)))
    gradient = ((p - y)[:, None] * x).mean(axis=0) + pull
    hessian = a * np.eye(len(w)) + (x.T * (p * (1 - p))) @ x / len(y)
    return -alpha * np.linalg.norm(gradient) + np.linalg.slogdet(hessian)[1]


def huber_log_density(w, x, y, a, alpha, pull, kappa=0.5):
    away = x @ w - y
    gradient = (np.clip(away, -kappa, kappa)[:, None] * x).mean(axis=0) + pull
    hessian = a * np.eye(len(w)) + (x.T * (np.abs(away) < kappa)) @ x / len(y)
    return -alpha * np.linalg.norm(gradient) + np.linalg.slogdet(hessian)[1]


LAWS = {
    "one logit": (one_logit_log_density, one_logit_loss(), lambda rng, n: rng.integers(0, 2, n)),
    "Huber": (huber_log_density, huber_loss(0.5), lambda rng, n: rng.normal(size=n) * 3),
}


@pytest.mark.parametrize("alpha", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("case", LAWS)
def test_in_two_dimensions_no_release_is_more_telling_than_charged(case, alpha):
    density, loss, targets = LAWS[case]
    rng, n, norm, a = np.random.default_rng(7), 3, 1.5, 0.2
    stated = float(loss_round_epsilon(loss=loss, alpha=alpha, norm_bound_squared=norm**2, n=n, a=a))
    worst = 0.0
    for _ in range(700):
        w = rng.normal(size=2) * 10.0 ** rng.uniform(-1.5, 1.5)
        x = rng.normal(size=(n, 2))
        across, along = np.array([-w[1], w[0]]), w / np.linalg.norm(w)
        # The record itself: any, or one that w is undecided about, nearly or wholly.
        x[0] = (x[0], across + 0.3 * w, across)[rng.integers(3)]
        x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
        y = targets(rng, n)
        x2, y2 = x.copy(), y.copy()
        # Its neighbour: turned round, its mirror image (of which w thinks the same), the same, or nothing.
        x2[0] = (-x[0], 2 * (x[0] @ along) * along - x[0], x[0], 0 * x[0])[rng.integers(4)]
        y2[0] = (targets(rng, 1)[0], y[0])[rng.integers(2)]
        # Wherever the round's model lies; far across, where norms differ by as much as gradients.
        pull = (a * w, rng.normal(size=2), 100 * across / np.linalg.norm(across))[rng.integers(3)]
        worst = max(worst, abs(density(w, x, y, a, alpha, pull) - density(w, x2, y2, a, alpha, pull)))
    # No record has its largest pull and its largest curvature at once.
    assert 0.55 * stated < worst <= stated


@pytest.mark.parametrize("case", LAWS)
def test_the_determinant_term_is_attained_by_a_single_record(case):
    # n = 1: against a record at x = 0, undecided (one logit: curvature 1/4) or within the threshold (Huber: 1).
    density, loss, _ = LAWS[case]
    norm, a = 1.3, 0.6
    ends = [density(np.zeros(1), np.array([[size]]), np.array([0.0]), a, 0.0, np.zeros(1)) for size in (norm, 0.0)]
    limit = float(loss_round_epsilon(loss=loss, alpha=1e-12, norm_bound_squared=norm**2, n=1, a=a))
    assert ends[0] - ends[1] == pytest.approx(limit, rel=1e-9)
    assert limit == pytest.approx(math.log(1 + norm**2 * {"one logit": 0.25, "Huber": 1.0}[case] / a))


def on_a_line(case, w, x, y, a, alpha):
    """The density of the minimiser of a model with one weight, at all of ``w``; noise ~ alpha exp(-alpha |n|)/2."""
    z = x[:, None] * w
    if case == "one logit":
        p = 1 / (1 + np.exp(-z))
        slopes, curvature = p - y[:, None], p * (1 - p)
    else:
        away = z - y[:, None]
        slopes, curvature = np.clip(away, -0.5, 0.5), (np.abs(away) < 0.5) * 1.0
    slope, curved = (x[:, None] * slopes).mean(axis=0) + a * w, (x[:, None] ** 2 * curvature).mean(axis=0) + a
    return alpha / 2 * np.exp(-alpha * np.abs(slope)) * curved


LINES = {
    # At w -> infinity the first pulls by 1, the second not at all; no two records of one number pull more differently.
    "one logit": ((np.array([1.0, 1.0]), np.array([0.0, 0.0])), (np.array([1.0, 1.0]), np.array([1.0, 0.0])), 0.4),
    # Both pull by 1/2, in opposite directions; the other record's Hessian jumps at 0.3 +- 0.5.
    "Huber": ((np.array([1.0, 1.0]), np.array([9.0, 0.3])), (np.array([1.0, 1.0]), np.array([-9.0, 0.3])), 0.55),
    # The record's own Hessian against none: all of the determinant, and a part of the pull.
    "Huber, near": ((np.array([1.0, 1.0]), np.array([0.0, 9.0])), (np.array([1.0, 1.0]), np.array([-9.0, 9.0])), 0.7),
}


@pytest.mark.parametrize("case", LINES)
def test_on_a_line_the_density_is_one_and_no_interval_is_more_telling_than_charged(case):
    """By quadrature, where Huber's Hessian jumps too: its density is one all the same."""
    a, alpha, points = 0.5, 2.0, np.linspace(-40, 40, 400_001)
    *worlds, part = LINES[case]
    law = case.partition(",")[0]
    first, second = (on_a_line(law, points, x, y, a, alpha) for x, y in worlds)
    for values in (first, second):
        assert integrate.trapezoid(values, points) == pytest.approx(1, abs=1e-4)
    cells = [values[:-1].reshape(2000, 200).sum(axis=1) for values in (first, second)]
    stated = float(loss_round_epsilon(loss=LAWS[law][1], alpha=alpha, norm_bound_squared=1.0, n=2, a=a))
    worst = np.abs(np.log(cells[0] / cells[1])).max()
    assert part * stated < worst <= stated


@pytest.mark.parametrize(
    ("loss", "size", "rank", "spread"), [(one_logit_loss(), 21, 1, 4), (huber_loss(2.0, 3), 63, 3, 3)]
)
def test_objective_perturbation_charges_its_gradients_its_determinant_and_its_cover(loss, size, rank, spread):
    n, a, alpha = 224, 0.5, 20.0
    privacy = up.privacy.ObjectivePerturbation(alpha, norm_bound=1.0, gamma=1e-9, cover_alpha=1e4)
    charged = privacy.fit(facts(loss, size, sizes=[n])).charge(cohort([0])).epsilon[0]
    slope = {1: 1.0, 3: 2 / math.sqrt(3)}[loss.outputs]
    grid = float(grid_step(np.array([1e-4]))[0]) * math.sqrt(size)
    by_hand = 2 * alpha * slope * math.sqrt(2) / n + rank * math.log(1 + 2 / (spread * n * a))
    assert charged == pytest.approx(by_hand + 2 * 1e4 * (1e-9 + a * grid / 2) / a, rel=1e-12)


def exact_minimiser(case, x, y, start, tilt, a):
    """Newton's method with 50 digits, for one output with a bias; Huber's pieces are quadratic, so it ends too."""
    mp = mpmath.mp.clone()
    mp.dps = 50
    rows = mp.matrix(np.column_stack([x, np.ones(len(x))]).astype(np.float64).tolist())
    centre, linear, kappa = mp.matrix(start.tolist()), mp.matrix(tilt.tolist()), mp.mpf(0.7)
    point = centre.copy()
    for _ in range(200):
        gradient, hessian = a * (point - centre) + linear, a * mp.eye(len(start))
        for i, z in enumerate(rows * point):
            if case == "one logit":
                p = 1 / (1 + mp.exp(-z))
                slope, curvature = p - int(y[i]), p * (1 - p)
            else:
                slope, curvature = min(max(z - mp.mpf(float(y[i])), -kappa), kappa), 0
                curvature = int(abs(slope) < kappa)
            gradient += slope * rows[i, :].T / len(y)
            hessian += curvature * rows[i, :].T * rows[i, :] / len(y)
        if mp.norm(gradient) < mp.mpf(10) ** -35:
            return np.array([float(v) for v in point])
        point -= mp.lu_solve(hessian, gradient)
    raise AssertionError("Newton's method did not end")


class Tilt:
    """A source whose tilts have this norm and direction."""

    name = "tilt"

    def __init__(self, norm, direction, rate):
        self.norm, self.direction, self.rate = norm, direction, rate

    def exponentials(self, clients, count, purpose, start=0):
        return np.full((clients.size, count), self.norm * self.rate / count)

    def normals(self, clients, count, purpose, start=0):
        return np.tile(self.direction, (clients.size, 1))


@pytest.mark.parametrize("norm", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("case", ["one logit", "Huber"])
def test_the_solver_ends_within_its_promise_of_the_exact_minimiser_under_every_tilt(case, norm):
    rng = np.random.default_rng(8)
    x, y = records(case, 6, rng, features=2)
    start, direction = rng.normal(size=3).astype(np.float32), rng.normal(size=3)
    about = facts(proven_loss(*PROVEN[case][:2]).about, 3, sizes=[6])
    fitted = up.privacy.ObjectivePerturbation(4.0, norm_bound=1.0).fit(about)
    solver = fitted.solver(None)
    everyone = Cohort(np.array([0]), np.array([solver.local.epochs]))
    problem = fitted.problem(Problem(a=0.5), start, everyone, Tilt(norm, direction, 4.0))
    exact = exact_minimiser(case, x, y, start, problem.b[0], 0.5)
    for engine in (SEQUENTIAL, FUSED):
        found = solve(case, solver, [(x, y)], a=0.5, b=problem.b, start=start, engine=engine)[0]
        # A float64 holds the exact one to a unit of its own.
        assert np.linalg.norm(found - exact) <= fitted.shared["gamma"] / 0.5
        assert fitted.shared["gamma"] < 1e-9


# Whole runs.


def federation(case, sizes=(45, 70, 33), seed=0):
    objective = PROVEN[case][0]
    rng = np.random.default_rng(seed)
    parts = [records(case, n, rng) for n in sizes]
    xs, ys = [x for x, _ in parts], [y for _, y in parts]
    classes = {} if objective.targets == "numbers" else {"num_classes": max(2, PROVEN[case][1])}
    return up.FederatedData.from_arrays(xs, ys, test=(xs, ys), targets=objective.targets, **classes)


MECHANISMS = {
    "erm": (up.privacy.ErmOutput(1.0, epsilon=3.0, delta=1e-4), {}),
    "bolt-on": (up.privacy.BoltOnSGD(1.0, epsilon=3.0, delta=1e-4), {"local": up.LocalSGD(lr=0.2, epochs=2)}),
    "objective": (up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=9.0), {}),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("case", PROVEN)
def test_every_certified_mechanism_trains_it_and_spends_what_it_was_given(case, name):
    privacy, changes = MECHANISMS[name]
    data, loss = federation(case), PROVEN[case][0]
    asked = {"algorithm": up.FedProx(mu=0.5), "loss": loss, "iterations": 2, "progress": False} | changes
    run = up.train(data, privacy=privacy, **asked)
    # Weights and smoothing have no kernels: another engine takes them without being asked.
    has_kernels = loss in (CrossEntropy(), BinaryCrossEntropy()) or loss.targets == "numbers"
    assert run.settings["engine"] == ("fused" if has_kernels else "sequential")
    delta = 0.0 if privacy.delta is None else privacy.delta
    assert run.privacy.max_epsilon(delta) == pytest.approx(privacy.epsilon, rel=1e-6)
    assert run.privacy.promise.checked[0].startswith(proven_loss(loss, PROVEN[case][1]).about.name)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("loss", ["mse", "mae", "poisson", "quantile", "multilabel", Steeper()])
def test_other_losses_are_refused_in_a_sentence_that_names_the_allowed_ones(name, loss):
    privacy, changes = MECHANISMS[name]
    data = federation("Huber on three outputs")
    if loss == "multilabel":
        xs, ys = [np.ones((9, 4), np.float32)] * 2, [np.eye(9, 3, dtype=np.float32)] * 2
        data = up.FederatedData.from_arrays(xs, ys, targets="labels")
    if loss == "poisson":
        xs, ys = [np.ones((9, 4), np.float32)] * 2, [np.ones(9, dtype=np.float32)] * 2
        data = up.FederatedData.from_arrays(xs, ys, targets="numbers")
    with pytest.raises(up.InputError) as error:
        up.train(data, algorithm=up.FedProx(mu=0.5), loss=loss, privacy=privacy, iterations=1, **QUIET, **changes)
    assert has_all(str(error.value), "cross_entropy, binary_cross_entropy", "huber")
    assert "\n" not in str(error.value)


def test_a_linear_layer_along_one_axis_of_a_sample_is_no_linear_model():
    """Each of a sample's three rows goes through the layer by itself: three outputs that share four weights."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(12, 3, 4)).astype(np.float32) for _ in range(2)]
    data = up.FederatedData.from_arrays(xs, [rng.normal(size=(12, 3)).astype(np.float32)] * 2, targets="numbers")
    asked = {"algorithm": up.FedProx(), "iterations": 1, "loss": "huber", "model": nn.Linear(4, 1)} | QUIET
    assert up.train(data, **asked).params.isfinite().all()
    with pytest.raises(up.InputError, match="linear model"):
        up.train(data, privacy=up.privacy.ErmOutput(1.0, 0.5), **asked)


def test_weights_that_are_not_one_a_class_are_refused_before_any_record_is_looked_up():
    data, loss = federation("three classes"), CrossEntropy(class_weight=(1.0, 2.0))
    with pytest.raises(up.InputError, match=r"list.*3"):
        up.train(
            data, algorithm=up.FedProx(), loss=loss, model=nn.Linear(4, 3), iterations=1,
            privacy=up.privacy.ErmOutput(1.0, 0.5), **QUIET,
        )  # fmt: skip


def test_targets_that_are_no_numbers_count_as_zero_and_others_stay_as_they_are():
    y = np.array([1.5, np.nan, np.inf, -np.inf, 3e38], dtype=np.float32)
    shards = Shards(np.ones((5, 2), np.float32), y, np.array([0, 5]))
    found = project(shards, 1.0).y
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, 0, 0, 0, float(np.float32(3e38))]
    labels = np.arange(5)
    assert project(Shards(shards.x, labels, shards.offsets), 1.0).y is labels


@pytest.mark.parametrize("case", ["one logit", "Huber"])
def test_with_real_noise_nothing_but_releases_is_published(case):
    rng = np.random.default_rng(0)
    parts = [records(case, n, rng) for n in (30, 41)]
    xs, ys = [x for x, _ in parts], [y for _, y in parts]
    if case == "Huber":
        ys[0][3] = np.inf
    given = {"targets": "numbers"} if case == "Huber" else {"num_classes": 2}
    data = up.FederatedData.from_arrays(xs, ys, test=(xs, ys), repair=True, **given)
    privacy, loss = up.privacy.ErmOutput(1.0, epsilon=3.0, delta=1e-4), PROVEN[case][0]
    asked = {"algorithm": up.FedProx(mu=0.5), "loss": loss, "iterations": 2, "progress": False, "noise": "system"}
    run = up.train(data, privacy=privacy, **asked)
    assert (run.loss, run.accuracy) == (None, None)
    assert all(record.loss is None for record in run.history)
    assert np.isfinite(run.private.history.last_scored().loss)


# Audits.


def plan_of(case, **changes):
    spec = {"algorithm": up.FedProx(mu=0.5), "iterations": 1, "engine": "sequential", "loss": PROVEN[case][0]}
    return make_plan(federation(case, sizes=(20, 20)), up.RunSpec(**(spec | changes)))


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_audit_of_one_logit_does_not_refute_what_is_claimed(name):
    privacy, changes = MECHANISMS[name]
    plan = plan_of("one logit", privacy=privacy, **changes)
    worlds = neighbours(plan, federation("one logit", sizes=(20, 20)).train, 0)
    found = audit_worlds(plan, worlds, 0, replays=30 if name == "objective" else 100)
    assert not found.is_broken
    assert 0 <= found.epsilon_lower <= found.claim.epsilon


@pytest.mark.parametrize("threshold", [0.7, 2.8])
def test_hubers_worst_record_is_told_apart_nearly_as_often_as_charged_and_a_threshold_four_times_off_is_caught(
    threshold,
):
    """A target at +-3e38 pulls with all of L; noise is calibrated to a threshold of 0.7."""
    plan = plan_of("Huber", privacy=up.privacy.ErmOutput(6.0, epsilon=1.0, delta=1e-4))
    train, (task, engine) = federation("Huber", sizes=(20, 20)).train, plan.on_data
    worlds = []
    for end in (3e38, -3e38):
        x, y = np.array(train.x), np.array(train.y)
        x[0], y[0] = np.array([6.0, 0, 0, 0]) * 0.999, end
        worlds.append(Shards(x, y, train.offsets))
    plan = replace(plan, on_data=(replace(task, objective=Huber(threshold=threshold)), engine))
    found = audit_worlds(plan, tuple(worlds), 0, replays=500)
    assert found.is_broken == (threshold > 1)
    if threshold < 1:
        assert 0.4 * found.claim.mu < found.mu_lower <= found.claim.mu

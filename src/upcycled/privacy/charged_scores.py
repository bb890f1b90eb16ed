"""Scores that everybody may see because they are charged: noisy counts over each client's held-out records.

A held-out record is in no training set, and which records are held out does not depend on any record, so a record is
covered by the training's releases or by the scores', never by both. The ledger adds both up all the same: an upper
bound, for one simple claim. Only the global model is scored, which is itself computed from releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import COUNT, POSITIVE, InputError, Limits, check_fields, unknown
from upcycled.core.mechanism import Charge, Fitted, Mechanism, NoiseSource, Setting, asked_epsilon
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import everybody
from upcycled.core.vectors import Ints, Real, grid_scale, grid_step, on_grid
from upcycled.privacy.accounting import gdp_mu
from upcycled.privacy.accounting.gaussian import squared_ratio
from upcycled.privacy.charge_kinds import Gaussian
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms.gaussian_noise import delta_for_noise

COUNTS = {"right": 1.0, "confusion": 2.0, "histogram": 2.0}
"""What is counted, and the square of what one replaced record moves: a cell by one, or two cells by one each."""
_LOSS_STEPS = 2.0**32
"""A sample's clipped loss is a whole number of such parts of its bound: sums of a million of them are exact."""


@dataclass(frozen=True)
class ChargedScores:
    """Publish noisy scores of the global model, and charge for them: ``train(..., charged_scores=...)``.

    Each client with held-out (test) samples adds N(0, noise_std^2) to each of its counts; sums over clients, divided
    by the public number of samples, are in ``record.metrics``: ``noisy_accuracy`` and ``noisy_accuracy_std`` (the
    noise's known std, before the score is clipped to 0..1), and by ``counts``:

    - ``"right"``: right answers alone. One replaced record moves them by 1.
    - ``"confusion"``: also the summed cells, ``noisy_confusion_0_1`` for class 0 taken for class 1. They move by
      sqrt(2).
    - ``"histogram"``: two classes only; cells of each class by the probability of class 1, whence ``noisy_auroc`` too.
      They move by sqrt(2).

    Charges are Gaussian and join those of training, so a mechanism is needed whose releases are; noise that is
    calibrated to an epsilon leaves room for them. With a budget, a client that cannot pay is left out of a score.

    Args:
        noise_std: of each count of each client.
        every: score after every so many iterations, and after the last.
        counts: ``"right"``, ``"confusion"`` or ``"histogram"``.
        bins: cells of each class in a histogram, an even number.
        loss_bound: also publish ``noisy_loss``, the mean of losses clipped to this; the sum's noise is noise_std times
            the bound.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=80, seed=0)
    >>> privacy = up.privacy.UpdateClipping(clip_norm=0.5, epsilon=4.0, delta=1e-4)
    >>> scores = up.privacy.ChargedScores(noise_std=8.0, every=4)
    >>> asked = {"algorithm": up.FedAvg(), "privacy": privacy, "charged_scores": scores, "progress": False}
    >>> run = up.train(data, **asked, iterations=8)
    >>> [record.iteration for record in run.history if "noisy_accuracy" in record.metrics]
    [4, 8]
    >>> round(run.privacy.max_epsilon(1e-4), 6)
    4.0
    """

    noise_std: Annotated[float, POSITIVE]
    every: Annotated[int, COUNT] = 1
    counts: str = "right"
    bins: Annotated[int, Limits(at_least=2, integer=True)] = 20
    loss_bound: Annotated[float, POSITIVE] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.counts not in COUNTS:
            raise unknown("counts", self.counts, COUNTS)
        if self.bins % 2:
            raise InputError(field="bins", value=self.bins, must="even, so that half of the cells are of class 0")

    def fit(self, iterations: int, classes: int, noise: str) -> FittedScores:
        """Return the scores of a run of so many iterations."""
        if self.counts == "histogram" and classes != 2:
            raise InputError(
                field="charged_scores.counts",
                value=self.counts,
                but=f"an AUROC needs 2 classes, and the data have {classes}: it must be 'right' or 'confusion'",
            )
        numbers = {"right": 1, "confusion": classes**2, "histogram": 2 * self.bins}[self.counts]
        return FittedScores(self, iterations, classes, numbers + (self.loss_bound is not None), noise == "system")


@dataclass(frozen=True)
class FittedScores:
    """Charged scores of one run: when, how many numbers, and what they cost."""

    wanted: ChargedScores
    iterations: int
    classes: int
    numbers: int
    """Noisy numbers that a client releases each time."""
    is_real: bool

    def is_due(self, iteration: int) -> bool:
        """Say whether there are scores after this iteration."""
        return iteration % self.wanted.every == 0 or iteration == self.iterations

    @property
    def sensitivity(self) -> float:
        """How far one replaced record moves a client's numbers, the loss in parts of its bound, grid included."""
        squared = COUNTS[self.wanted.counts] + (self.wanted.loss_bound is not None)
        grid = float(grid_step(np.array(self.wanted.noise_std)))
        return float(np.sqrt(squared)) + grid * float(np.sqrt(self.numbers))

    @property
    def times(self) -> int:
        """How often there are scores."""
        return -(-self.iterations // self.wanted.every)

    @property
    def squares(self) -> float:
        """What all of them add to a client's sum of (sensitivity / noise_std)^2."""
        return self.times * (self.sensitivity / self.wanted.noise_std) ** 2

    @property
    def draws(self) -> int:
        """Numbers of real noise in all of them; none where noise is simulated."""
        return self.times * self.numbers if self.is_real else 0

    def charge(self, clients: Ints) -> Charge:
        """Return what scores cost these clients once."""
        sensitivity, std = (np.full(clients.size, value) for value in (self.sensitivity, self.wanted.noise_std))
        draws = np.full(clients.size, self.numbers) if self.is_real else None
        return Charge(Gaussian.kind, clients, sensitivity, std, draws=draws)

    def count(self, logits: NDArray[Any], labels: Ints) -> Real:
        """Return a client's exact numbers: sums of what each sample gives by itself."""
        found = _loss_parts(logits, labels, self.wanted.loss_bound)
        guessed = logits.argmax(axis=1)
        if self.wanted.counts == "right":
            cells = np.array([(guessed == labels).sum()])
        elif self.wanted.counts == "confusion":
            # An output beyond the classes is in no cell.
            known = guessed < self.classes
            cells = np.bincount(labels[known] * self.classes + guessed[known], minlength=self.classes**2)
        else:
            cells = np.bincount(labels * self.wanted.bins + self._bins(logits), minlength=2 * self.wanted.bins)
        return np.concatenate([cells.astype(np.float64), found])

    def _bins(self, logits: NDArray[Any]) -> Ints:
        exact = logits.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            probability = np.nan_to_num(1 / (1 + np.exp(exact[:, 0] - exact[:, 1])), nan=0.0)
        bins = self.wanted.bins
        return np.minimum((probability * bins).astype(np.int64), bins - 1)

    def release(self, counted: Real, clients: Ints, noise: NoiseSource) -> Real:
        """Return the numbers (clients, numbers) with each client's own noise, on the grid."""
        std = np.full(clients.size, self.wanted.noise_std)
        steps = noise.gaussian_steps(clients, self.numbers, grid_scale(std), Purpose.SCORES)
        return on_grid(counted, steps, std)

    def metrics(self, released: Real, num_samples: int) -> dict[str, float]:
        """Return the scores by name: functions of what was released, and of the public number of samples."""
        total, std = released.sum(axis=0), self.wanted.noise_std * float(np.sqrt(len(released)))
        bound, right, found = self.wanted.loss_bound, total[:1], dict[str, float]()
        cells = total if bound is None else total[:-1]
        if self.wanted.counts == "confusion":
            matrix = cells.reshape(self.classes, self.classes)
            right, found = matrix.diagonal(), dict(zip(self._cells, matrix.ravel().tolist(), strict=True))
        elif self.wanted.counts == "histogram":
            low, high = np.split(cells.reshape(2, self.wanted.bins), 2, axis=1)
            right, found = np.concatenate([low[0], high[1]]), {"noisy_auroc": auroc(*cells.reshape(2, -1))}
        found |= {
            "noisy_accuracy": float(np.clip(right.sum() / num_samples, 0.0, 1.0)),
            "noisy_accuracy_std": std * float(np.sqrt(right.size)) / num_samples,
        }
        if bound is not None:
            found |= {
                "noisy_loss": bound * float(np.clip(total[-1] / num_samples, 0.0, 1.0)),
                "noisy_loss_std": bound * std / num_samples,
            }
        return found

    @property
    def names(self) -> frozenset[str]:
        """The names of all scores."""
        return frozenset(self.metrics(np.ones((1, self.numbers)), 1))

    @property
    def _cells(self) -> list[str]:
        return [f"noisy_confusion_{i}_{j}" for i in range(self.classes) for j in range(self.classes)]

    @property
    def released(self) -> str:
        """What leaves, in words."""
        what = {"right": "right answers", "confusion": "a confusion matrix", "histogram": "a histogram of scores"}
        loss = "" if self.wanted.loss_bound is None else " and clipped losses"
        return f"noisy counts of {what[self.wanted.counts]}{loss} on held-out records"


def auroc(negative: Real, positive: Real) -> float:
    """Return P(a positive's score is higher) + P(equal)/2 of cells in rising order; negative counts are taken as zero.

    >>> auroc(np.array([3.0, 1.0]), np.array([1.0, 3.0]))
    0.75
    """
    below, above = np.maximum(negative, 0.0), np.maximum(positive, 0.0)
    pairs = below.sum() * above.sum()
    wins = float(above @ (np.cumsum(below) - below / 2))
    return wins / float(pairs) if pairs > 0 else 0.5


def pay_for_scores(ledger: Ledger, scores: FittedScores, sizes: Ints, iteration: int, round: int) -> Ints:
    """Charge an iteration's scores, and return who paid: their samples are counted, and nobody else's.

    Who has held-out samples is public, and all of them take part, whoever trained, but for those whose budget does not
    reach.
    """
    clients = np.flatnonzero(sizes)
    paying: Ints = clients[ledger.can_pay_scores(iteration, round, scores.charge(clients))]
    if paying.size:
        ledger.charge_scores(iteration, round, scores.charge(paying))
    return paying


def check_scores(scores: FittedScores, asked: Mechanism, mechanism: Fitted, setting: Setting) -> None:
    """Refuse scores that could not be charged soundly beside the mechanism's releases."""
    charge = mechanism.charge(everybody(setting.facts.sizes.size))
    is_local = not (mechanism.is_central or mechanism.draws_secretly) and mechanism.promise.unit == "record"
    if charge is None or charge.kind != Gaussian.kind or not is_local:
        raise InputError(
            f"cannot be charged beside '{mechanism.name}': it must be a mechanism whose clients release vectors with "
            "Gaussian noise, such as ModelClipping or ErmOutput",
            field="charged_scores",
        )
    if setting.is_personal:
        raise InputError(
            f"are of the global model, but {setting.algorithm} is scored by personal ones, which are never released: "
            "leave them out",
            field="charged_scores",
        )
    if setting.has_batch_norm:
        raise InputError(
            "need a model that looks at each sample alone, but this one has batch norm: one record would move the "
            "others' scores",
            field="charged_scores",
        )
    epsilon, delta = asked_epsilon(asked), getattr(asked, "delta", None)
    if epsilon is not None and delta is not None:
        left = delta_for_noise(epsilon, delta, setting.rounds, setting)
        squares = setting.rounds * squared_ratio(charge.sensitivity, charge.noise_std) + scores.squares
        if (squares > gdp_mu(epsilon=epsilon, delta=left) ** 2 * (1 + 1e-9)).any():
            raise InputError(
                f"would cost more than the epsilon that '{mechanism.name}' was given, whose noise leaves no room for "
                "them: give it its noise in place of epsilon",
                field="charged_scores",
            )


def _loss_parts(logits: NDArray[Any], labels: Ints, bound: float | None) -> Real:
    """Return the sum of clipped cross-entropies, in parts of the bound; none without a bound."""
    if bound is None:
        return np.zeros(0)
    exact = logits.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = exact - exact.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
    parts = np.clip(np.nan_to_num(losses, nan=bound, posinf=bound, neginf=bound), 0.0, bound) / bound
    return np.array([np.rint(parts * _LOSS_STEPS).sum() / _LOSS_STEPS])

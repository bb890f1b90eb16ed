"""Estimates of the theorem's L and B from data and model, in float64.

F_i is the mean cross-entropy of client i's training samples, f = sum_i p_i F_i with p_i = n_i / sum_j n_j, the paper's
Eq. (obj): so f is the mean over all samples. Modules are taken in evaluation mode (no dropout).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vjp
from torch.nn.functional import cross_entropy

from upcycled.core.errors import InputError, unknown
from upcycled.core.layout import Layout, layout_of
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Real
from upcycled.data import FederatedData
from upcycled.losses.proven import softmax_slopes
from upcycled.models.linear_model import LinearModel, linear_model_of

ROWS_AT_ONCE = 4096
WEIGHTS = ("samples", "equal")
MOST_STEPS = 1000

Point: TypeAlias = ArrayLike | torch.Tensor
"""A flat parameter vector, such as ``result.params``."""


def estimate_smoothness(data: FederatedData, model: str | nn.Module, params: Point | None = None) -> float:
    """Return L: the largest over clients, since every F_i must be L-smooth.

    Without ``params``: the exact bound for all parameters, softmax regression only. Its Hessian is the mean of the
    Kronecker products of diag(p) - p p' and x~ x~', x~ = (x, 1). The largest eigenvalue of diag(p) - p p' over all
    probability vectors is 1/2, at p = (1/2, 1/2, 0, ...), so L_i = lambda_max(X~'X~/n)/2. With a bias it is the
    supremum, not only a bound: zero weights and biases (t, t, -t, -t, ...) bring every sample to that p as t grows;
    with two classes t = 0 does.

    With ``params``: the norm of the Hessian there, for any module, by power iteration on Hessian-vector products, which
    approaches it from below; a local value, which bounds nothing elsewhere.

    Args:
        data: the clients' training samples.
        model: ``"logistic"`` or a torch module.
        params: a flat parameter vector, such as ``result.params``; None for all parameters.

    Returns:
        L.

    Raises:
        InputError: if the model does not fit the data, or has no value for all parameters and no params are given.

    >>> import upcycled as up
    >>> data = up.FederatedData.from_arrays([[[3.0, 0.0], [-3.0, 0.0]]], [[0, 1]])
    >>> estimate_smoothness(data, "logistic")
    4.5
    """
    objective = objective_for(data, model)
    return float(client_smoothness(objective, None if params is None else _point(objective, params)).max())


def estimate_dissimilarity(
    data: FederatedData, model: str | nn.Module, params: Point, *, weights: str = "samples"
) -> float | Real:
    """Return B at a point, or at each of a stack of points (points, D), such as iterates along a run.

    B(w)^2 = E||grad F_i||^2 / ||grad f||^2, the expectation over clients with p_i = n_i/n as in the paper's Eq. (obj);
    ``weights="equal"`` takes all clients alike. The theorem wants one B for all points; its proof uses it at w(0),
    w(1), w(3), ... only, so their maximum serves a run. Infinity where grad f = 0 but clients disagree.

    Args:
        data: the clients' training samples.
        model: ``"logistic"`` or a torch module.
        params: a flat parameter vector, such as ``result.params``, or a stack of them.
        weights: ``"samples"`` or ``"equal"``.

    Returns:
        B, or one for each of the points.

    Raises:
        InputError: if the model does not fit the data, or for other weights.

    >>> import numpy as np, upcycled as up
    >>> data = up.FederatedData.from_arrays([[[1.0]], [[1.0]]], [[0], [0]], num_classes=2)
    >>> estimate_dissimilarity(data, "logistic", np.zeros(4))
    1.0
    """
    if weights not in WEIGHTS:
        raise unknown("weights", weights, WEIGHTS)
    objective = objective_for(data, model)
    clients = objective.train.num_clients
    shares = None if weights == "samples" else np.full(clients, 1 / clients)
    if np.ndim(params) == 2:
        points = [_point(objective, one) for one in params]  # type: ignore[union-attr]
        return np.array([objective.landscape(at, shares).dissimilarity for at in points])
    return objective.landscape(_point(objective, params), shares).dissimilarity


@dataclass(frozen=True, eq=False)
class Landscape:
    """f and the clients' gradients at one point."""

    loss: float
    """f(w)."""
    gradient: Real
    """grad f(w)."""
    gradient_norm: float
    second_moment: float
    """E||grad F_i||^2 over clients."""

    @property
    def dissimilarity(self) -> float:
        """B(w) = sqrt(E||grad F_i||^2) / ||grad f||, at least 1.

        Where grad f = 0: 1 if all clients agree (Li et al. 2020, definition 3), else infinity.
        """
        if self.second_moment == 0:
            return 1.0
        if self.gradient_norm == 0:
            return float("inf")
        # Jensen's inequality makes it 1 at least; rounding may not know.
        return max(1.0, float(np.sqrt(self.second_moment)) / self.gradient_norm)


@dataclass(frozen=True, eq=False)
class Objective:
    """F_i and f as functions of the flat vector: losses, gradients and Hessian products."""

    module: nn.Module
    layout: Layout
    train: Shards
    linear: LinearModel | None
    """Its closed form, where the module is softmax regression."""

    def client(self, client: int, at: Real) -> tuple[float, Real]:
        """Return F_i and its gradient."""
        x, y = self.train.client(client)
        if self.linear is not None:
            exact = _rows(x)
            logits = self.linear.outputs(at, exact)
            logits -= logits.max(axis=1, keepdims=True)
            loss_sum = float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).sum())
            return loss_sum / len(y), self.linear.gradient_sum(at, exact, y, softmax_slopes) / len(y)
        flat, loss, gradient = torch.from_numpy(at), 0.0, np.zeros(at.size)
        for rows in _pieces(len(y)):
            part, value = grad_and_value(self._loss_of(x[rows], y[rows]))(flat)
            loss, gradient = loss + float(value), gradient + part.numpy()
        return loss / len(y), gradient / len(y)

    def landscape(self, at: Real, weights: Real | None = None) -> Landscape:
        """Return f, its gradient and the second moment of the clients' gradients, one client at a time."""
        shares = self.train.sizes / self.train.num_rows if weights is None else weights
        loss, moment, gradient = 0.0, 0.0, np.zeros(at.size)
        for client, share in enumerate(shares.tolist()):
            own_loss, own = self.client(client, at)
            loss += share * own_loss
            moment += share * float(own @ own)
            gradient += share * own
        return Landscape(loss, gradient, float(np.linalg.norm(gradient)), moment)

    def hessian(self, client: int, at: Real) -> Callable[[Real], Real]:
        """Return v -> (Hessian of F_i at this point) v, by differentiating the gradient once more."""
        x, y = self.train.client(client)
        flat = torch.from_numpy(at)
        # Reverse over reverse: every module that can be trained has it; the Hessian is its own transpose.
        products = [vjp(grad(self._loss_of(x[rows], y[rows])), flat)[1] for rows in _pieces(len(y))]

        def product(vector: Real) -> Real:
            along = torch.from_numpy(vector)
            total: Real = sum(one(along)[0].numpy() for one in products) / len(y)
            return total

        return product

    def _loss_of(self, x: Any, y: Ints) -> Callable[[torch.Tensor], torch.Tensor]:
        features, labels = torch.from_numpy(self._as_input(x)), torch.from_numpy(np.array(y))

        def loss(flat: torch.Tensor) -> torch.Tensor:
            logits = functional_call(self.module, self.layout.split(flat), (features,))
            return cross_entropy(logits, labels, reduction="sum")

        return loss

    def _as_input(self, x: Any) -> Any:
        takes_tokens = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in self.module.modules())
        return np.array(x, dtype=np.int64 if takes_tokens else np.float64)


def objective_for(data: FederatedData, model: str | nn.Module) -> Objective:
    """Return the objectives of a model on the clients' training samples; a module that is passed is left alone."""
    if not isinstance(model, nn.Module):
        if model != "logistic":
            raise InputError(
                field="model", value=model, must="'logistic' or a module such as result.model or up.models.mlp(...)"
            )
        model = nn.Linear(int(np.prod(data.train.x.shape[1:])), data.num_classes)
    own = copy.deepcopy(model).cpu()
    layout = layout_of(own)
    linear = linear_model_of(own, layout)
    return Objective(own.double().eval(), layout, data.train, linear)


def client_smoothness(objective: Objective, at: Real | None = None) -> Real:
    """Return the smoothness of each F_i: for all parameters, or at a point."""
    if at is not None:
        return np.array([_norm(objective.hessian(i, at), at.size) for i in range(objective.train.num_clients)])
    if objective.linear is None:
        raise InputError(
            "is missing: only softmax regression has a known smoothness for all parameters, any other "
            "model has a local one, at the params given",
            field="params",
        )
    found = []
    for client in range(objective.train.num_clients):
        x = objective.linear.design(_rows(objective.train.client(client)[0]))
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        gram = x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T
        found.append(float(np.linalg.eigvalsh(gram)[-1]) / (2 * len(x)))
    return np.array(found)


def _point(objective: Objective, params: Point) -> Real:
    """Return ``params`` as a flat float64 vector."""
    given = params.detach().cpu().numpy() if isinstance(params, torch.Tensor) else params
    flat: Real = np.array(given, dtype=np.float64)
    if flat.shape != (objective.layout.size,):
        raise InputError(
            f"has shape {flat.shape}, but the model has {objective.layout.size} parameters", field="params"
        )
    if not np.isfinite(flat).all():
        raise InputError("has entries that are not finite numbers", field="params")
    return flat


def _rows(x: Any) -> Real:
    rows: Real = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    return rows


def _pieces(rows: int) -> list[slice]:
    return [slice(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE)]


def _norm(product: Callable[[Real], Real], size: int) -> float:
    """Return the largest |eigenvalue| by power iteration.

    ||H v|| for a unit v never exceeds it and never falls from step to step, also where +s and -s are both eigenvalues.
    """
    # A fixed start that favours no coordinate: a run's numbers should be the same each time.
    vector: Real = np.random.default_rng(0).standard_normal(size)
    vector /= np.linalg.norm(vector)
    found = 0.0
    for _ in range(MOST_STEPS):
        image = product(vector)
        size_now = float(np.linalg.norm(image))
        if size_now == 0:
            return 0.0
        if size_now - found <= 1e-9 * size_now:
            return size_now
        found, vector = size_now, image / size_now
    return found

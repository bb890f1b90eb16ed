"""F_i and f as functions of the flat vector: losses, gradients and Hessian products, in float64.

F_i is the mean cross-entropy of client i's training samples, f = sum_i p_i F_i with p_i = n_i / sum_j n_j, the paper's
Eq. (obj): so f is the mean over all samples. Modules are taken in evaluation mode (no dropout).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.func import functional_call, grad, vjp
from torch.nn.functional import cross_entropy

from upcycled.core.errors import InputError
from upcycled.core.layout import Layout, flatten, layout_of
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints, Real
from upcycled.models.softmax_regression import Softmax, softmax_of

ROWS_AT_ONCE = 4096

Point: TypeAlias = ArrayLike | torch.Tensor
"""A flat parameter vector, such as ``result.params``."""


class Federated(Protocol):
    """What is needed of the data: the clients' training samples."""

    @property
    def train(self) -> Shards:
        """Training samples of every client."""

    @property
    def num_classes(self) -> int:
        """How many classes there are."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """f and what the clients' gradients are like at one point."""

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
    module: nn.Module
    layout: Layout
    train: Shards
    softmax: Softmax | None
    """Its closed form, where the module is softmax regression."""

    @property
    def weights(self) -> Real:
        """p_i."""
        shares: Real = self.train.sizes / self.train.num_rows
        return shares

    def client(self, client: int, at: Real) -> tuple[float, Real]:
        """Return F_i and its gradient."""
        x, y = self.train.client(client)
        if self.softmax is not None:
            exact = _rows(x)
            return (
                self.softmax.loss_sum(at, exact, y) / len(y),
                self.softmax.gradient_sum(at, exact, y) / len(y),
            )
        flat, loss, gradient = torch.from_numpy(at), 0.0, np.zeros(at.size)
        for rows in _pieces(len(y)):
            loss_of = self._loss_of(x[rows], y[rows])
            found, value = torch.func.grad_and_value(loss_of)(flat)
            loss, gradient = loss + float(value), gradient + found.numpy()
        return loss / len(y), gradient / len(y)

    def landscape(self, at: Real, weights: Real | None = None) -> Landscape:
        """Return f, its gradient and the second moment of the clients' gradients, one client at a time."""
        shares = self.weights if weights is None else weights
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


def objective_of(module: nn.Module, train: Shards) -> Objective:
    """Return the objectives of a module on these training samples; the module itself is left alone."""
    own = copy.deepcopy(module).cpu()
    layout = layout_of(own)
    softmax = softmax_of(own, layout)
    return Objective(own.double().eval(), layout, train, softmax)


def objective_for(data: Federated, model: str | nn.Module) -> Objective:
    """Return the objectives of what a user passes as data and model."""
    if not isinstance(getattr(data, "train", None), Shards):
        raise InputError(f"is {type(data).__name__}, but it must be a FederatedData (see up.data)", field="data")
    if isinstance(model, nn.Module):
        return objective_of(model, data.train)
    if model != "logistic":
        raise InputError(
            field="model", value=model, must="'logistic' or a module such as result.model or up.models.mlp(...)"
        )
    features = int(np.prod(data.train.x.shape[1:]))
    return objective_of(nn.Linear(features, data.num_classes), data.train)


def point_of(objective: Objective, params: Point | None) -> Real:
    """Return a flat float64 vector: ``params``, or the module's own weights."""
    if params is None:
        return flatten(objective.module).astype(np.float64)
    given = params.detach().cpu().numpy() if isinstance(params, torch.Tensor) else params
    flat: Real = np.array(given, dtype=np.float64)
    if flat.shape != (objective.layout.size,):
        raise InputError(
            f"has shape {flat.shape}, but the model has {objective.layout.size} parameters", field="params"
        )
    if not np.isfinite(flat).all():
        raise InputError("has entries that are not finite numbers", field="params")
    return flat


def design(objective: Objective, client: int) -> Real:
    """Return the columns that the parameters of softmax regression multiply, for one client."""
    assert objective.softmax is not None  # callers have asked
    return objective.softmax.design(_rows(objective.train.client(client)[0]))


def _rows(x: Any) -> Real:
    rows: Real = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    return rows


def _pieces(rows: int) -> list[slice]:
    return [slice(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE)]

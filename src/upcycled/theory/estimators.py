"""The theorem's L, B and rho, from data and model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.vectors import Real
from upcycled.theory.empirical_risk import Federated, Objective, Point, design, objective_for, point_of

WEIGHTS = ("samples", "equal")
MOST_STEPS = 1000


def estimate_smoothness(data: Federated, model: str | nn.Module, params: Point | None = None) -> float:
    """Return L: the largest over clients, since every F_i must be L-smooth (:func:`client_smoothness`).

    Without ``params``: the exact bound for all parameters, softmax regression only. With ``params``: the norm of the
    Hessian there, for any module; a local value, which bounds nothing elsewhere.

    Args:
        data: the clients' training samples, such as a ``FederatedData``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``, or a torch module.
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
    return float(client_smoothness(data, model, params).max())


def client_smoothness(data: Federated, model: str | nn.Module, params: Point | None = None) -> Real:
    """Return the smoothness of each F_i.

    The Hessian of softmax regression is the mean of the Kronecker products of diag(p) - p p' and x~ x~', x~ = (x, 1).
    The largest eigenvalue of diag(p) - p p' over all probability vectors is 1/2, at p = (1/2, 1/2, 0, ...), so L_i =
    lambda_max(X~'X~/n)/2. With a bias it is the supremum, not only a bound: zero weights and biases (t, t, -t, -t, ...)
    bring every sample to that p as t grows; with two classes t = 0 does. Local values come from power iteration on
    Hessian-vector products, which approaches them from below.

    Args:
        data: the clients' training samples, such as a ``FederatedData``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``, or a torch module.
        params: a flat parameter vector, such as ``result.params``; None for all parameters.

    Returns:
        L_i of each client.

    Raises:
        InputError: if the model does not fit the data, or has no value for all parameters and no params are given.

    >>> import upcycled as up
    >>> data = up.FederatedData.from_arrays([[[3.0, 0.0], [-3.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]], [[0, 1], [0, 1]])
    >>> client_smoothness(data, "logistic").tolist()
    [4.5, 0.5]
    """
    objective = objective_for(data, model)
    if params is not None:
        return local_smoothness_of(objective, point_of(objective, params))
    if objective.softmax is None:
        raise InputError(
            "is missing: only softmax regression has a known smoothness for all parameters, any other "
            "model has a local one, at the params given",
            field="params",
        )
    return smoothness_of(objective)


def smoothness_of(objective: Objective) -> Real:
    """Return lambda_max(X~'X~/n)/2 of each client, for softmax regression."""
    found = []
    for client in range(objective.train.num_clients):
        x = design(objective, client)
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        gram = x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T
        found.append(float(np.linalg.eigvalsh(gram)[-1]) / (2 * len(x)))
    return np.array(found)


def local_smoothness_of(objective: Objective, at: Real) -> Real:
    """Return the norm of each client's Hessian at a point."""
    return np.array([_norm(objective.hessian(i, at), at.size) for i in range(objective.train.num_clients)])


def estimate_dissimilarity(
    data: Federated, model: str | nn.Module, params: Point, *, weights: str = "samples"
) -> float | Real:
    """Return B at a point, or at each of a stack of points (points, D), such as iterates along a run.

    B(w)^2 = E||grad F_i||^2 / ||grad f||^2, the expectation over clients with p_i = n_i/n as in the paper's Eq. (obj);
    ``weights="equal"`` takes all clients alike. The theorem wants one B for all points; its proof uses it at w(0),
    w(1), w(3), ... only, so their maximum serves a run. Infinity where grad f = 0 but clients disagree.

    Args:
        data: the clients' training samples, such as a ``FederatedData``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``, or a torch module.
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
        points = [point_of(objective, one) for one in params]  # type: ignore[union-attr]
        return np.array([objective.landscape(at, shares).dissimilarity for at in points])
    return objective.landscape(point_of(objective, params), shares).dissimilarity


def estimate_strong_convexity(data: Federated, model: str | nn.Module, mu: float, params: Point | None = None) -> float:
    """Return rho, the strong convexity of every F_i + mu/2 ||. - w||^2 (the paper's second assumption).

    This rho is not the upcycling coefficient. It is mu plus the lowest curvature of the F_i (:func:`lowest_curvature`):
    exactly mu for softmax regression, whose Hessian has the eigenvalue zero everywhere (all classes moved together).
    With ``params`` a local value for any module; not positive means that mu is too small there.

    Args:
        data: the clients' training samples, such as a ``FederatedData``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``, or a torch module.
        mu: the weight of the quadratic term.
        params: a flat parameter vector, such as ``result.params``; None for all parameters.

    Returns:
        rho.

    Raises:
        InputError: if the model does not fit the data, or has no value for all parameters and no params are given.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=2, sizes=20, seed=0)
    >>> estimate_strong_convexity(data, "logistic", mu=0.5)
    0.5
    """
    check_number("mu", mu, at_least=0)
    return mu + lowest_curvature(data, model, params)


def lowest_curvature(data: Federated, model: str | nn.Module, params: Point | None = None) -> float:
    """Return the lowest eigenvalue of the clients' Hessians: over all parameters (softmax regression) or at a point.

    Args:
        data: the clients' training samples, such as a ``FederatedData``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``, or a torch module.
        params: a flat parameter vector, such as ``result.params``; None for all parameters.

    Returns:
        The eigenvalue.

    Raises:
        InputError: if the model does not fit the data, or has no value for all parameters and no params are given.

    >>> import upcycled as up
    >>> lowest_curvature(up.data.synthetic("iid", clients=2, sizes=20, seed=0), "logistic")
    0.0
    """
    objective = objective_for(data, model)
    if objective.softmax is not None:
        return 0.0
    if params is None:
        raise InputError("is missing: only softmax regression has a known curvature for all parameters", field="params")
    return local_curvature_of(objective, point_of(objective, params))


def local_curvature_of(objective: Objective, at: Real) -> float:
    """Return the lowest eigenvalue of the clients' Hessians at a point."""
    return min(_lowest(objective.hessian(i, at), at.size) for i in range(objective.train.num_clients))


def _norm(product: Callable[[Real], Real], size: int, tolerance: float = 1e-9) -> float:
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
        if size_now - found <= tolerance * size_now:
            return size_now
        found, vector = size_now, image / size_now
    return found


def _lowest(product: Callable[[Real], Real], size: int) -> float:
    """Return the lowest eigenvalue: power iteration on s I - H, where s is the norm of H."""
    top = _norm(product, size)
    return top - _norm(lambda v: top * v - product(v), size)

"""The synthetic data of Li et al. (FedProx, 2020), as the paper's experiments use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import MACHINE_COUNT, InputError, check_number
from upcycled.core.machine import check_fits
from upcycled.core.vectors import Ints
from upcycled.data.arrays import whole
from upcycled.data.federated import FederatedData

# What the published sets were drawn with, and the largest client they have: without that limit one draw in a
# hundred has a client ten times as large as all others together.
_SIZE_LOG_MEAN, _SIZE_LOG_SD, _SIZE_LEAST, _SIZE_MOST = 4.0, 2.0, 50, 3104


def synthetic(
    alpha: float | str,
    beta: float | None = None,
    *,
    clients: int = 30,
    dim: int = 20,
    num_classes: int = 2,
    sizes: int | Sequence[int] | Ints | None = None,
    test_fraction: float = 0.1,
    seed: int = 0,
    public: bool = False,
) -> FederatedData:
    """Generate Syn(alpha, beta), or Syn(iid) with ``synthetic("iid")``.

    For client k: u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1), B_k ~ N(0, beta), v_k ~ N(B_k, 1),
    x ~ N(v_k, Sigma) with Sigma_jj = j^-1.2, y = argmax(W_k x + b_k). With "iid" one W and b ~ N(0, 1) serve all
    clients and v = 0. As in FedProx's own code, alpha and beta are standard deviations. u_k moves all logits of a
    sample by the same amount, so ``alpha`` does not change any label: clients differ by their own W_k even
    at alpha 0, and what (0, 0) and (1, 1) really differ in is ``beta``.

    Args:
        alpha: the standard deviation of the clients' model means, or "iid".
        beta: the standard deviation of the clients' feature means; not with "iid".
        clients: how many clients.
        dim: how many features.
        num_classes: how many classes.
        sizes: samples of every client, test samples included: one number, one per client, or None for
            50 + lognormal(4, 2), at most 3,104, like the published sets (median about 105, mean about 320).
        test_fraction: the part of every client's samples held out as its test part.
        seed: the same seed gives the same data.
        public: everybody may know the samples. Left out, a run with real noise keeps what it would keep of anybody's
            data, so that a rehearsal shows what a real run leaves.

    Returns:
        The data, with a test part unless ``test_fraction`` is 0.

    Raises:
        InputError: for a number out of its range.

    >>> synthetic(0.5, 0.5, clients=3, sizes=[10, 20, 30]).sizes.tolist()
    [9, 18, 27]
    >>> synthetic("iid", dim=4, num_classes=3).num_clients
    30
    """
    _check_kind(alpha, beta)
    clients = whole("clients", clients, at_least=1)
    dim, classes = whole("dim", dim, at_least=1), whole("num_classes", num_classes, at_least=2)
    rng = np.random.default_rng(whole("seed", seed, at_least=0))
    iid = isinstance(alpha, str)
    models = 1 if iid else clients
    what = f"{clients} clients of {dim} features and {classes} classes"
    check_fits(what, 8 * (clients * (dim + 2) + models * dim * classes))
    offsets = np.concatenate([[0], np.cumsum(_sizes(sizes, clients, rng))]).astype(np.int64)
    check_fits("the samples", int(offsets[-1]) * (4 * dim + 8), field="sizes", value=sizes)
    model_mean = np.zeros(1) if iid else rng.normal(0.0, abs(float(alpha)), clients)
    weights = rng.normal(model_mean[:, None, None], 1.0, (models, dim, classes))
    biases = rng.normal(model_mean[:, None], 1.0, (models, classes))
    # abs: NumPy takes no negative zero.
    center = rng.normal(0.0, 0.0 if beta is None else abs(beta), clients)
    means = np.zeros((clients, dim)) if iid else rng.normal(center[:, None], 1.0, (clients, dim))
    scale = np.arange(1, dim + 1, dtype=np.float64) ** -0.6

    x = np.empty((int(offsets[-1]), dim), dtype=np.float32)
    y = np.empty(len(x), dtype=np.int64)
    for k in range(clients):
        rows = slice(int(offsets[k]), int(offsets[k + 1]))
        own: NDArray[np.float64] = means[k] + scale * rng.standard_normal((rows.stop - rows.start, dim))
        x[rows] = own
        y[rows] = np.argmax(own @ weights[k % models] + biases[k % models], axis=1)
    # Draws are never copies of each other, so a million clients need not be searched for any.
    data = FederatedData.from_flat(x, y, offsets, num_classes=classes, public=public)
    data = replace(data, has_copies=False)
    return data.split(test_fraction, seed) if test_fraction else data


def _check_kind(alpha: float | str, beta: float | None) -> None:
    if isinstance(alpha, str):
        if alpha != "iid":
            raise InputError(field="alpha", value=alpha, must="a number >= 0 or 'iid'")
        if beta is not None:
            raise InputError(field="beta", value=beta, must="left out when alpha is 'iid'")
        return
    check_number("alpha", alpha, at_least=0)
    if beta is None:
        raise InputError(
            f"is None, but it must be a number >= 0 when alpha is {alpha:g}, as in synthetic(0.5, 0.5)", field="beta"
        )
    check_number("beta", beta, at_least=0)


def _sizes(sizes: int | Sequence[int] | Ints | None, clients: int, rng: np.random.Generator) -> Ints:
    if sizes is None:
        drawn = _SIZE_LEAST + rng.lognormal(_SIZE_LOG_MEAN, _SIZE_LOG_SD, clients).astype(np.int64)
        return np.minimum(drawn, _SIZE_MOST)
    if isinstance(sizes, int | float | np.generic):
        return np.full(clients, MACHINE_COUNT.check("sizes", sizes), dtype=np.int64)
    given = [MACHINE_COUNT.check(f"sizes[{i}]", size) for i, size in enumerate(sizes)]
    if len(given) != clients:
        raise InputError(f"has {len(given)} numbers, but clients is {clients} and they must be as many", field="sizes")
    return np.array(given, dtype=np.int64)

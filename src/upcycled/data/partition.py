"""Deal pooled samples out to clients: pure functions that return one sorted array of row numbers per client.

No row goes to two clients and every client gets at least one. All rows are dealt out, except where a function
says otherwise. Hand the result to :meth:`FederatedData.from_pool`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import InputError, check_number
from upcycled.core.vectors import Ints, Real
from upcycled.data.arrays import whole

__all__ = ["by_classes", "by_column", "dirichlet", "iid", "lognormal_sizes"]


def iid(labels: ArrayLike, clients: int, seed: int = 0, sizes: Sequence[int] | Ints | None = None) -> list[Ints]:
    """Deal at random, whatever the labels: equal sizes up to one, or the given ``sizes``.

    Rows beyond the sum of ``sizes`` are not dealt out.

    Args:
        labels: one for each sample.
        clients: how many clients.
        seed: the same seed deals alike.
        sizes: how many samples each client gets.

    Returns:
        The rows of each client, sorted.

    Raises:
        InputError: for more clients than samples, or sizes that do not fit.

    >>> [part.size for part in iid([0, 1, 0, 1, 0], clients=2)]
    [3, 2]
    """
    rows = len(_pool(labels))
    clients = _clients(clients, rows)
    if sizes is None:
        shares = np.full(clients, rows // clients)
        shares[: rows % clients] += 1
    else:
        shares = np.array([whole(f"sizes[{i}]", size, at_least=1) for i, size in enumerate(sizes)], dtype=np.int64)
        if len(shares) != clients:
            raise InputError(
                f"has {len(shares)} numbers, but clients is {clients} and they must be as many", field="sizes"
            )
        if shares.sum() > rows:
            raise InputError(
                f"adds up to {shares.sum()}, but it must be at most the number of samples {rows}", field="sizes"
            )
    order = _rng(seed).permutation(rows)[: int(shares.sum())]
    return _cut(order, shares)


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> list[Ints]:
    """Deal every class by its own shares, drawn from Dirichlet(alpha, .., alpha): small alpha, strong label skew.

    A client left without samples gets one from the client that has most.

    Args:
        labels: one for each sample.
        clients: how many clients.
        alpha: the smaller, the fewer classes a client has most of its samples in.
        seed: the same seed deals alike.

    Returns:
        The rows of each client, sorted.

    Raises:
        InputError: for more clients than samples, or a number out of its range.

    >>> sorted(int(i) for part in dirichlet([0, 0, 1, 1], clients=2, alpha=0.5) for i in part)
    [0, 1, 2, 3]
    """
    pool = _pool(labels)
    clients = _clients(clients, len(pool))
    check_number("alpha", alpha, at_least=1e-6, at_most=1e6)
    rng = _rng(seed)
    owner = np.empty(len(pool), dtype=np.int64)
    for label in np.unique(pool):
        rows = rng.permutation(np.flatnonzero(pool == label))
        counts = _rounded(_dirichlet_shares(rng, alpha, clients), len(rows))
        owner[rows] = np.repeat(np.arange(clients), counts)
    return _owned(_without_empty(owner, clients, rng), clients)


def by_classes(labels: ArrayLike, clients: int, classes_per_client: int, seed: int = 0) -> list[Ints]:
    """Give every client exactly ``classes_per_client`` classes, drawn so that all classes serve equally many clients.

    The samples of a class are dealt in equal numbers, up to one, to the clients that have it. When
    ``clients * classes_per_client`` is less than the number of classes, the classes left over are not dealt out.

    Args:
        labels: one for each sample.
        clients: how many clients.
        classes_per_client: how many classes each client gets.
        seed: the same seed deals alike.

    Returns:
        The rows of each client, sorted.

    Raises:
        InputError: if there are not enough classes, or not enough samples of one.

    >>> labels = np.array([0, 0, 1, 1, 2, 2])
    >>> [np.unique(labels[part]).size for part in by_classes(labels, clients=3, classes_per_client=2)]
    [2, 2, 2]
    """
    pool = _pool(labels)
    clients = _clients(clients, len(pool))
    classes, counts = np.unique(pool, return_counts=True)
    wanted = whole("classes_per_client", classes_per_client, at_least=1)
    if wanted > len(classes):
        raise InputError(field="classes_per_client", value=wanted, must=f"at most the number of classes {len(classes)}")
    rng = _rng(seed)
    holders: list[list[int]] = [[] for _ in classes]
    used = np.zeros(len(classes), dtype=np.int64)
    for client in range(clients):
        # The least used classes first, in random order among equals, keeps the uses within one of each other.
        for chosen in np.lexsort((rng.random(len(classes)), used))[:wanted]:
            holders[chosen].append(client)
            used[chosen] += 1
    owner = np.full(len(pool), -1, dtype=np.int64)
    for i, label in enumerate(classes):
        sharing = np.array(holders[i], dtype=np.int64)
        if len(sharing) > counts[i]:
            raise InputError(
                field="classes_per_client",
                value=wanted,
                must=f"smaller (or clients fewer): class {label} has {counts[i]} samples for {len(sharing)} clients",
            )
        if len(sharing):
            # Shuffled, so that the clients with the lower numbers do not always get the sample left over.
            owner[rng.permutation(np.flatnonzero(pool == label))] = np.resize(rng.permutation(sharing), counts[i])
    return _owned(owner, clients)


def by_column(values: ArrayLike) -> list[Ints]:
    """Make one client of every distinct value, in sorted order of the values.

    Args:
        values: one for each sample: a name, say, or a number.

    Returns:
        The rows of each client, sorted.

    Raises:
        InputError: for values that are no plain column, or missing ones.

    >>> [part.tolist() for part in by_column(["bob", "ann", "bob"])]
    [[1], [0, 2]]
    """
    found, owner = np.unique(_pool(values, "values"), return_inverse=True)
    return _owned(owner.astype(np.int64), len(found))


def lognormal_sizes(total: int, clients: int, sigma: float, seed: int = 0) -> Ints:
    """Return sizes that add up to ``total``: one each, and the rest in proportion to lognormal(0, sigma) draws.

    Args:
        total: what the sizes add up to.
        clients: how many sizes.
        sigma: the spread; 0 makes them equal up to one.
        seed: the same seed gives the same sizes.

    Returns:
        The sizes, at least 1 each.

    Raises:
        InputError: for fewer samples than clients, or a number out of its range.

    >>> lognormal_sizes(100, 4, sigma=0.0).tolist()
    [25, 25, 25, 25]
    """
    count = whole("clients", clients, at_least=1)
    rest = whole("total", total, at_least=count) - count
    check_number("sigma", sigma, at_least=0, at_most=20)
    draws = _rng(seed).lognormal(0.0, sigma, count)
    return 1 + _rounded(draws / draws.sum(), rest)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole("seed", seed, at_least=0))


def _pool(values: ArrayLike, field: str = "labels") -> NDArray[np.generic]:
    pool = np.asarray(values)
    if pool.ndim != 1 or pool.size == 0:
        raise InputError(f"has shape {pool.shape}, but it must be one value per sample", field=field)
    if pool.dtype.kind == "f" and not np.isfinite(pool).all():
        raise InputError(f"holds {pool[~np.isfinite(pool)][0]}, but every sample needs a finite one", field=field)
    return pool


def _clients(clients: int, rows: int) -> int:
    count = whole("clients", clients, at_least=1)
    if count > rows:
        raise InputError(field="clients", value=count, must=f"at most the number of samples {rows}")
    return count


def _rounded(shares: Real, total: int) -> Ints:
    """Return integers that add up to ``total``, each within one of its share."""
    edges = np.rint(np.cumsum(shares) * total).astype(np.int64)
    edges[-1] = total  # the shares add up to one only up to rounding
    return np.diff(edges, prepend=0)


def _dirichlet_shares(rng: np.random.Generator, alpha: float, clients: int) -> Real:
    """Draw Dirichlet shares through logarithms: gamma(alpha) itself underflows to zeros for a small alpha.

    gamma(a) has the law of gamma(a + 1) u^(1/a) with u uniform.
    """
    logs = np.log(rng.standard_gamma(alpha + 1.0, clients)) + np.log1p(-rng.random(clients)) / alpha
    weights = np.exp(logs - logs.max())
    shares: Real = weights / weights.sum()
    return shares


def _without_empty(owner: Ints, clients: int, rng: np.random.Generator) -> Ints:
    sizes = np.bincount(owner, minlength=clients)
    moved = owner.copy()
    for client in np.flatnonzero(sizes == 0):
        richest = int(sizes.argmax())
        moved[rng.choice(np.flatnonzero(moved == richest))] = client
        sizes[richest] -= 1
        sizes[client] = 1
    return moved


def _owned(owner: Ints, clients: int) -> list[Ints]:
    """Return the rows of every client; owner -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    order = order[int(np.count_nonzero(owner < 0)) :]
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    return _cut(order, sizes)


def _cut(order: Ints, sizes: Ints) -> list[Ints]:
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]

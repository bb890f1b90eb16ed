import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.data import partition

SEEDS = st.integers(0, 2**32)


@st.composite
def pools(draw):
    """Labels, and a number of clients that they are enough for."""
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=80))
    return labels, draw(st.integers(1, min(20, len(labels))))


@st.composite
def pools_for_classes(draw):
    """Labels, clients and classes per client such that every class has a sample for each who shares it."""
    classes = draw(st.integers(1, 6))
    wanted, clients = draw(st.integers(1, classes)), draw(st.integers(1, 12))
    sharing = -(-clients * wanted // classes)
    counts = draw(st.lists(st.integers(sharing, sharing + 9), min_size=classes, max_size=classes))
    return np.repeat(np.arange(classes) * 3, counts), clients, wanted


def check(parts, rows, clients, everything=True):
    """Each client has samples, no sample has two clients, rows are sorted; usually all are dealt out."""
    assert len(parts) == clients
    assert all(part.size >= 1 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)
    joined = np.concatenate(parts)
    assert len(np.unique(joined)) == len(joined)
    assert joined.min() >= 0
    assert joined.max() < rows
    if everything:
        assert len(joined) == rows


@given(pools(), SEEDS)
def test_iid_deals_everything_in_equal_sizes(pool, seed):
    labels, clients = pool
    parts = partition.iid(labels, clients, seed)
    check(parts, len(labels), clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 10), SEEDS)
def test_iid_follows_given_sizes_and_leaves_the_rest(sizes, rest, seed):
    rows = sum(sizes) + rest
    parts = partition.iid(np.zeros(rows), len(sizes), seed, sizes)
    check(parts, rows, len(sizes), everything=False)
    assert [len(part) for part in parts] == sizes


def test_iid_draws_every_row_alike():
    # Row 0 goes to client 0 of 4 with chance 1/4: of 400 seeds 100, sd sqrt(400 * 3/16) = 8.7
    hits = sum(0 in partition.iid(np.zeros(40), 4, seed)[0] for seed in range(400))
    assert abs(hits - 100) < 5 * 8.7


@given(pools(), st.floats(-6, 6), SEEDS)
def test_dirichlet_deals_everything_and_leaves_no_client_empty(pool, exponent, seed):
    labels, clients = pool
    check(partition.dirichlet(labels, clients, 10.0**exponent, seed), len(labels), clients)


def test_dirichlet_with_a_large_alpha_gives_every_client_its_share_of_every_class():
    labels = np.repeat([0, 1, 2], [1000, 2000, 500])
    for part in partition.dirichlet(labels, 10, alpha=1e6, seed=3):
        # shares are 1/10 up to sd sqrt(0.1 * 0.9 / 1e7) = 1e-4, then rounded to whole samples
        assert np.all(np.abs(np.bincount(labels[part]) - [100, 200, 50]) <= 3)


def test_dirichlet_with_a_small_alpha_gives_a_class_to_one_client():
    labels = np.repeat(np.arange(5), 100)
    sizes = np.array([len(part) for part in partition.dirichlet(labels, 8, alpha=1e-6, seed=0)])
    # each class goes whole to one client; the clients left empty got one sample each
    assert np.count_nonzero(sizes == 1) >= 3
    assert np.count_nonzero(sizes > 90) <= 5


def test_dirichlet_shares_have_the_variance_of_their_law():
    # A share of Dirichlet(a, .., a) over K clients has mean 1/K and variance (K - 1) / (K^2 (K a + 1)).
    k, a, n = 5, 0.5, 1000
    shares = np.array([[len(part) / n for part in partition.dirichlet(np.zeros(n), k, a, seed)] for seed in range(600)])
    expected = (k - 1) / (k**2 * (k * a + 1))
    assert shares.var() == pytest.approx(expected, rel=0.1)


@given(pools_for_classes(), SEEDS)
def test_by_classes_gives_each_client_exactly_that_many_classes(case, seed):
    pool, clients, wanted = case
    num_classes = len(np.unique(pool))
    parts = partition.by_classes(pool, clients, wanted, seed)
    held = [np.unique(pool[part]) for part in parts]
    assert [len(classes) for classes in held] == [wanted] * clients
    everything = clients * wanted >= num_classes
    check(parts, len(pool), clients, everything)
    uses = np.unique(np.concatenate(held), return_counts=True)[1]
    assert uses.max() - (uses.min() if everything else 0) <= 1


def test_by_classes_shares_a_class_equally():
    labels = np.repeat([0, 1], [10, 11])
    parts = partition.by_classes(labels, clients=4, classes_per_client=1, seed=0)
    assert sorted(len(part) for part in parts) == [5, 5, 5, 6]


def test_by_classes_leaves_classes_out_when_clients_are_few():
    labels = np.repeat(np.arange(10), 4)
    parts = partition.by_classes(labels, clients=2, classes_per_client=3, seed=1)
    assert len(np.unique(labels[np.concatenate(parts)])) == 6


@given(st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1))
def test_by_column_makes_a_client_of_every_value(values):
    parts = partition.by_column(values)
    check(parts, len(values), len(set(values)))
    assert [{values[i] for i in part} for part in parts] == [{name} for name in sorted(set(values))]


@given(st.integers(1, 40), st.integers(0, 5000), st.floats(0, 5), SEEDS)
def test_lognormal_sizes_add_up_and_leave_nobody_empty(clients, more, sigma, seed):
    sizes = partition.lognormal_sizes(clients + more, clients, sigma, seed)
    assert sizes.sum() == clients + more
    assert sizes.min() >= 1
    assert len(sizes) == clients


def test_lognormal_sizes_have_the_spread_asked_for():
    sizes = partition.lognormal_sizes(10_000_000, 2000, sigma=1.5, seed=0)
    assert np.log(sizes).std() == pytest.approx(1.5, rel=0.06)  # its own sd is 1.5 / sqrt(4000), 1.6 %
    sizes = partition.lognormal_sizes(1000, 10, sigma=1.0, seed=0)
    assert [len(part) for part in partition.iid(np.zeros(1000), 10, 0, sizes)] == sizes.tolist()


@pytest.mark.parametrize(
    "deal",
    [
        lambda seed: partition.iid(np.zeros(50), 5, seed),
        lambda seed: partition.dirichlet(np.arange(50) % 3, 5, 0.5, seed),
        lambda seed: partition.by_classes(np.arange(50) % 5, 5, 2, seed),
        lambda seed: [partition.lognormal_sizes(1000, 5, 1.0, seed)],
    ],
)
def test_the_seed_decides_and_no_global_generator_is_touched(deal):
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = ([part.tolist() for part in deal(seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: partition.iid([0, 1], 3), r"clients.*3.*samples 2"),
        (lambda: partition.iid([0, 1], 0), r"clients.*0.*integer >= 1"),
        (lambda: partition.iid([], 1), r"labels.*shape \(0,\)"),
        (lambda: partition.iid([0, 1], 2, sizes=[1]), r"sizes.*1.*clients.*2"),
        (lambda: partition.iid([0, 1], 2, sizes=[1, 2]), r"sizes adds.*3"),
        (lambda: partition.iid([0, 1], 2, sizes=[1, 0]), r"sizes\[1\].*0.*integer >= 1"),
        (lambda: partition.dirichlet([0, 1], 2, 0.0), r"alpha.*0.0.*>= 1e-06"),
        (lambda: partition.dirichlet([0, np.nan], 2, 1.0), r"labels.*nan"),
        (lambda: partition.by_classes([0, 1], 1, 3), r"classes_per_client.*3.*classes 2"),
        (
            lambda: partition.by_classes([0, 0, 0, 1], 4, 1),
            r"classes_per_client.*1.*.or clients.*class 1.*1 samples.*2 clients",
        ),
        (lambda: partition.by_column([1.0, np.nan]), r"values.*nan"),
        (lambda: partition.lognormal_sizes(2, 3, 1.0), r"total.*2.*integer >= 3"),
        (lambda: partition.lognormal_sizes(9, 3, -1.0), r"sigma.*-1.0.*>= 0"),
        (lambda: partition.iid([0, 1], 2, seed=-1), r"seed.*-1.*integer >= 0"),
    ],
)
def test_a_mistake_is_answered_by_its_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()

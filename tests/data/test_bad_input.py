"""Every mistake in data is answered by one sentence: the field, the value, and what would be right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.data import FederatedData

WHOLE = "labels must be whole numbers from 0 on (or targets='numbers')"
X = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0]])]
Y = [[0, 1], [1]]
NAN, INF = float("nan"), float("inf")


def arrays(xs=X, ys=Y, **options):
    return lambda: FederatedData.from_arrays(xs, ys, **options)


def flat(x, y, offsets, **options):
    return lambda: FederatedData.from_flat(x, y, offsets, **options)


def pool(parts, x=X[0], y=(0, 1), **options):
    return lambda: FederatedData.from_pool(x, y, parts, **options)


CASES = {
    "no clients": (arrays([], []), "the data has no clients, but there must be at least one"),
    "client without samples": (
        arrays([X[0], []], [Y[0], []]),
        "client 1 has no training samples, but every client needs at least one",
    ),
    "named client without samples": (
        arrays([X[0], []], [Y[0], []], client_names=["ann", "bob"]),
        "client 'bob' has no training samples, but every client needs at least one",
    ),
    "flat client without samples": (
        flat(X[0], [0, 1], [0, 1, 1, 2]),
        "client 1 has no training samples, but every client needs at least one",
    ),
    "negative label": (
        arrays(ys=[[0, -1], [1]]),
        f"y of client 0 is -1 at row 1 (counted from 0), but {WHOLE}",
    ),
    "label that is not whole": (
        arrays(ys=[[0, 1], [0.5]]),
        f"y of client 1 is 0.5 at row 0 (counted from 0), but {WHOLE}",
    ),
    "label that is nan": (
        arrays(ys=[[0, NAN], [1]]),
        f"y of client 0 is nan at row 1 (counted from 0), but {WHOLE}",
    ),
    "label that is inf": (
        arrays(ys=[[0, INF], [1]]),
        f"y of client 0 is inf at row 1 (counted from 0), but {WHOLE}",
    ),
    "label beyond int64": (
        flat(X[0], np.array([0, 2**63], dtype=np.uint64), [0, 2]),
        f"y of client 0 is 9223372036854775808 at row 1 (counted from 0), but {WHOLE}",
    ),
    "text labels": (
        arrays(ys=[["a", "b"], ["a"]]),
        "y of client 0 holds values of type <U1, but it must hold class numbers, or names that label_names lists "
        "(in a file data.labels)",
    ),
    "one array for all clients": (
        arrays(np.zeros((4, 2)), np.zeros(4, dtype=int)),
        "ys holds single values, but it must be a list with one array per client (from_flat takes one array for all "
        "clients, with offsets)",
    ),
    "label out of range": (
        arrays(num_classes=3, ys=[[0, 1], [3]]),
        "y of client 1 is 3 at row 0 (counted from 0), but labels must be whole numbers from 0 to 2, "
        "because num_classes is 3",
    ),
    "test label out of range": (
        arrays(num_classes=2, test=(X, [[0, 2], [1]])),
        "test y of client 0 is 2 at row 1 (counted from 0), but labels must be whole numbers from 0 to 1, "
        "because num_classes is 2",
    ),
    "one class": (
        arrays(ys=[[0, 0], [0]]),
        "y holds class 0 only, but there must be two classes or more (or give num_classes)",
    ),
    "too few classes": (arrays(num_classes=1), "num_classes is 1, but it must be an integer >= 2"),
    "timestamps for labels": (
        arrays(ys=[[0, 1], [1_700_000_000]]),
        "y of client 1 is 1700000000 at row 0 (counted from 0), "
        "but labels must be class numbers from 0 on (or give num_classes)",
    ),
    "nan": (
        arrays([X[0], [[1.0, NAN]]]),
        "x of client 1 is nan at row 0, column 1 (counted from 0), but every feature must be a finite number",
    ),
    "minus inf in the test part": (
        arrays(test=([[[1.0, 2.0], [-INF, 0.0]], X[1]], Y)),
        "test x of client 0 is -inf at row 1, column 0 (counted from 0), but every feature must be a finite number",
    ),
    "nan in an image": (
        arrays([np.full((1, 2, 2), NAN)], [[1]]),
        "x of client 0 is nan at row 0, position (0, 0) (counted from 0), but every feature must be a finite number",
    ),
    "too large for float32": (
        arrays([X[0], [[1.0, 1e39]]]),
        "x of client 1 is 1e+39 at row 0, column 1 (counted from 0), "
        "but every feature must be a finite number that float32 can hold",
    ),
    "too large for int64": (
        arrays([np.array([[2**63]], dtype=np.uint64)], [[1]]),
        "x of client 0 is 9223372036854775808 at row 0, column 0 (counted from 0), "
        "but every feature must be a finite number that int64 can hold",
    ),
    "ragged widths": (
        arrays([X[0], [[1.0, 2.0, 3.0]]]),
        "x of client 1 has samples of shape (3,), but the ones before have (2,)",
    ),
    "ragged rows": (
        arrays([[[1.0, 2.0], [3.0]], X[1]]),
        "x of client 0 is ragged or not an array, but it must be a full array of numbers",
    ),
    "text features": (
        arrays([X[0], [["a", "b"]]]),
        "x of client 1 holds values of type <U1, but it must hold numbers",
    ),
    "one-dimensional features": (
        arrays([[1.0, 2.0], [3.0]]),
        "x has shape (3,), but it must be (samples, features) or (samples, ...)",
    ),
    "no features": (
        flat(np.ones((2, 0)), [0, 1], [0, 2]),
        "x has shape (2, 0), but it must be (samples, features) or (samples, ...)",
    ),
    "two-dimensional labels": (
        arrays(ys=[[[0], [1]], [1]]),
        "y of client 0 has shape (2, 1), but it must have one label per sample: (samples,)",
    ),
    "labels not as many as samples": (
        arrays(ys=[[0, 1], [1, 0]]),
        "y of client 1 has 2 labels, but its x has shape (1, 2)",
    ),
    "flat labels not as many as samples": (
        flat(X[0], [0, 1, 1], [0, 2]),
        "y has 3 labels, but x has 2 samples and they must be as many",
    ),
    "ys of fewer clients": (arrays(ys=Y[:1]), "ys has 1 clients, but xs has 2 and they must be as many"),
    "test of fewer clients": (
        arrays(test=(X[:1], Y[:1])),
        "test has 1 clients, but it must have as many as the training part, 2",
    ),
    "test of another width": (
        arrays(test=([np.ones((2, 3)), np.ones((1, 3))], Y)),
        "test x of client 0 has samples of shape (3,), but the ones before have (2,)",
    ),
    "flat test of another width": (
        flat(X[0], [0, 1], [0, 2], test=(np.ones((1, 3)), [0], [0, 1])),
        "test x has samples of shape (3,), but they must be like the training samples, (2,)",
    ),
    "offsets that do not end at the rows": (
        flat(X[0], [0, 1], [0, 1]),
        "offsets goes from 0 to 1, but it must rise from 0 to the number of rows 2",
    ),
    "offsets that fall": (
        flat(X[0], [0, 1], [0, 2, 1, 2]),
        "offsets goes from 0 to 2, but it must rise from 0 to the number of rows 2",
    ),
    "fractional offsets": (
        flat(X[0], [0, 1], [0.0, 2.0]),
        "offsets is float64 of shape (2,), but it must be clients + 1 integers",
    ),
    "too few names": (arrays(client_names=["ann"]), "client_names has 1 names, but xs has 2 clients"),
    "a name twice": (
        arrays(client_names=["ann", "ann"]),
        "client_names holds 'ann' 2 times, but every name must be unique",
    ),
    "a name that is a number": (
        arrays(client_names=["ann", 3]),
        "client_names holds 3, but every name must be a string",
    ),
    "a row dealt out twice": (
        pool([[0], [1, 0]]),
        "parts holds row 0 twice, but a sample can belong to one client only",
    ),
    "a row that is not there": (pool([[0], [2]]), "parts holds row 2, but row numbers must be from 0 to 1"),
    "an empty part": (
        pool([[0], np.array([], dtype=int)]),
        "parts[1] is int64 of shape (0,), but it must be one or more row numbers",
    ),
    "no parts": (pool([]), "parts is empty, but there must be at least one client"),
    "a test fraction of one": (
        pool([[0, 1]], test_fraction=1.0),
        "test_fraction is 1.0, but it must be a finite number >= 0 and < 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_by_its_sentence(case):
    make, sentence = CASES[case]
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == sentence


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.data(),
    st.sampled_from([NAN, INF, -INF]),
)
def test_a_bad_value_is_found_wherever_it_is(sizes, data, bad):
    xs = [np.zeros((n, 3)) for n in sizes]
    client = data.draw(st.integers(0, len(sizes) - 1))
    row, column = data.draw(st.integers(0, sizes[client] - 1)), data.draw(st.integers(0, 2))
    xs[client][row, column] = bad
    with pytest.raises(InputError, match=rf"client {client}.*{bad}.*row {row}, column {column}"):
        FederatedData.from_arrays(xs, [np.zeros(n) for n in sizes], num_classes=2)


def test_a_tensor_that_learns_is_an_array_like_any_other():
    import torch

    data = FederatedData.from_arrays([torch.tensor(x, requires_grad=True) for x in X], Y)
    assert data.train.x.tolist() == np.concatenate(X).tolist()

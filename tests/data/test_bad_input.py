"""Every mistake in data is answered by one sentence: the field, the value, and what would be right."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.data import FederatedData

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
    "no clients": (arrays([], []), r"data.*clients"),
    "client without samples": (
        arrays([X[0], []], [Y[0], []]),
        r"client 1.*training samples.*client",
    ),
    "named client without samples": (
        arrays([X[0], []], [Y[0], []], client_names=["ann", "bob"]),
        r"client 'bob'.*training samples.*client",
    ),
    "flat client without samples": (
        flat(X[0], [0, 1], [0, 1, 1, 2]),
        r"client 1.*training samples.*client",
    ),
    "negative label": (
        arrays(ys=[[0, -1], [1]]),
        r"y.*client 0.*-1.*row 1.*targets='numbers'",
    ),
    "label that is not whole": (
        arrays(ys=[[0, 1], [0.5]]),
        r"y.*client 1.*0\.5.*row 0.*targets='numbers'",
    ),
    "label that is nan": (
        arrays(ys=[[0, NAN], [1]]),
        r"y.*client 0.*nan.*row 1.*targets='numbers'",
    ),
    "label that is inf": (
        arrays(ys=[[0, INF], [1]]),
        r"y.*client 0.*inf.*row 1.*targets='numbers'",
    ),
    "label beyond int64": (
        flat(X[0], np.array([0, 2**63], dtype=np.uint64), [0, 2]),
        r"y.*client 0.*9223372036854775808.*row 1.*targets='numbers'",
    ),
    "text labels": (
        arrays(ys=[["a", "b"], ["a"]]),
        r"client 0.*values.*<U1.*class.*label_names",
    ),
    "one array for all clients": (
        arrays(np.zeros((4, 2)), np.zeros(4, dtype=int)),
        r"\bys\b.*values.*array.*client \(from_flat.*array.*clients.*offsets\)",
    ),
    "label out of range": (
        arrays(num_classes=3, ys=[[0, 1], [3]]),
        r"client 1.*3.*row 0.*labels.*0.*2.*num_classes.*3",
    ),
    "test label out of range": (
        arrays(num_classes=2, test=(X, [[0, 2], [1]])),
        r"test.*client 0.*2.*row 1.*labels.*0.*1.*num_classes.*2",
    ),
    "one class": (
        arrays(ys=[[0, 0], [0]]),
        r"class 0.*classes.*num_classes\)",
    ),
    "too few classes": (arrays(num_classes=1), r"num_classes.*1.*integer >= 2"),
    "timestamps for labels": (
        arrays(ys=[[0, 1], [1_700_000_000]]),
        r"client 1.*1700000000.*row 0.*labels.*class.*0.*num_classes\)",
    ),
    "nan": (
        arrays([X[0], [[1.0, NAN]]]),
        r"client 1.*nan.*row 0, column 1",
    ),
    "minus inf in the test part": (
        arrays(test=([[[1.0, 2.0], [-INF, 0.0]], X[1]], Y)),
        r"test.*client 0.*-inf.*row 1, column 0",
    ),
    "nan in an image": (
        arrays([np.full((1, 2, 2), NAN)], [[1]]),
        r"client 0.*nan.*row 0, position \(0, 0\)",
    ),
    "too large for float32": (
        arrays([X[0], [[1.0, 1e39]]]),
        r"client 1.*1e\+39.*row 0, column 1.*float32",
    ),
    "too large for int64": (
        arrays([np.array([[2**63]], dtype=np.uint64)], [[1]]),
        r"client 0.*9223372036854775808.*row 0, column 0.*int64",
    ),
    "ragged widths": (
        arrays([X[0], [[1.0, 2.0, 3.0]]]),
        r"client 1.*samples.*shape \(3,\).*\(2,\)",
    ),
    "ragged rows": (
        arrays([[[1.0, 2.0], [3.0]], X[1]]),
        r"client 0.*array.*array",
    ),
    "text features": (
        arrays([X[0], [["a", "b"]]]),
        r"client 1.*values.*<U1",
    ),
    "one-dimensional features": (
        arrays([[1.0, 2.0], [3.0]]),
        r"\bx\b.*shape \(3,\).*\(samples, features\).*\(samples",
    ),
    "no features": (
        flat(np.ones((2, 0)), [0, 1], [0, 2]),
        r"\bx\b.*shape \(2, 0\).*\(samples, features\).*\(samples",
    ),
    "two-dimensional labels": (
        arrays(ys=[[[0], [1]], [1]]),
        r"client 0.*shape \(2, 1\).*label.*sample: \(samples,\)",
    ),
    "labels not as many as samples": (
        arrays(ys=[[0, 1], [1, 0]]),
        r"client 1.*2 labels.*shape \(1, 2\)",
    ),
    "flat labels not as many as samples": (
        flat(X[0], [0, 1, 1], [0, 2]),
        r"\by\b.*3 labels.*2 samples",
    ),
    "ys of fewer clients": (arrays(ys=Y[:1]), r"\bys\b.*1 clients.*\bxs\b.*2"),
    "test of fewer clients": (
        arrays(test=(X[:1], Y[:1])),
        r"test.*1 clients.*training.*2",
    ),
    "test of another width": (
        arrays(test=([np.ones((2, 3)), np.ones((1, 3))], Y)),
        r"test.*client 0.*samples.*shape \(3,\).*\(2,\)",
    ),
    "flat test of another width": (
        flat(X[0], [0, 1], [0, 2], test=(np.ones((1, 3)), [0], [0, 1])),
        r"test.*samples.*shape \(3,\).*training samples, \(2,\)",
    ),
    "offsets that do not end at the rows": (
        flat(X[0], [0, 1], [0, 1]),
        r"offsets.*0.*1.*0.*rows 2",
    ),
    "offsets that fall": (
        flat(X[0], [0, 1], [0, 2, 1, 2]),
        r"offsets.*0.*2.*0.*rows 2",
    ),
    "fractional offsets": (
        flat(X[0], [0, 1], [0.0, 2.0]),
        r"offsets.*float64.*shape \(2,\).*clients.*1",
    ),
    "too few names": (arrays(client_names=["ann"]), r"client_names.*1.*\bxs\b.*2 clients"),
    "a name twice": (
        arrays(client_names=["ann", "ann"]),
        r"client_names.*'ann' 2",
    ),
    "a row dealt out twice": (
        pool([[0], [1, 0]]),
        r"row 0.*sample.*client",
    ),
    "a row that is not there": (pool([[0], [2]]), r"row 2.*row.*0.*1"),
    "an empty part": (
        pool([[0], np.array([], dtype=int)]),
        r"parts\[1\].*int64.*shape \(0,\).*row",
    ),
    "no parts": (pool([]), r"parts.*client"),
    "a test fraction of one": (
        pool([[0, 1]], test_fraction=1.0),
        r"test_fraction.*1\.0.*>= 0.*1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_by_its_sentence(case):
    make, sentence = CASES[case]
    with pytest.raises(InputError) as error:
        make()
    assert re.search(sentence, str(error.value))


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

"""The compiled twin of core.randomness: equal bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from upcycled._utils import compiled_randomness as shared
from upcycled.core import randomness as streams
from upcycled.engines.fused import workspace as twin

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS)
def test_mix_is_the_same_function(word):
    assert int(shared.mix(np.uint64(word))) == streams.mix(word)


@given(KEYS, st.integers(0, 50), st.integers(0, 2**40))
def test_a_client_has_the_same_key(seed, number, client):
    expected = streams.client_keys(seed, streams.Purpose.BATCHES, number, [client], 1)[0]
    key = np.uint64(streams.round_key(seed, streams.Purpose.BATCHES, number, 1))
    assert twin.client_key(key, client) == expected


@given(KEYS, st.integers(0, 120), st.integers(1, 4))
def test_an_epoch_has_the_same_order(key, size, epochs):
    order = np.full(size + 3, -1, dtype=np.int32)
    for epoch, expected in enumerate(streams.permutations(key, size, epochs)):
        twin.shuffle(np.uint64(key), epoch, size, order)
        assert order[:size].tolist() == expected.tolist()
    assert order[size:].tolist() == [-1, -1, -1]


@given(KEYS, st.integers(0, 2**40).map(lambda pairs: 2 * pairs), st.integers(0, 2_100))
def test_normals_have_the_same_bits(key, start, count):
    out = np.full(count + count % 2 + 1, 7.0)
    shared.write_normals(np.uint64(key), start, count, out)
    assert np.array_equal(out[:count], streams.normals(np.array([key], dtype=np.uint64), count, start)[0])
    assert out[-1] == 7.0

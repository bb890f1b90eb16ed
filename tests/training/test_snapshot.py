"""What goes into a checkpoint comes out of it, bit by bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import upcycled as up
from upcycled.core.algorithm import Server
from upcycled.core.upcycling import State
from upcycled.training.checkpoint.snapshot import (
    MemoryRows,
    Snapshot,
    from_bytes,
    joined,
    to_bytes,
    to_columns,
    to_records,
)

SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(width=64) | st.text(max_size=5)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.int8, np.bool_, np.uint64])
ARRAYS = DTYPES.flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
# Columns of a larger array: memory that is not in C order.
STRIDED = arrays(np.float32, (3, 4)).map(lambda array: array.T[1:])
NUMPY_SCALARS = st.sampled_from([np.float32(0.1), np.float64(0.1), np.int64(-7), np.bool_(True)])
LEAVES = SCALARS | ARRAYS | STRIDED | NUMPY_SCALARS
NAMES = st.text("ab.", min_size=1, max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
VECTORS = arrays(np.float32, 5)
SERVERS = st.builds(Server, VECTORS, st.dictionaries(NAMES, VECTORS, max_size=2))
FLOATS = st.none() | st.floats(width=64)


@st.composite
def states(draw):
    server = draw(SERVERS)
    seen = tuple(draw(st.lists(st.just(server) | SERVERS, max_size=3)))
    numbers = [draw(st.integers(0, 2**40)) for _ in range(4)]
    noise, rho = draw(st.floats(width=64)), draw(FLOATS)
    return State(server, *numbers, seen, noise, rho, draw(st.dictionaries(NAMES, VALUES, max_size=3)))


@st.composite
def records(draw):
    count = st.integers(0, 2**50)
    values = {
        "iteration": count, "kind": st.sampled_from(["data", "upcycled"]), "data_round": count, "accuracy": FLOATS,
        "loss": FLOATS, "global_accuracy": FLOATS, "global_loss": FLOATS, "coefficient": FLOATS, "bytes_up": count,
        "bytes_down": count, "messages": count, "gradient_steps": count,
        "seconds": st.floats(), "eval_seconds": st.floats(),
        "clients": arrays(np.int64, st.integers(0, 3)), "client_steps": arrays(np.int64, st.integers(0, 3)),
        "metrics": st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
    }  # fmt: skip
    assert set(values) == {field.name for field in fields(up.Record)}, "a new field of Record must be kept too"
    return up.Record(**{name: draw(value) for name, value in values.items()})


def bits(value):
    """Return a value so that == means the same bits, types, shapes and dtypes."""
    if isinstance(value, Server):
        return "server", bits(value.model), bits(value.vectors)
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__name__, value.dtype.str, np.shape(value), value.tobytes()
    if isinstance(value, tuple | list):
        return [bits(each) for each in value]
    if isinstance(value, dict):
        return [(key, bits(each)) for key, each in value.items()]
    return type(value).__name__, repr(value)


def parts_of(thing):
    return [(field.name, bits(getattr(thing, field.name))) for field in fields(thing)]


@given(states(), st.dictionaries(NAMES, arrays(np.float32, (2, 5)), max_size=2), st.lists(records(), max_size=4))
@settings(max_examples=60)
def test_a_snapshot_comes_back_bit_by_bit(state, vectors, history):
    memory, nobody = MemoryRows(np.array([7, 2]), vectors), MemoryRows(np.zeros(0, dtype=np.int64), {})
    before = Snapshot(state, memory, nobody, to_columns(history), {"identity": {"seed": "1"}, "way": "é"})
    after = from_bytes(to_bytes(before))
    assert parts_of(after.state) == parts_of(state)
    assert [parts_of(rows) for rows in (after.memory, after.private)] == [parts_of(memory), parts_of(nobody)]
    assert after.facts == before.facts
    assert [parts_of(record) for record in to_records(after.columns)] == [parts_of(record) for record in history]


@given(st.lists(records(), max_size=5), st.integers(0, 5))
@settings(max_examples=50)
def test_columns_can_be_made_bit_by_bit(history, cut):
    pieces = joined(to_columns(history[:cut]), to_columns(history[cut:]))
    assert [parts_of(record) for record in to_records(pieces)] == [parts_of(record) for record in history]


def test_names_that_look_alike_are_told_apart():
    rows = MemoryRows(np.zeros(0, dtype=np.int64), {})
    rule = {"a.b": np.array([1.0]), "a": {"b": np.array([2.0])}, "a.b'": np.array([3.0])}
    state = State(Server(np.ones(2, dtype=np.float32)), rule=rule)
    assert parts_of(from_bytes(to_bytes(Snapshot(state, rows, rows, to_columns([]), {}))).state) == parts_of(state)


def test_an_iterate_that_is_held_twice_is_stored_once():
    server = Server(np.ones(1000, dtype=np.float32))
    rows, columns = MemoryRows(np.zeros(0, dtype=np.int64), {}), to_columns([])
    once = len(to_bytes(Snapshot(State(server), rows, rows, columns, {})))
    thrice = len(to_bytes(Snapshot(State(server, seen=(server, server)), rows, rows, columns, {})))
    assert thrice - once < 1000


def test_a_rule_with_a_state_that_cannot_be_kept_is_told_so():
    rows = MemoryRows(np.zeros(0, dtype=np.int64), {})
    state = State(Server(np.ones(2, dtype=np.float32)), rule={"model": object()})
    with pytest.raises(up.InputError, match=r"state\.rule\.model.*checkpoint.*arrays"):
        to_bytes(Snapshot(state, rows, rows, to_columns([]), {}))

from __future__ import annotations

import contextlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from upcycled.core.memory import ClientMemory


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True), max_size=12))
def test_a_client_finds_what_it_last_wrote_whatever_its_place_in_the_cohort(cohorts):
    memory, plain = ClientMemory(("c", "d"), 20, 3), {}
    for step, ids in enumerate(cohorts):
        clients = np.array(ids)
        rows = np.arange(len(ids) * 3, dtype=np.float32).reshape(-1, 3) + 100 * step
        memory.put(clients, {"c": rows, "d": -rows})
        plain |= {client: rows[i] for i, client in enumerate(ids)}
    everyone = memory.gather(np.arange(20))
    for client in range(20):
        expected = plain.get(client, np.zeros(3))
        assert np.array_equal(everyone["c"][client], expected)
        assert np.array_equal(everyone["d"][client], -expected)
    assert memory.clients.tolist() == sorted(plain)


def test_rows_are_allocated_for_the_clients_used_only():
    memory = ClientMemory(("c",), 1_000_000, 100)
    memory.put(np.array([999_999, 5]), {"c": np.ones((2, 100), dtype=np.float32)})
    assert memory._rows["c"].shape[0] <= 4


COHORTS = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), min_size=1, max_size=8)


def filled(cohorts, names=("c", "d")):
    memory = ClientMemory(names, 10, 3)
    for iteration, ids in enumerate(cohorts, start=1):
        rows = np.arange(len(ids) * 3, dtype=np.float32).reshape(-1, 3) + 100 * iteration
        memory.put(np.array(ids, dtype=np.int64), {"c": rows, "d": -rows}, iteration)
    return memory


def same(left, right):
    everybody = np.arange(10)
    rows = zip(left.gather(everybody).items(), right.gather(everybody).items(), strict=True)
    equal = all(name == other and np.array_equal(a, b) for (name, a), (other, b) in rows)
    return equal and left.clients.tolist() == right.clients.tolist()


@given(COHORTS)
def test_the_last_put_can_be_undone_and_an_earlier_one_cannot(cohorts):
    memory, last = filled(cohorts), len(cohorts)
    memory.back_to(last)
    assert same(memory, filled(cohorts))
    memory.back_to(last - 1)
    assert same(memory, filled(cohorts[:-1]))
    memory.back_to(0)
    assert same(memory, filled(cohorts[:-1]))
    # What was undone is not in the way of what comes.
    again = np.array([9, 0]), {name: np.full((2, 3), 7, dtype=np.float32) for name in ("c", "d")}
    expected = filled(cohorts[:-1])
    memory.put(*again)
    expected.put(*again)
    assert same(memory, expected)


@given(COHORTS, st.integers(0, 5))
def test_a_put_that_breaks_off_half_way_can_be_undone_too(cohorts, place):
    class Broken(dict):
        def __getitem__(self, name):
            if name == "d":
                raise KeyboardInterrupt
            return super().__getitem__(name)

    memory, ids = filled(cohorts), np.arange(place, place + 4)
    with contextlib.suppress(KeyboardInterrupt):
        memory.put(ids, Broken(c=np.ones((4, 3)), d=np.ones((4, 3))), len(cohorts) + 1)
    memory.back_to(len(cohorts))
    assert same(memory, filled(cohorts))


@given(COHORTS)
def test_a_memorys_content_put_into_an_empty_one_restores_it(cohorts):
    memory, copy = filled(cohorts), ClientMemory(("c", "d"), 10, 3)
    clients, rows = memory.content()
    assert [r.shape for r in rows.values()] == [(clients.size, 3)] * 2
    copy.put(clients, rows)
    assert same(memory, copy)
    assert copy.content()[0].tolist() == clients.tolist()


def test_gathered_rows_are_copies():
    memory = ClientMemory(("c",), 3, 2)
    memory.put(np.array([1]), {"c": np.ones((1, 2), dtype=np.float32)})
    memory.gather(np.array([1]))["c"][:] = 7
    assert memory.gather(np.array([1]))["c"].tolist() == [[1.0, 1.0]]

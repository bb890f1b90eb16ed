from __future__ import annotations

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


def test_gathered_rows_are_copies():
    memory = ClientMemory(("c",), 3, 2)
    memory.put(np.array([1]), {"c": np.ones((1, 2), dtype=np.float32)})
    memory.gather(np.array([1]))["c"][:] = 7
    assert memory.gather(np.array([1]))["c"].tolist() == [[1.0, 1.0]]

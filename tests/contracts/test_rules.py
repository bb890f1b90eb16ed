"""What must hold for a rule with every algorithm, found in its table by itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import upcycled as up
from examples.own_rule import FedExP
from tests.conftest import ragged
from tests.contracts.test_algorithms import settings
from upcycled.algorithms import ALGORITHMS

# Signal lives on known noise and has its own tests: tests/aggregators/test_precision.py.
RULE = FedExP()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_even_iteration_by_a_rule_reads_no_training_data(name):
    """After two data rounds data and engine are replaced by booby traps: the rule's iterations give the same bits."""
    from upcycled.training.loop import iterate
    from upcycled.training.plan import make_plan
    from upcycled.training.state import start_run

    class Trap:
        def __getattr__(self, what):
            raise AssertionError(f"training data were read: {what}")

    xs, ys = ragged()
    arguments = settings(name, iterations=4, upcycle=RULE)
    del arguments["progress"]
    plan = make_plan(up.FederatedData.from_arrays(xs, ys, num_classes=3), up.RunSpec(**arguments))
    steps = iterate(plan, plan.engine.open(plan.task, None), start_run(plan))
    after_data = [next(steps)[0] for _ in range(3)][-1]
    trapped = dataclasses.replace(plan, on_data=(dataclasses.replace(plan.task, train=Trap()), plan.engine))
    *_, (after_trap, _) = iterate(trapped, Trap(), after_data)
    *_, (free, _) = steps
    assert after_trap.state.server.model.tobytes() == free.state.server.model.tobytes()
    assert np.isfinite(free.state.server.model).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rule_sees_releases_only_so_the_same_releases_give_the_same_moves(federation, name):
    """Every move of a run is recomputed from the iterates, aggregates and spreads that were released."""
    found = []

    @dataclasses.dataclass(frozen=True)
    class Recorded:
        depth = RULE.depth
        uses_spread = RULE.uses_spread
        start = RULE.start

        def move(self, own, seen, moves):
            move, after = RULE.move(own, seen, moves)
            found.append((seen, moves, move))
            return move, after

    up.train(federation, iterations=9, upcycle=Recorded(), **settings(name))
    own = RULE.start()
    for seen, moves, move in found:
        again, own = RULE.move(own, seen, moves)
        assert again.server.model.tobytes() == move.server.model.tobytes()
        kept = {key: value for key, value in seen.iterates[-1].vectors.items() if key not in moves}
        assert all(move.server.vectors[key] is value for key, value in kept.items())
    assert all(seen.spread is not None for seen, _, _ in found)
    assert all(seen.mean is not None for seen, _, _ in found)

"""What must hold for every rule with every algorithm, found in their tables by themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import upcycled as up
from tests.conftest import ragged
from tests.contracts.test_algorithms import settings
from upcycled.algorithms import ALGORITHMS
from upcycled.coefficients import COEFFICIENTS, Repeated, Trend

# One that lives on known noise has its own tests: tests/aggregators/test_precision.py.
RULES = {
    name: kind()
    for name, kind in COEFFICIENTS.items()
    if hasattr(kind, "move") and not hasattr(kind, "uses_noise_energy")
}
RULES["repeated"] = Repeated(Trend(), times=2)
EVERY = [(algorithm, rule) for algorithm in ALGORITHMS for rule in RULES]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rule_that_never_moves_equals_vanilla_bit_for_bit(federation, name):
    vanilla = up.train(federation, iterations=5, **settings(name))
    still = Repeated(Trend(threshold=1 - 1e-9), times=2)
    upcycled = up.train(federation, iterations=15, upcycle=still, **settings(name))
    assert upcycled.params.numpy().tobytes() == vanilla.params.numpy().tobytes()
    assert {r.coefficient for r in upcycled.history if r.kind == "upcycled"} == {0.0}


@pytest.mark.parametrize(("name", "rule"), EVERY)
def test_an_even_iteration_by_a_rule_reads_no_training_data(name, rule):
    """After two data rounds data and engine are replaced by booby traps: the rule's iterations give the same bits."""
    from upcycled.runtime.loop import iterate
    from upcycled.runtime.plan import make_plan
    from upcycled.runtime.state import start_run

    class Trap:
        def __getattr__(self, what):
            raise AssertionError(f"training data were read: {what}")

    xs, ys = ragged()
    per_round = RULES[rule].per_round
    iterations = 2 * (1 + per_round)
    arguments = settings(name, iterations=iterations, upcycle=RULES[rule])
    del arguments["progress"]
    plan = make_plan(up.FederatedData.from_arrays(xs, ys, num_classes=3), up.RunSpec(**arguments))
    steps = iterate(plan, plan.engine.open(plan.task, None), start_run(plan))
    after_data = [next(steps)[0] for _ in range(iterations - per_round)][-1]
    trapped = dataclasses.replace(plan, on_data=(dataclasses.replace(plan.task, train=Trap()), plan.engine))
    *_, (after_trap, _) = iterate(trapped, Trap(), after_data)
    *_, (free, _) = steps
    assert after_trap.state.server.model.tobytes() == free.state.server.model.tobytes()
    assert np.isfinite(free.state.server.model).all()


@pytest.mark.parametrize(("name", "rule"), EVERY)
def test_a_rule_sees_releases_only_so_the_same_releases_give_the_same_moves(federation, name, rule):
    """Every move of a run is recomputed from the iterates, aggregates and spreads that were released."""
    found = []
    plain = RULES[rule]

    @dataclasses.dataclass(frozen=True)
    class Recorded:
        depth = plain.depth
        per_round = plain.per_round
        uses_spread = plain.uses_spread
        start = plain.start

        def move(self, own, seen, moves):
            move, after = plain.move(own, seen, moves)
            found.append((seen, moves, move))
            return move, after

    up.train(federation, iterations=9, upcycle=Recorded(), **settings(name))
    own = plain.start()
    for seen, moves, move in found:
        again, own = plain.move(own, seen, moves)
        assert again.server.model.tobytes() == move.server.model.tobytes()
        kept = {key: value for key, value in seen.iterates[-1].vectors.items() if key not in moves}
        assert all(move.server.vectors[key] is value for key, value in kept.items())
    assert all((seen.spread is None) == (not Recorded.uses_spread) for seen, _, _ in found)
    assert all(seen.mean is not None for seen, _, _ in found)

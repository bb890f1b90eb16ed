"""How long torch is expected to take over a run, start-up included: a fixed function of the task.

No clock is read and no core is counted, so that a run takes the same engine, and has the same bits, on every machine.
The constants are of one machine with two cores; elsewhere all of them are larger or smaller together, and it is only
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from upcycled.core.engine import Task
from upcycled.engines.choice.effort import batch_of, effort_of_pass


@dataclass(frozen=True)
class Pace:
    """What a way of working costs in seconds; a step's parts are forward and backward together."""

    start: float
    """Before the first step: what is imported, and processes that begin."""
    step: float
    """A step before it calls anything: batches, the optimiser, the loss."""
    call: float
    """An operation of torch in the model, before it computes anything."""
    flop: float
    """A multiplication or addition in a product or convolution."""
    element: float
    """A number that an operation writes."""
    parameter: float
    """A parameter that is moved."""
    at_once: int = 1
    """Clients that train at the same time."""
    is_stack: bool = False
    """Whether all clients of a round share each call."""


# Measured by benchmarks/auto.py and benchmarks/crossover.py.
PACES: Mapping[str, Pace] = {
    "one by one": Pace(0.0, step=4e-4, call=3.5e-5, flop=1.5e-11, element=6.5e-9, parameter=2.2e-9),
    "workers": Pace(3.0, step=4e-4, call=3.5e-5, flop=1.5e-11, element=6.5e-9, parameter=2.2e-9, at_once=2),
    "stacked": Pace(1.9, step=1.6e-3, call=1.4e-4, flop=2e-11, element=7.6e-9, parameter=2.8e-9, is_stack=True),
}


def expected_seconds(way: str, task: Task) -> float:
    """Return how long a run is expected to take when it is done in one of the ways of :data:`PACES`."""
    pace, effort, batch = PACES[way], effort_of_pass(task), batch_of(task)
    share = batch / effort.samples
    fixed = pace.step + pace.call * effort.calls
    own = 3 * share * effort.flops * pace.flop + share * effort.elements * pace.element
    own += task.layout.size * pace.parameter
    local, train = task.solver.local, task.train
    longest, mean = int(train.sizes.max(initial=0)), -(-train.num_rows // max(train.num_clients, 1))
    steps_of = {n: _steps(n, local.batch_size, local.epochs) for n in (longest, mean)}
    rounds = task.rounds * task.solver.gradients_per_step
    of_all = rounds * task.cohort_size * steps_of[mean]
    if pace.is_stack:
        # Lanes that are done leave the stack, and its longest one is waited for.
        return pace.start + rounds * steps_of[longest] * fixed + of_all * own
    return pace.start + of_all * (fixed + own) / min(pace.at_once, task.cohort_size)


def _steps(samples: int, batch_size: int | None, epochs: int) -> int:
    return epochs if batch_size is None else epochs * -(-samples // batch_size)

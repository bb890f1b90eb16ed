"""A callback for tests, and a run that is stopped."""

from __future__ import annotations

import upcycled as up

QUIET = {"progress": False, "engine": "sequential", "algorithm": up.FedAvg(), "iterations": 6}
SELDOM = {"checkpoint_every": "10000s"}
"""Where it counts which iterations are saved: by default the clock decides, and a busy machine may take a second."""


class Watcher:
    """A callback that writes down what it is told, and can raise at an iteration."""

    def __init__(self, error=None, at=0):
        self.before, self.iterations, self.finished = None, [], 0
        self._error, self._at = error, at

    def start(self, plan, before):
        self.before = before

    def record(self, record, run):
        self.iterations.append(record.iteration)
        if record.iteration == self._at:
            raise self._error

    def finish(self):
        self.finished += 1


def stop_at(data, iteration, **arguments):
    """Stop a run by Ctrl-C after an iteration, and return the result so far."""
    callbacks = [*arguments.pop("callbacks", ()), Watcher(KeyboardInterrupt(), iteration)]
    result = up.train(data, callbacks=callbacks, **arguments)
    assert isinstance(result.error, KeyboardInterrupt)
    assert len(result.history) == iteration
    return result


def kept_iterations(folder):
    return sorted(int(path.name[10:16]) for path in folder.glob("iteration-*"))

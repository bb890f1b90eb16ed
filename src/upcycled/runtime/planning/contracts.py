"""What an algorithm's own code gives back, held to what the rest of a round relies on.

An algorithm may be anybody's. Engines index b by client, and kernels do so unchecked; upcycled iterations compare
iterates that must not have been changed in place; an epsilon was proven for one a. Each check is a comparison or two:
small rounds last a tenth of a millisecond.
"""

from __future__ import annotations

import numpy as np

from upcycled.core.algorithm import Server, Vectors
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Setting
from upcycled.core.solvers import Problem
from upcycled.core.vectors import Vector


def check_problem(name: str, problem: Problem, clients: int, size: int) -> Problem:
    """Return an algorithm's part of the local objectives if it is one number a, and a row of b for each client.

    Raises:
        InputError: in one sentence.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"{name}.problem must return an up.Problem, but it returned {type(problem).__name__}")
    b = problem.b
    if b is not None and (not isinstance(b, np.ndarray) or b.shape != (clients, size)):
        raise InputError(
            f"{name}.problem must give b a row of {size} numbers for each of the round's {clients} clients, shape "
            f"({clients}, {size}), but it has {_shape(b)}"
        )
    return problem


def check_proven_for(setting: Setting | None, problem: Problem, round: int) -> None:
    """Refuse a quadratic term that is not the one a mechanism was fitted to: its noise is made for that one.

    Raises:
        InputError: in one sentence, before anything is charged or released.
    """
    if setting is not None and problem.a != setting.penalty:
        raise InputError(
            f"{setting.algorithm}.problem gives a = {problem.a!r} in data round {round}, but epsilon was proven for "
            f"a = {setting.penalty!r}: with privacy a must be the same in every round"
        )


def own_copy(server: Server) -> Server:
    """Return the server's vectors for a server step to do with as it likes: iterates of before stay what they were."""
    return Server(server.model.copy(), {name: vector.copy() for name, vector in server.vectors.items()})


def check_stepped(name: str, stepped: object, before: Server) -> tuple[Server, Vectors]:
    """Return what a server step gave back if it is a server like the one before, and the cohort's memory.

    Raises:
        InputError: in one sentence.
    """
    if not isinstance(stepped, tuple) or len(stepped) != 2 or not isinstance(stepped[0], Server):
        raise InputError(
            f"{name}.server_step must return the new up.Server and the cohort's memory, but it returned "
            f"{type(stepped).__name__}"
        )
    server, memory = stepped
    if not isinstance(server.model, np.ndarray) or server.model.shape != before.model.shape:
        raise InputError(
            f"{name}.server_step must return a model of shape {before.model.shape}, but it has {_shape(server.model)}"
        )
    if server.vectors.keys() != before.vectors.keys():
        raise InputError(
            f"{name}.server_step returned the server's vectors {_names(server.vectors)}, but it has been given "
            f"{_names(before.vectors)}: start names all that there are"
        )
    return server, memory


def _shape(value: Vector) -> str:
    return f"shape {value.shape}" if isinstance(value, np.ndarray) else f"{type(value).__name__} in its place"


def _names(vectors: Vectors) -> str:
    return ", ".join(repr(name) for name in vectors) or "(none)"

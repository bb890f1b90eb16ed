"""What an algorithm's own code gives back, held to what the rest of a round relies on.

An algorithm may be anybody's. Engines index b by client, and kernels do so unchecked; upcycled iterations compare
iterates that must not have been changed in place; an epsilon was proven for one a. Each check is a comparison or two:
small rounds last a tenth of a millisecond.
"""

from __future__ import annotations

from upcycled.core.algorithm import Server, Vectors
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Setting
from upcycled.core.solvers import Problem


def check_problem(name: str, problem: Problem, clients: int, size: int) -> None:
    """Refuse an algorithm's part of the local objectives without a row of b for each client.

    Raises:
        InputError: in one sentence.
    """
    if problem.b is not None and problem.b.shape != (clients, size):
        raise InputError(
            f"{name}.problem must give b a row of {size} numbers for each of the round's {clients} clients, shape "
            f"({clients}, {size}), but it has shape {problem.b.shape}"
        )


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


def check_stepped(name: str, server: Server, before: Server) -> None:
    """Refuse a server after a step that is not like the one before.

    Raises:
        InputError: in one sentence.
    """
    if server.model.shape != before.model.shape:
        raise InputError(
            f"{name}.server_step must return a model of shape {before.model.shape}, but it has shape "
            f"{server.model.shape}"
        )
    if server.vectors.keys() != before.vectors.keys():
        raise InputError(
            f"{name}.server_step returned the server's vectors {_names(server.vectors)}, but it has been given "
            f"{_names(before.vectors)}: start names all that there are"
        )


def _names(vectors: Vectors) -> str:
    return ", ".join(repr(name) for name in vectors) or "(none)"

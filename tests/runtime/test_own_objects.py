"""Code of the user's that does not keep to its contract is refused in a sentence, before or where it is called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import upcycled as up
from tests.runtime.watching import QUIET


@dataclass(frozen=True)
class Own:
    name = "own"
    sends = moves = remembers = ()
    is_personal = False

    def start(self, model):
        return up.Server(model, {"momentum": np.zeros_like(model)})

    def solver(self, local):
        return local

    def problem(self, server, memory):
        return up.Problem()

    def server_step(self, server, memory, arrived):
        return up.Server(arrived.mean, server.vectors), memory


class NoSolver(Own):
    solver = property()


class Typo(Own):
    moves = ("momentm",)


class Unsent(Own):
    sends = ("momentm",)


class OneName(Own):
    moves = "momentum"


class NoServer(Own):
    def start(self, model):
        return model


class OtherShape(Own):
    def start(self, model):
        return up.Server(model[:1])


class TwoArguments(Own):
    def server_step(self, server, arrived):
        return server


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (NoSolver(), "^algorithm is a NoSolver, which has no 'solver', but must have one$"),
        (
            Typo(),
            "^algorithm.moves is 'momentm', but it must be a vector that start gives the server; did you mean",
        ),
        (Unsent(), "^algorithm.sends is 'momentm', but it must be a vector that start gives"),
        (OneName(), r"^algorithm.moves is 'momentum', but it must be a tuple of names, such as \('momentum',\)$"),
        (NoServer(), r"^algorithm.start\(model\) is array.*, but it must be up.Server"),
        (OtherShape(), r"^algorithm.start\(model\) gives a model of shape \(1,\), but it must be \("),
        (
            TwoArguments(),
            r"whose server_step takes \(server, arrived\), but it is called as server_step\(server, m",
        ),
    ],
)
def test_an_algorithm_without_its_contract_is_refused(federation, algorithm, words):
    with pytest.raises(up.InputError, match=words):
        up.train(federation, **QUIET | {"algorithm": algorithm, "upcycle": 0.5})
    assert len(up.train(federation, **QUIET | {"algorithm": Own()}).history) == QUIET["iterations"]


class Late:
    def rho(self, data_round, horizon):
        return 0.5


class OneArgument:
    def rho(self, data_round):
        return 0.5


class NotANumber:
    def rho(self, data_round, horizon):
        return float("nan")


class Nothing:
    def rho(self, data_round, horizon):
        pass


class Rule:
    depth, uses_spread = 2, False

    def start(self):
        return {}

    def move(self, own, seen, moves):
        return seen.iterates[-1]


class Short(Rule):
    def move(self, own, seen, moves):
        return up.Move(up.Server(seen.iterates[-1].model[:1]), 0.5), own


@pytest.mark.parametrize(
    ("upcycle", "words"),
    [
        (Late, r"but it must be an object of this class, such as Late\(\)$"),
        (
            OneArgument(),
            r"^upcycle is a OneArgument, whose rho takes \(data_round\), but it is called as rho\(data",
        ),
        (NotANumber(), r"^upcycle rho\(1, \d+\) is nan, but it must be a finite number$"),
        (Nothing(), r"^upcycle rho\(1, \d+\) is None, but it must be a finite number$"),
        (Rule, r"such as Rule\(\)$"),
        (Rule(), r"^upcycle.move\(...\) is Server\(.*, but it must be a pair: up.Move"),
        (Short(), r"^upcycle.move\(...\) gives a model of shape \(1,\), but it must be"),
        ("signal", r"^upcycle is 'signal', but it must be the object itself, up.coefficients.Signal\(...\)$"),
    ],
)
def test_a_rule_without_its_contract_is_refused(federation, upcycle, words):
    with pytest.raises(up.InputError, match=words):
        up.train(federation, **QUIET | {"upcycle": upcycle})

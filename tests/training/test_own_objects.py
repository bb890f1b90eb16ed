"""Code of the user's that does not keep to its contract is refused in a sentence, before or where it is called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import upcycled as up
from tests.training.watching import QUIET


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
        (NoSolver(), r"^algorithm.*NoSolver.*'solver'"),
        (
            Typo(),
            r"^algorithm.moves.*'momentm'.*vector.*start.*server; did you mean",
        ),
        (Unsent(), r"^algorithm.sends.*'momentm'.*vector.*start"),
        (OneName(), r"^algorithm.moves.*'momentum'.*\('momentum',\)$"),
        (NoServer(), r"^algorithm.start\(model\).*array.*up.Server"),
        (OtherShape(), r"^algorithm.start\(model\).*model.*shape \(1,\)"),
        (
            TwoArguments(),
            r"server_step.*\(server, arrived\).*server_step\(server",
        ),
    ],
)
def test_an_algorithm_without_its_contract_is_refused(federation, algorithm, words):
    with pytest.raises(up.InputError, match=words):
        up.train(federation, **QUIET | {"algorithm": algorithm, "upcycle": 0.5})
    assert len(up.train(federation, **QUIET | {"algorithm": Own()}).history) == QUIET["iterations"]


class Gain(Own):
    def __init__(self, **members):
        self.__dict__ |= members


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"noise_gain": 0.0}, r"noise_gain.*0\.0.*> 0"),
        ({"noise_gain": "large"}, r"noise_gain.*'large'"),
        ({"noise_gain": 1.0, "noise_kept": None}, r"noise_kept.*None.*>= 0"),
    ],
)
def test_an_algorithm_with_an_invalid_noise_gain_is_refused(federation, members, words):
    privacy = up.privacy.ErmOutput(norm_bound=1.0, prox_mu=0.5, epsilon=2.0, delta=1e-4)
    noisy = {"algorithm": Gain(**members), "privacy": privacy, "upcycle": up.coefficients.Signal()}
    with pytest.raises(up.InputError, match=words):
        up.train(federation, **(QUIET | noisy))


class Late:
    def coefficient_at(self, data_round, horizon):
        return 0.5


class OneArgument:
    def coefficient_at(self, data_round):
        return 0.5


class NotANumber:
    def coefficient_at(self, data_round, horizon):
        return float("nan")


class Nothing:
    def coefficient_at(self, data_round, horizon):
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
        (Late, r"class.*Late\(\)$"),
        (
            OneArgument(),
            r"^upcycle.*OneArgument.*coefficient_at.*\(data_round\)",
        ),
        (NotANumber(), r"^upcycle coefficient_at\(1, \d+\).*nan"),
        (Nothing(), r"^upcycle coefficient_at\(1, \d+\).*None"),
        (Rule, r"Rule\(\)$"),
        (Rule(), r"^upcycle.move\(...\).*Server\(.*pair: up.Move"),
        (Short(), r"^upcycle.move\(...\).*model.*shape \(1,\)"),
        ("signal", r"^upcycle.*'signal'.*up.coefficients.Signal\(...\)$"),
    ],
)
def test_a_rule_without_its_contract_is_refused(federation, upcycle, words):
    with pytest.raises(up.InputError, match=words):
        up.train(federation, **QUIET | {"upcycle": upcycle})

"""An algorithm of anybody's is held to what the rest of a round relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import upcycled as up
from tests.wording import has_all
from upcycled.core.layout import flatten
from upcycled.training.plan import make_plan
from upcycled.training.round import answer, ask
from upcycled.training.spec import RunSpec
from upcycled.training.state import start_run


@dataclass(frozen=True)
class Own:
    """Plain averaging, whose parts a test replaces."""

    asks: Callable[[Any, Any], Any] = lambda server, memory: up.Problem()
    steps: Callable[[Any, Any, Any], Any] = lambda server, memory, arrived: (up.Server(arrived.mean), memory)
    name = "own"
    sends = moves = remembers = ()
    is_personal = False

    def start(self, model: Any) -> Any:
        return up.Server(model)

    def solver(self, local: Any) -> Any:
        return local

    def problem(self, server: Any, memory: Any) -> Any:
        return self.asks(server, memory)

    def server_step(self, server: Any, memory: Any, arrived: Any) -> Any:
        return self.steps(server, memory, arrived)


@dataclass(frozen=True)
class Falling:
    """FedProx whose mu falls from round to round, which no noise was calibrated to."""

    name = "falling"
    sends = moves = remembers = ()
    is_personal = False

    def start(self, model: Any) -> Any:
        return up.Server(model, {"t": np.zeros(1, dtype=np.float32)})

    def solver(self, local: Any) -> Any:
        return local

    def problem(self, server: Any, memory: Any) -> Any:
        return up.Problem(a=0.5 * 0.1 ** float(server.vectors["t"][0]))

    def server_step(self, server: Any, memory: Any, arrived: Any) -> Any:
        return up.Server(arrived.mean, {"t": server.vectors["t"] + 1}), memory


def data() -> up.FederatedData:
    return up.data.synthetic("iid", clients=3, sizes=40, seed=0)


def train(algorithm: Any, **more: Any) -> up.Result:
    return up.train(data(), algorithm=algorithm, iterations=4, progress=False, **more)


MECHANISMS = (
    up.privacy.ErmOutput(norm_bound=1.0, epsilon=1.0, delta=1e-5),
    up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=1.0),
    up.privacy.BoltOnSGD(norm_bound=1.0, epsilon=1.0, delta=1e-5),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_an_epsilon_is_not_stated_for_another_quadratic_term_than_it_was_proven_for(mechanism: Any) -> None:
    # One record moves the minimiser of F + a/2 ||x - w||^2 by at most 2L/(a n): a tenth of a, ten times as far.
    with pytest.raises(up.InputError, match=r"= 0.05\d*.*data round 2.*epsilon.*= 0.5"):
        train(Falling(), privacy=mechanism, **({"local": up.LocalSGD(lr=0.1)} if "Bolt" in str(mechanism) else {}))


def test_nothing_is_charged_for_a_round_whose_quadratic_term_is_another() -> None:
    spec = RunSpec(algorithm=Falling(), privacy=MECHANISMS[0], iterations=4)
    plan = make_plan(data(), spec)
    run = start_run(plan)
    assert run.ledger is not None
    engine = plan.engine.open(plan.task, None)
    asked = ask(plan, run)
    weaker = type(asked)(**{**vars(asked), "problem": up.Problem(a=0.05)})
    with pytest.raises(up.InputError, match="was proven for"):
        answer(plan, engine, weaker, run.noise_for(plan, 1, 0), run.ledger)
    assert len(run.ledger) == 0


def test_without_privacy_the_quadratic_term_may_change() -> None:
    assert len(train(Falling()).history) == 4


@pytest.mark.parametrize("engine", ["sequential", "fused"])
@pytest.mark.parametrize("shape", [(42,), (1, 42), (3, 41)])
def test_b_needs_a_row_for_each_client(engine: str, shape: tuple[int, ...]) -> None:
    own = Own(asks=lambda server, memory: up.Problem(b=np.zeros(shape, dtype=np.float32)))
    with pytest.raises(up.InputError, match=r"own.problem.*row.*42.*\(3, 42\)"):
        train(own, engine=engine)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Own(steps=lambda server, memory, arrived: (up.Server(arrived.mean[1:]), memory)), r"model.*shape \(42,\)"),
        (Own(steps=lambda server, memory, arrived: (up.Server(arrived.mean, {"m": arrived.mean}), memory)), "'m'"),
    ],
)
def test_what_an_algorithm_gives_back_is_named_in_one_sentence(algorithm: Any, sentence: str) -> None:
    with pytest.raises(up.InputError, match=sentence):
        train(algorithm)


@pytest.mark.parametrize("upcycle", [None, 0.5, 2.0])
def test_a_server_step_in_place_is_the_same_as_one_out_of_place(upcycle: float | None) -> None:
    def in_place(server: Any, memory: Any, arrived: Any) -> Any:
        model = server.model
        model += np.float32(0.5) * (arrived.mean - model)
        return up.Server(model), memory

    def out_of_place(server: Any, memory: Any, arrived: Any) -> Any:
        return up.Server(server.model + np.float32(0.5) * (arrived.mean - server.model)), memory

    found = [flatten(train(Own(steps=steps), upcycle=upcycle).model) for steps in (in_place, out_of_place)]
    np.testing.assert_array_equal(found[0], found[1])


@dataclass(frozen=True)
class Borrowed:
    """A mechanism of somebody's: ErmOutput's hooks under a name of its own, or under the package's."""

    name: str = "borrowed"

    def fit(self, setting: Any) -> Any:
        return replace(MECHANISMS[0].fit(setting), name=self.name)


def test_a_mechanism_of_ones_own_is_taken_by_its_own_word_and_not_as_checked() -> None:
    ledger = train(up.FedProx(mu=0.5), privacy=Borrowed()).privacy
    assert ledger is not None
    said = dict(ledger.statement_items(1e-5))
    assert said["checked"] == "nothing"
    assert has_all(said["the user's word"], "test_contracts:Borrowed's", "package")


def test_a_mechanism_of_ones_own_may_not_go_by_the_name_of_the_packages() -> None:
    with pytest.raises(up.InputError, match=r"'erm_output'.*mechanism"):
        train(up.FedProx(mu=0.5), privacy=Borrowed("erm_output"))

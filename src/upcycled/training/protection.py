"""What a private run is fitted to: its mechanism, given public facts, and the scores that it pays for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from upcycled.core.algorithm import Algorithm
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.layout import flatten, layout_of
from upcycled.core.mechanism import NO_PRIVACY, Charge, Fitted, Setting, no_claim
from upcycled.core.objective import GeneralisedLinear, Objective
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalSGD
from upcycled.core.upcycling import Strategy
from upcycled.core.vectors import Vector
from upcycled.losses import CrossEntropy, is_balanced, proven_loss
from upcycled.models.linear import linear_layer
from upcycled.models.prepare import has_batch_norm
from upcycled.privacy import MECHANISMS
from upcycled.privacy.charged_scores import FittedScores, check_scores
from upcycled.privacy.ledger.budget import check_budget
from upcycled.training.spec import RunSpec, local_of

BALANCED_WORDS = (
    "the weights of classes may be known, though they follow from all training labels: epsilon does not cover them"
)


@dataclass(frozen=True)
class Protection:
    """What protects a run; as it stands, nothing does."""

    mechanism: Fitted = NO_PRIVACY
    setting: Setting | None = None
    """The public facts that the mechanism was fitted to."""
    scores: FittedScores | None = None
    """What is published of the model's scores, and paid for."""


def fit_protection(
    spec: RunSpec, facts: Facts, module: nn.Module, asked: Objective, objective: Objective, strategy: Strategy
) -> Protection:
    """Return the mechanism that a spec asks for, fitted to public facts.

    Args:
        spec: what was asked for.
        facts: what everybody may know of the data.
        module: the model.
        asked: the loss as it was asked for.
        objective: the same with its class weights, where they follow from the data.
        strategy: how many iterations touch data.

    Raises:
        InputError: in one sentence, if the mechanism proves nothing of such a run.
    """
    if spec.privacy is None:
        return Protection()
    scores = None
    if spec.charged_scores is not None:
        if objective != CrossEntropy():
            raise InputError(f"charged_scores are for the loss 'cross_entropy', but the loss is '{objective.name}'")
        scores = spec.charged_scores.fit(spec.iterations, facts.classes, spec.noise)
    setting = _setting(spec, facts, module, objective, strategy, scores)
    mechanism = spec.privacy.fit(setting)
    if not isinstance(mechanism, Fitted):
        must = f"a mechanism whose fit returns an up.Fitted, not {type(mechanism).__name__}"
        raise InputError(field="privacy", value=spec.privacy, must=must)
    if not _is_ours(spec.privacy):
        mechanism = _by_its_own_word(mechanism, spec.privacy)
    if is_balanced(asked):
        trusted = (*mechanism.promise.trusted, BALANCED_WORDS)
        mechanism = replace(mechanism, promise=replace(mechanism.promise, trusted=trusted))
    if scores is not None:
        check_scores(scores, spec.privacy, mechanism, setting)
        released = f"{mechanism.promise.released}; {scores.released}"
        mechanism = replace(mechanism, promise=replace(mechanism.promise, released=released))
    check_budget(spec.budget, mechanism, setting)
    return Protection(mechanism, setting, scores)


def _is_ours(mechanism: object) -> bool:
    """Tell whether a mechanism's proof is this package's."""
    return type(mechanism) in MECHANISMS.values()


def _by_its_own_word(fitted: Fitted, mechanism: object) -> Fitted:
    """Return somebody else's mechanism with a promise that says whose it is: nothing of it was checked here."""
    # It may be made of the hooks of one of ours, which brings that one's name along.
    name = str(getattr(mechanism, "name", fitted.name)) if fitted.name in MECHANISMS else fitted.name
    if name in MECHANISMS:
        but = f"it calls itself '{name}', which is a mechanism of this package: give it a name of its own"
        raise InputError(field="privacy", value=mechanism, but=but)
    promise, whose = fitted.promise, f"{type(mechanism).__module__}:{type(mechanism).__qualname__}"
    word = f"all that epsilon rests on, which is {whose}'s own word and no proof of this package"
    trusted = (f"{word}: {', '.join(promise.checked)}" if promise.checked else word, *promise.trusted)
    charge = partial(_charge_of, fitted.charge)
    return replace(fitted, name=name, promise=replace(promise, checked=(), trusted=trusted), charge=charge)


def _charge_of(charge: Callable[[Cohort], Charge | None], cohort: Cohort) -> Charge:
    """Return a mechanism's own charge, or an infinite epsilon where it has none."""
    own = charge(cohort)
    return no_claim(cohort) if own is None else own


def _setting(
    spec: RunSpec,
    facts: Facts,
    module: nn.Module,
    objective: Objective,
    strategy: Strategy,
    scores: FittedScores | None,
) -> Setting:
    algorithm, who, local, initial = spec.algorithm, spec.who, local_of(spec), flatten(module)
    data_rounds = strategy.data_rounds(spec.iterations)
    rounds = who.rounds_of_clients(spec.seed, facts.num_clients, data_rounds)
    return Setting(
        facts=facts,
        participation=who,
        algorithm=algorithm.name,
        penalty=penalty_of(algorithm, initial),
        is_personal=algorithm.is_personal,
        remembers=algorithm.remembers,
        uses_releases=bool(getattr(algorithm, "uses_releases", False)),
        local=local.local,
        is_plain_sgd=isinstance(local, LocalSGD) and local.is_plain,
        is_local_given=spec.local is not None,
        gradients_per_step=algorithm.solver(local).gradients_per_step,
        num_parameters=initial.size,
        convex=_convex(module, objective, facts),
        has_bias=any(name.endswith("bias") for name in layout_of(module).names),
        has_batch_norm=has_batch_norm(module),
        rounds=rounds if facts.ids is None else rounds[facts.ids],
        data_rounds=data_rounds,
        noise=spec.noise,
        score_squares=0.0 if scores is None else scores.squares,
        score_draws=0 if scores is None else scores.draws,
        score_times=0 if scores is None else scores.times,
    )


def _convex(module: nn.Module, objective: Objective, facts: Facts) -> GeneralisedLinear | None:
    """Return what is proven of the loss of a linear model of all of a sample's features; None for anything else."""
    linear = linear_layer(module)
    if linear is None or linear.in_features != int(np.prod(facts.shape)):
        return None
    proven = proven_loss(objective, linear.out_features)
    return None if proven is None else proven.about


def penalty_of(algorithm: Algorithm, initial: Vector) -> float:
    """Return the algorithm's a: the same for all clients, and each round is held to it (see ``plan_checks``)."""
    nobody = dict.fromkeys(algorithm.remembers, initial[None, :] * 0)
    return algorithm.problem(algorithm.start(initial), nobody).a

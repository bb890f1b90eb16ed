"""``upcycled privacy advise``: how to spend a file's epsilon better, from public facts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from upcycled.auditing.advice.candidates import (
    ERM,
    FULL,
    GAUSSIAN,
    OBJECTIVE,
    REUSES,
    Candidate,
    Effort,
    Reuse,
    Target,
    check_known,
    grid,
)
from upcycled.auditing.advice.mean_noise import MeanNoise, noise_table
from upcycled.auditing.advice.surrogates import Surrogate, accuracies, can_thin, thinning_for
from upcycled.auditing.explain import planned_ledger
from upcycled.config.experiment import PLAN_KEYS, Experiment, parse
from upcycled.config.sources import Logistic
from upcycled.config.wording import in_keys, named
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.mechanism import Calibrated
from upcycled.privacy.mechanisms.requirements import default_delta
from upcycled.runtime.plan import Plan, plan_of
from upcycled.support.formats import general
from upcycled.support.statistics import Paired
from upcycled.support.warned import collected_warnings

MOST_CLIENTS = 400
"""Federations of more clients are not generated."""
SHOWN_TERM = 0.5
"""The quadratic term that choices are shown with, where the file has none."""
CONFIDENCE = 0.95
_MOST_NAME = 56
"""Characters of a name: fewer than may be, for some are longer in a file system."""


@dataclass(frozen=True)
class Tried:
    """A candidate, and what it reached on generated federations."""

    candidate: Candidate
    scores: tuple[float, ...]
    """Test accuracies, in the order of the federations."""

    @property
    def mean(self) -> float:
        return fmean(self.scores)


@dataclass(frozen=True)
class Advice:
    """What is known in advance of a file's noise, what was tried in its place, and what to do."""

    facts: Facts
    target: Target
    noise: tuple[MeanNoise, ...]
    tried: tuple[Tried, ...] = ()
    """All candidates that could be had, the best first."""
    best: Candidate | None = None
    """What to take; None to keep the file, or where nothing could be tried."""
    gain: Paired | None = None
    """The best candidate's accuracy minus the file's on federations that nothing was chosen by."""
    own_accuracy: float | None = None
    best_accuracy: float | None = None
    thinning: float = 1.0
    file: Mapping[str, Any] | None = None
    """The content of the improved file."""
    remarks: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to do, in words."""
        if self.gain is None:
            return self.remarks
        if self.best is None:
            return ("Keep the file as it is: nothing that was tried is better on generated federations.", *self.remarks)
        return (f"Take {self.best.words}.", *self.remarks)

    def as_json(self) -> dict[str, Any]:
        gain = self.gain
        low, high = (None, None) if gain is None else gain.interval
        return {
            "facts": {
                "sizes": self.facts.sizes.tolist(),
                "features": self.facts.shape[0],
                "classes": self.facts.classes,
            },
            "epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "norm_bound": self.target.norm_bound,
            "noise": [row.as_json() for row in self.noise],
            "tried": [{**one.candidate.as_json(), "accuracy": one.mean, "runs": len(one.scores)} for one in self.tried],
            "advice": None if self.best is None else self.best.as_json(),
            "accuracy": {"file": self.own_accuracy, "advice": self.best_accuracy},
            "gain": None if gain is None else {"mean": gain.mean, "low": low, "high": high},
            "thinning": self.thinning,
            "file": None if self.file is None else dict(self.file),
            "sentences": list(self.sentences),
        }


def advise(experiment: Experiment, source: str, facts: Facts, effort: Effort = FULL) -> Advice:
    """Say how a file's epsilon is spent best, and try it on generated federations of the same sizes.

    The file's data are not opened: everything follows from ``facts`` and from the file.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`.
        source: the file's name, for error sentences.
        facts: from :func:`upcycled.auditing.advice.public_facts.public_facts`.
        effort: how much is tried.

    Returns:
        The noise under each choice, what was tried, and the content of the improved file.

    Raises:
        InputError: if the file has no mechanism, or one without an epsilon.
    """
    if experiment.privacy is None:
        raise InputError("the file has no table [privacy], so there is no noise to advise on").at(source)
    with named(source), in_keys(PLAN_KEYS), collected_warnings():
        file = experiment.said()
        own = plan_of(facts, experiment.spec(experiment.seeds[0]))
        target = _target(experiment, own)
        shown = _shown(own, target)
        noise = tuple(noise_table(file, facts, target, own, shown))
        if reason := _not_tried(experiment, own, target):
            return Advice(facts, target, noise, remarks=(reason,))
        return _search(file, facts, target, own, noise, effort)


def _renamed(file: dict[str, Any]) -> dict[str, Any]:
    """Return a file under another name: results of the old one stay where they are."""
    end = "-advised"
    return {**file, "name": f"{file['name'][: _MOST_NAME - len(end)]}{end}"}


def _target(experiment: Experiment, own: Plan) -> Target:
    """Return what the file spends, as it says or as its noise comes to."""
    asked = own.spec.privacy
    norm_bound = own.mechanism.norm_bound or 1.0
    if not own.mechanism.promise.is_claimed:
        raise InputError(field="privacy", but="it claims no epsilon, so there is none to spend better")
    if isinstance(asked, Calibrated) and asked.epsilon is not None:
        return Target(float(asked.epsilon), float(asked.delta or 0.0), norm_bound)
    if own.scores is not None:
        raise InputError(field="privacy.epsilon", but="with charged scores it must be given, in place of the noise")
    ledger = planned_ledger(own)
    delta = default_delta(None, int(own.facts.sizes.max()))
    epsilon = float(ledger.epsilon(delta).max())
    if not np.isfinite(epsilon):
        raise InputError(field="privacy", but="its noise gives no finite epsilon, so there is none to spend better")
    return Target(epsilon, delta, norm_bound)


def _mechanisms(target: Target) -> list[str]:
    """Return what can meet the target: at delta = 0 only Gamma noise, which is worse than Gaussian noise elsewhere."""
    return [OBJECTIVE] if target.delta == 0 else [ERM, GAUSSIAN]


def _shown(own: Plan, target: Target) -> list[Candidate]:
    """Return the choices whose noise is shown: each mechanism at the file's own a, for its rounds and half of them."""
    assert own.setting is not None  # a private plan
    a = (own.setting.penalty + own.mechanism.prox_mu) or SHOWN_TERM
    found = []
    for rounds in dict.fromkeys([own.data_rounds, max(1, own.data_rounds // 2)]):
        for mechanism in _mechanisms(target):
            for steps in (50, 3) if mechanism == ERM else (None,):
                found.append(Candidate(mechanism, a, rounds, steps, Reuse()))
    return found


def _not_tried(experiment: Experiment, own: Plan, target: Target) -> str:
    """Return why nothing is tried, if so."""
    if own.mechanism.promise.unit != "record":
        return "The file protects whole clients; the mechanisms that could be tried protect records, which is less."
    if not isinstance(experiment.model, Logistic) or own.setting is None or own.setting.convex is None:
        return (
            "Nothing was tried: mechanisms with less noise for larger clients need a linear model (model.kind = "
            '"logistic") and a loss with a proof.'
        )
    if own.objective.targets != "classes":
        return "Nothing was tried: generated federations have classes, not numbers, as targets."
    if own.facts.num_clients > MOST_CLIENTS:
        return f"Nothing was tried: federations of more than {MOST_CLIENTS} clients are not generated."
    check_known(own.spec.algorithm.name)
    return ""


def _search(
    file: Mapping[str, Any],
    facts: Facts,
    target: Target,
    own: Plan,
    noise: tuple[MeanNoise, ...],
    effort: Effort,
) -> Advice:
    reuse = _possible_reuse(file, facts, target, own)
    candidates = grid(effort, own.data_rounds, _mechanisms(target), reuse)
    thinning = thinning_for(facts, candidates, effort)
    if thinning > 1 and target.delta > 0:
        candidates = can_thin(candidates)
        thinning = thinning_for(facts, candidates, effort)
    surrogate = Surrogate(facts, thinning)
    trials = surrogate.target(target)

    def scored(chosen: Sequence[Candidate], numbers: range, before: Mapping[Candidate, Tried]) -> list[Tried]:
        found = accuracies(surrogate, [one.applied(file, trials) for one in chosen], numbers)
        whole = [
            Tried(one, (*(before[one].scores if one in before else ()), *(s for s in scores if s is not None)))
            for one, scores in zip(chosen, found, strict=True)
            if None not in scores
        ]
        return sorted(whole, key=lambda tried: -tried.mean)

    first = range(effort.first)
    again = range(effort.first, effort.first + effort.second)
    fresh = range(again.stop, again.stop + effort.last)
    tried = scored(candidates, first, {})
    if not tried:
        words = "Nothing could be tried: no noise reaches this epsilon here; raise it, or take fewer rounds."
        return Advice(facts, target, noise, thinning=thinning, remarks=(words,))
    kept = [one.candidate for one in tried[: max(3, len(tried) // 4)]]
    once_more = scored(kept, again, {one.candidate: one for one in tried})
    # What weights and step are worth is asked of the best three only.
    winners = [one.candidate for one in once_more[:3]]
    others = [replace(one, reuse=other) for one in winners for other in REUSES if other != reuse]
    compared = scored(others, range(again.stop), {})
    judged = sorted([*once_more[:3], *compared], key=lambda one: -one.mean)
    best = judged[0].candidate
    own_content = _thinned_own(file, own, trials, thinning)
    ours, theirs = accuracies(surrogate, [best.applied(file, trials), own_content], fresh)
    pairs = [(o, t) for o, t in zip(ours, theirs, strict=True) if o is not None and t is not None]
    ranked = (*judged, *(one for one in once_more[3:]), *(one for one in tried if one.candidate not in kept))
    if len(pairs) < 2:
        words = "The file as it is does not run on generated data, so nothing could be held against it."
        return Advice(facts, target, noise, ranked, best, thinning=thinning, remarks=(words,))
    gain = Paired(tuple(o - t for o, t in pairs), CONFIDENCE)
    is_better = gain.mean > 0
    remarks = _remarks(own, thinning, gain)
    return Advice(
        facts,
        target,
        noise,
        ranked,
        best if is_better else None,
        gain,
        fmean(t for _, t in pairs),
        fmean(o for o, _ in pairs),
        thinning,
        _renamed(best.applied(file, target)) if is_better else None,
        remarks,
    )


def _possible_reuse(file: Mapping[str, Any], facts: Facts, target: Target, own: Plan) -> Reuse:
    """Return the fullest reuse that the file's algorithm takes."""
    for reuse in REUSES:
        mechanism = _mechanisms(target)[0]
        one = Candidate(mechanism, 1.0, max(1, own.data_rounds // 4), 1 if mechanism == ERM else None, reuse)
        try:
            plan_of(facts, parse(one.applied(file, target)).spec(own.spec.seed))
        except InputError:
            continue
        return reuse
    return REUSES[-1]


def _thinned_own(file: Mapping[str, Any], own: Plan, trials: Target, thinning: float) -> Mapping[str, Any]:
    """Return the file's own content with the noise that it has on all records."""
    asked = own.spec.privacy
    if thinning == 1.0 or not isinstance(asked, Calibrated) or asked.epsilon is None:
        return file
    return {**file, "privacy": {**file["privacy"], "epsilon": trials.epsilon}}


def _remarks(own: Plan, thinning: float, gain: Paired) -> tuple[str, ...]:
    found = [
        "Gains are on generated federations of the same sizes, which nothing of the private data is in: advice, not a "
        "promise. What it costs is the same."
    ]
    if not gain.is_significant:
        found.append("The interval contains zero: on these federations the two cannot be told apart.")
    if thinning > 1:
        found.append(
            f"One record in {general(thinning)} was generated, with the noise that all of them have; choices that take "
            "more records to pay off may be missed."
        )
    if own.mechanism.name in ("model_clipping", "update_clipping"):
        found.append(
            "Clipping protects all records of a client at once; what is advised protects one record: decide whether "
            "that is what you promise."
        )
    return tuple(found)

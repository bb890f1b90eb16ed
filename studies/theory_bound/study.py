"""The convergence bound beside recorded runs: does it hold where its assumptions do, and by how much?

    python -m studies.theory_bound            computes what is missing, then writes tables and plot
    python -m studies.theory_bound --quick    one set, one seed, few rounds; writes nothing

Cells are kept one by one, so that a stopped command goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import upcycled as up
from studies.common.data import syn
from studies.common.store import Cells, compute_cells
from studies.theory_bound.measure import BoundProbe, judge, terms_of
from studies.theory_bound.page import COUNTER_EXAMPLE, RATIOS, SETS, setting, write

CELLS = Path(__file__).parent / "results" / "cells.parquet"
EVEN: dict[str, tuple[Any, ...]] = {"iid": ("iid",), "0.5,0.5": (0.5, 0.5)}
"""Generated sets of clients of one size: only their sampled means are unbiased here."""
CLIENTS, SAMPLES, PARTICIPATION = 100, 100, 0.6
SCALES: dict[str, float | None] = dict(zip(RATIOS, (math.inf, None, 1.0, 0.0), strict=True))
"""lambda_m / mu; None is the corollary's schedule."""
SEEDS = (0, 1, 2)
ROUNDS = 100
MARGIN = 1.25
PAPER_MU, PAPER_COHORT = 0.5, 9


@dataclass(frozen=True)
class Cell:
    """One recorded run: how it was made differs by kind."""

    kind: str
    """``"exact"``, ``"sgd"`` (SGD with stragglers) or ``"sampled"``."""
    data: str
    ratio: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.kind}|{self.data}|{self.ratio}|{self.seed}"


def load(kind: str, name: str) -> up.FederatedData:
    if kind == "sampled":
        return up.data.synthetic(*EVEN[name], clients=CLIENTS, sizes=SAMPLES, seed=0)
    return syn(name)


def local(kind: str, smoothness: float, mu: float) -> up.LocalSGD:
    """Descent that leaves e^-12 of the gradient, or the paper's epochs and batches at a rate that mu allows."""
    if kind == "sgd":
        return up.LocalSGD(lr=0.2 / (smoothness + mu), momentum=0.5, epochs=10, batch_size=32)
    steps = math.ceil(12 / math.log1p(mu / smoothness))
    return up.LocalSGD(lr=1 / (smoothness + mu), epochs=steps, batch_size=None)


def coefficient(ratio: str, mu: float, rounds: int) -> Any:
    scale = SCALES[ratio]
    if scale is None:
        return up.coefficients.Proximal(mu=mu, lam=up.theory.lambda_schedule(mu, rounds).tolist())
    return None if math.isinf(scale) else up.coefficients.Proximal(mu=mu, lam=scale * mu)


def arguments(cell: Cell, data: up.FederatedData, mu: float, rounds: int) -> dict[str, Any]:
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    upcycle = coefficient(cell.ratio, mu, rounds)
    return {
        "data": data,
        "algorithm": up.FedProx(mu=mu),
        "upcycle": upcycle,
        "iterations": rounds if upcycle is None else 2 * rounds,
        "local": local(cell.kind, smoothness, mu),
        "participation": PARTICIPATION if cell.kind == "sampled" else 1.0,
        "stragglers": 0.9 if cell.kind == "sgd" else 0.0,
        "seed": cell.seed,
        "eval_every": rounds,
        "callbacks": [BoundProbe(data, "logistic", mu)],
    }


def cohort_of(kind: str) -> int | None:
    """Return how many clients are drawn in a round; None if all take part."""
    return round(PARTICIPATION * CLIENTS) if kind == "sampled" else None


def chosen_mu(kind: str, name: str, data: up.FederatedData, rounds: int) -> float:
    """Return twice the least mu for a B that pilot runs, one a seed, stay below.

    The smaller mu is, the further a run goes and the larger its B becomes: so B starts with that of the initial
    weights, and grows until it is enough.
    """
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    form: up.theory.Form = "sharp" if kind == "sampled" else "repaired"
    cohort = cohort_of(kind)
    pilots = [Cell(kind, name, "c = 1", seed) for seed in SEEDS]
    b = 1.0
    for attempt in range(20):
        least = up.theory.smallest_mu(smoothness=smoothness, dissimilarity=b, cohort=cohort, form=form)
        assert least is not None
        results = up.train_many([arguments(cell, data, 2 * least, rounds if attempt else 1) for cell in pilots])
        terms = [terms_of(_finished(result).history) for result in results]
        if attempt and max(t.largest_dissimilarity for t in terms) <= b:
            return 2 * least
        b = MARGIN * max(t.largest_dissimilarity if attempt else t.initial_dissimilarity for t in terms)
    raise RuntimeError(f"no mu was found for {kind} on Syn({name})")


def _finished(result: up.Result | up.Failed) -> up.Result:
    if result.error is not None:
        raise result.error  # a run that ended early says nothing of the bound
    assert isinstance(result, up.Result)
    return result


def kept_of(result: up.Result, mu: float, smoothness: float, cohort: int | None) -> dict[str, Any]:
    """Return what is kept of a run."""
    report = judge(_finished(result).history, mu=mu, smoothness=smoothness, cohort=cohort)
    t = report.terms
    places = sorted({round(x) for x in np.geomspace(1, t.rounds, 40)})
    return {
        "mu": mu,
        "smoothness": smoothness,
        "dissimilarity": t.largest_dissimilarity,
        "inexactness": float(t.inexactness.max()),
        "rounds": t.rounds,
        "unmet": list(report.unmet),
        "average": float(t.average[-1]),
        "least": float(t.least[-1]),
        "loss": [t.initial_loss, float(t.loss[-1])],
        "forms": {
            form: {
                "C1": about.C1,
                "applies": report.applies(form),
                "holds": report.holds(form),
                "bound": float(report.bounds[form][-1]) if about.converges else None,
                "above": int((t.average > report.bounds[form]).sum()),
                "least_slack": float(report.slack(form).min()),
            }
            for form, about in report.constants.items()
        },
        "curve": {
            "round": places,
            "average": [float(t.average[m - 1]) for m in places],
            "bound": [float(report.bounds["sharp"][m - 1]) for m in places],
        },
    }


def cells(quick: bool) -> list[Cell]:
    if quick:
        return [Cell(kind, "iid", "c = 0.5", 0) for kind in ("exact", "sgd", "sampled")]
    exact = [Cell("exact", *found) for found in itertools.product(SETS, RATIOS, SEEDS)]
    sgd = [Cell("sgd", *found) for found in itertools.product(SETS, ("c = 0.5",), SEEDS)]
    return [*exact, *sgd, *(Cell("sampled", *found) for found in itertools.product(EVEN, RATIOS, SEEDS))]


def compute(wanted: list[Cell], kept: Cells, rounds: int) -> None:
    """Run what is missing, a set at a time."""
    for kind, name in dict.fromkeys((cell.kind, cell.data) for cell in wanted):
        missing = [c for c in wanted if (c.kind, c.data) == (kind, name) and c.key not in kept]
        if not missing:
            continue
        data = load(kind, name)
        mu = chosen_mu(kind, name, data, rounds)
        print(f"{kind}, Syn({name}): {len(missing)} runs with mu = {mu:.5g}", file=sys.stderr, flush=True)
        runs = {cell.key: partial(arguments, cell, data, mu, rounds) for cell in missing}
        smoothness = up.theory.estimate_smoothness(data, "logistic")
        keep = partial(kept_of, mu=mu, smoothness=smoothness, cohort=cohort_of(kind))
        compute_cells(kept, runs, keep, may_fail=False)


def paper_setting(name: str) -> dict[str, Any]:
    """Return where the settings of the paper's experiments stand: its data, mu, and 30 % of the clients."""
    data = syn(name)
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    b = float(up.theory.estimate_dissimilarity(data, "logistic", np.zeros(2 * (data.num_features + 1))))
    about: dict[str, Any] = {"smoothness": smoothness, "dissimilarity": b, "cohort": PAPER_COHORT}
    return about | {
        "C1": {
            form: up.theory.constants(**about, mu=PAPER_MU, strong_convexity=PAPER_MU, lam=0.0, form=form).C1
            for form in up.theory.FORMS
        },
        "smallest_mu": {form: up.theory.smallest_mu(**about, form=form) for form in up.theory.FORMS},
    }


def counter_example() -> dict[str, Any]:
    """Train one client on labels that its feature does not explain: near the minimum its curvature is L itself."""
    x = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    data = up.FederatedData.from_arrays([x], [[0, 1, 0, 1]])
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.1], [-0.1]]))
        module.bias.zero_()
    mu = 10.0
    run: dict[str, Any] = {
        "algorithm": up.FedProx(mu=mu),
        "iterations": 20,
        "local": local("exact", 0.5, mu),
        "callbacks": [BoundProbe(data, module, mu)],
    }
    result = _finished(up.train(data, model=module, **run, progress=False))
    smoothness = up.theory.estimate_smoothness(data, module)
    report = judge(result.history, mu=mu, smoothness=smoothness, cohort=None)
    return {
        "mu": mu,
        "rounds": report.terms.rounds,
        "violated": {form: int((report.slack(form) < 0).sum()) for form in up.theory.FORMS},
        "checked": int(report.slack("paper").size),
        "C1": {form: report.constants[form].C1 for form in up.theory.FORMS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    wanted = cells(quick)
    with tempfile.TemporaryDirectory() as folder:
        kept = Cells(Path(folder) / CELLS.name if quick else CELLS)
        print(f"{sum(cell.key not in kept for cell in wanted)} runs to do", file=sys.stderr)
        compute(wanted, kept, 10 if quick else ROUNDS)
    if quick:
        for cell in wanted:
            print(cell.key, kept[cell.key]["average"], kept[cell.key]["forms"])
        return
    for name in SETS:
        if setting(name) not in kept:
            kept.add(setting(name), paper_setting(name))
    if COUNTER_EXAMPLE not in kept:
        kept.add(COUNTER_EXAMPLE, counter_example())
    kept.fold()
    write(kept)

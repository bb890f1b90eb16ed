"""Does reuse pay? Weights that know each client's noise, and a step that trusts signal, at equal proven epsilon.

    python -m studies.reuse                    computes what is missing, then writes docs/reuse.md and its picture
    python -m studies.reuse --seeds 8          no more than so many seeds of each row
    python -m studies.reuse --only fedprox     rows whose name begins so: fedprox-erm, feddyn-erm, no-noise, ...
    python -m studies.reuse --page             writes the page from the cells that are there
    python -m studies.reuse --quick            one set, one epsilon, two seeds; writes nothing

On the four official synthetic sets, and for the decisive comparison on twelve generated ones. Every rival spends the
same proven epsilon per client. Seeds are fresh: none of them was looked at when rules and constants were chosen, which
was on other generated federations. Cells are kept one by one, so that a stopped command goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up
from studies.common.data import ROOT, SYN, data_folder, syn
from studies.common.page import MISSING, paired_words, table, write_page
from studies.common.pictures import write_picture
from studies.common.statistics import Paired, better_and_worse, paired, sure
from studies.common.store import Cells, compute_cells
from upcycled.privacy.mechanisms.requirements import project
from upcycled.training.loop import iterate
from upcycled.training.plan import make_plan
from upcycled.training.state import start_run

CELLS = Path(__file__).parent / "results" / "cells.parquet"
PAGE, PLOT = ROOT / "docs" / "reuse.md", ROOT / "docs" / "images" / "reuse.png"

DELTA = 1e-5
FIRST_SEED = 1000
ROUNDS = 40

PAPER: dict[str, Any] = {"iterations": 2 * ROUNDS, "upcycle": 0.5}
REUSE: dict[str, Any] = {"iterations": 2 * ROUNDS, "upcycle": up.coefficients.Signal(), "aggregation": "precision"}
OURS, VANILLA = "reuse", "vanilla 80"
WEIGHTED = "vanilla 80, weights"
"""The decisive baseline: as many data rounds as reuse has iterations, its weights, and no upcycled step."""
BASELINES: dict[str, dict[str, Any]] = {
    VANILLA: {"iterations": 2 * ROUNDS},
    "vanilla 40": {"iterations": ROUNDS},
    "upcycled 0.5": PAPER,
    WEIGHTED: {"iterations": 2 * ROUNDS, "aggregation": "precision"},
}
BY_SIZE = {name: asked for name, asked in BASELINES.items() if "aggregation" not in asked}
"""The baselines that weigh clients by n_i, as the published algorithms do."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "weights only": {"iterations": ROUNDS, "aggregation": "precision"},
    "weights, 0.5": PAPER | {"aggregation": "precision"},
    "step only": {"iterations": 2 * ROUNDS, "upcycle": up.coefficients.Signal()},
}
TAIL, BLEND = "tail", "blend"
AVERAGES = {
    TAIL: "the mean of the last half of its models",
    BLEND: "half its last model, half the mean of all",
}


@dataclass
class Averages:
    """Scores means of a run's models: post-processing too, on the features as the model was trained on them."""

    data: str
    iterations: int
    norm_bound: float = 1.0
    _sums: dict[str, Any] = field(default_factory=lambda: {"all": 0.0, TAIL: 0.0})

    def measure(self, step: Any) -> dict[str, float]:
        model = step.after.astype(np.float64)
        self._sums["all"] = self._sums["all"] + model
        if 2 * step.iteration > self.iterations:
            self._sums[TAIL] = self._sums[TAIL] + model
        if step.iteration < self.iterations:
            return {}
        tail = self._sums[TAIL] / (self.iterations - self.iterations // 2)
        blend = (model + self._sums["all"] / self.iterations) / 2
        return {TAIL: self._accuracy(tail), BLEND: self._accuracy(blend)}

    def _accuracy(self, model: np.ndarray) -> float:
        held_out = syn(self.data).test
        assert held_out is not None
        test = project(held_out, norm_bound=self.norm_bound)
        features = test.x.shape[1]
        weight, bias = np.split(model, [model.size // (features + 1) * features])
        return float(np.mean(np.argmax(test.x @ weight.reshape(bias.size, features).T + bias, axis=1) == test.y))


def erm(epsilon: float) -> Any:
    return up.privacy.ErmOutput(norm_bound=1.0, epsilon=epsilon, delta=DELTA)


def objective(epsilon: float) -> Any:
    return up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=epsilon, delta=DELTA)


def updates(epsilon: float) -> Any:
    return up.privacy.UpdateClipping(clip_norm=0.01, epsilon=epsilon, delta=DELTA)


def silent(epsilon: float) -> Any:
    """Return the same solver on the same features without noise."""
    return up.privacy.ErmOutput(norm_bound=1.0, noise_std=0.0)


@dataclass(frozen=True)
class Row:
    """An algorithm with a mechanism, its rivals and how many seeds each gets."""

    title: str
    algorithm: Any
    mechanism: Any
    epsilons: tuple[float, ...]
    seeds: int
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: BASELINES | {OURS: REUSE})
    more: Mapping[str, Any] = field(default_factory=dict)
    """What all rivals are given."""
    is_averaged: bool = False
    """Whether means of the models are scored too."""
    sets: tuple[str, ...] = tuple(SYN)


ALL = (0.5, 1.0, 2.0, 4.0, 8.0)
NO_NOISE = (math.inf,)
FEMNIST = "FEMNIST"
BY_SAMPLES = up.FedDyn(alpha=0.5, weights="samples")
GENERATED: dict[str, tuple[Any, ...]] = {"iid": ("iid",), "0,0": (0, 0), "0.5,0.5": (0.5, 0.5), "1,1": (1, 1)}
FIRST_GENERATED = 2000
"""The seed of the first generated set; the page's weights and the choice of constants used others."""
GENERATED_SETS = {
    f"{like} #{number}": (*shape, FIRST_GENERATED + number) for like, shape in GENERATED.items() for number in range(3)
}
ROWS = {
    "fedprox-erm": Row("FedProx, ErmOutput", up.FedProx(mu=0.5), erm, ALL, 64),
    "feddyn-erm": Row("FedDyn by n_i, ErmOutput", BY_SAMPLES, erm, ALL, 32),
    # With mu = 0.5 the smallest client (n = 45) cannot reach epsilon 1 over 80 rounds however large the noise.
    "fedprox-objective": Row("FedProx (mu 1), ObjectivePerturbation", up.FedProx(mu=1.0), objective, ALL[1:], 32),
    "generated-fedprox": Row(
        "FedProx, ErmOutput, generated sets",
        *(up.FedProx(mu=0.5), erm, (0.5, 2.0, 8.0), 16),
        {VANILLA: BASELINES[VANILLA], WEIGHTED: BASELINES[WEIGHTED], OURS: REUSE},
        sets=tuple(GENERATED_SETS),
    ),
    "fedprox-erm-parts": Row("FedProx, ErmOutput: parts", up.FedProx(mu=0.5), erm, ALL, 16, ABLATIONS),
    "fedprox-erm-averages": Row(
        "FedProx, ErmOutput: averages",
        *(up.FedProx(mu=0.5), erm, ALL, 16, {name: BASELINES[name] for name in (VANILLA, "vanilla 40")}),
        is_averaged=True,
    ),
    # Nothing is drawn in these: one seed says all.
    "no-noise-fedprox": Row("FedProx", up.FedProx(mu=0.5), silent, NO_NOISE, 1),
    "no-noise-feddyn": Row("FedDyn by n_i", BY_SAMPLES, silent, NO_NOISE, 1),
    "no-noise-feddyn-equal": Row("FedDyn as published", up.FedDyn(alpha=0.5), silent, NO_NOISE, 1),
    "participation-fedprox": Row(
        "FedProx, ErmOutput, participation 0.3",
        *(up.FedProx(mu=0.5), erm, (1.0, 4.0), 8),
        more={"participation": 0.3},
    ),
    "feddyn-equal": Row("FedDyn as published, ErmOutput", up.FedDyn(alpha=0.5), erm, ALL, 16, BY_SIZE),
    # The signal step needs a certified solver: here are the weights alone.
    "femnist-mlp": Row(
        "FedAvg, MLP of 155,800 parameters, UpdateClipping",
        *(up.FedAvg(), updates, (8.0, 1000.0), 4),
        {"vanilla 40": BASELINES["vanilla 40"], "weights only": ABLATIONS["weights only"]},
        more={"model": "mlp", "local": up.LocalSGD(lr=0.05, epochs=2, batch_size=32)},
        sets=(FEMNIST,),
    ),
}
MAIN = ("fedprox-erm", "feddyn-erm", "fedprox-objective")


@dataclass(frozen=True)
class Cell:
    """One number: a row of the study, a set, an epsilon, a rival and a seed."""

    row: str
    data: str
    epsilon: float
    rival: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.row}|{self.data}|{self.epsilon:g}|{self.rival}|{self.seed}"

    def arguments(self) -> dict[str, Any]:
        row = ROWS[self.row]
        asked = dict(row.rivals[self.rival])
        return {
            "data": federation(self.data),
            "algorithm": row.algorithm,
            "privacy": row.mechanism(self.epsilon),
            "seed": self.seed,
            "eval_every": asked["iterations"],
            **row.more,
            **({"callbacks": [Averages(self.data, asked["iterations"])]} if row.is_averaged else {}),
            **asked,
        }


@cache
def federation(name: str) -> up.FederatedData:
    if name == FEMNIST:
        return up.data.femnist(data_folder() / "femnist10_50dev_wrap.npz")
    if name in GENERATED_SETS:
        *shape, seed = GENERATED_SETS[name]
        return up.data.synthetic(*shape, clients=30, seed=seed)
    return syn(name)


def cells(only: str, most: int) -> Iterator[Cell]:
    """Return all cells, seed after seed, so that whatever is there is balanced."""
    rows = [name for name in ROWS if name.startswith(only)]
    for number in range(max(ROWS[name].seeds for name in rows)):
        for name in rows:
            row = ROWS[name]
            if number < min(row.seeds, most):
                for data, epsilon, rival in itertools.product(row.sets, row.epsilons, row.rivals):
                    yield Cell(name, data, epsilon, rival, FIRST_SEED + number)


def value_of(result: up.Result) -> dict[str, Any]:
    assert result.privacy is not None
    spent = result.privacy.epsilon(DELTA)
    averages = {name: value for name, value in result.history[-1].metrics.items() if name in AVERAGES}
    return {"accuracy": result.accuracy, "loss": result.loss, "epsilon": float(spent.max()), **averages}


Where = tuple[str, str, float]
"""A row, a set and an epsilon."""


def places(name: str) -> list[Where]:
    return [(name, data, epsilon) for data, epsilon in itertools.product(ROWS[name].sets, ROWS[name].epsilons)]


def shared_seeds(kept: Cells, where: Where, rivals: Mapping[str, str]) -> list[int]:
    """Return the seeds that all these rivals (row of each) have in a place."""
    _, data, epsilon = where
    seeds = range(FIRST_SEED, FIRST_SEED + 64)
    return [s for s in seeds if all(Cell(row, data, epsilon, one, s).key in kept for one, row in rivals.items())]


def accuracies(
    kept: Cells, row: str, where: Where, rival: str, seeds: list[int], score: str = "accuracy"
) -> np.ndarray:
    _, data, epsilon = where
    return 100 * np.array([kept[Cell(row, data, epsilon, rival, seed).key][score] for seed in seeds])


def rivals_of(kept: Cells, where: Where) -> dict[str, np.ndarray] | None:
    """Return the accuracies of every rival in a place over the seeds that all of them have; None below two seeds."""
    name = where[0]
    rivals = dict.fromkeys(ROWS[name].rivals, name)
    seeds = shared_seeds(kept, where, rivals)
    if len(seeds) < 2:
        return None
    return {rival: accuracies(kept, name, where, rival, seeds) for rival in rivals}


def results_table(kept: Cells, name: str) -> list[str]:
    rows = []
    for where in places(name):
        shown = [MISSING] * (len(BASELINES) + 3)
        if (found := rivals_of(kept, where)) is not None:
            difference = paired(found[OURS], found[WEIGHTED])
            shown = [f"{values.mean():.2f}" for values in found.values()]
            shown += [paired_words(difference), str(len(difference.differences))]
        rows.append([where[1], f"{where[2]:g}", *shown])
    return table(["Syn", "epsilon", *BASELINES, OURS, f"{OURS} minus {WEIGHTED} (95 %)", "seeds"], rows)


def verdict(kept: Cells, name: str) -> list[str]:
    """Say how reuse compares with vanilla of as many iterations and the same weights, and with each other baseline."""
    found = {where: values for where in places(name) if (values := rivals_of(kept, where)) is not None}
    if not found:
        return [f"- {ROWS[name].title}: not computed yet."]
    by_epsilon = ", ".join(
        f"{_over(WEIGHTED, some)[0].mean:+.2f} at {epsilon:g}"
        for epsilon in ROWS[name].epsilons
        if (some := [values for (_, _, at), values in found.items() if at == epsilon])
    )
    mean, better, worse = _over(WEIGHTED, list(found.values()))
    others = [(rival, *_over(rival, list(found.values()))) for rival in BY_SIZE]
    by_weights = np.mean([np.mean(values[WEIGHTED] - values[VANILLA]) for values in found.values()])
    return [
        f"- {ROWS[name].title}: {OURS} minus {WEIGHTED}: {paired_words(mean)} points, {len(mean.differences)} seeds; "
        f"better in {better} of {len(found)} cells, worse in {worse}. By epsilon: {by_epsilon}. "
        f"{OURS.capitalize()} minus the baselines with weights by n_i: "
        + ", ".join(f"{rival} {one.mean:+.2f} ({up} better, {down} worse)" for rival, one, up, down in others)
        + f". The weights alone ({WEIGHTED} minus {VANILLA}): {by_weights:+.2f}."
    ]


def _over(rival: str, cells: list[dict[str, np.ndarray]]) -> tuple[Paired, int, int]:
    """Return reuse minus a rival, mean of the cells by seed, and in how many cells it is better and worse after Holm.

    All cells of a seed share their noise: the interval is that of the seeds' means, not of single cells.
    """
    family = [paired(values[OURS], values[rival]) for values in cells]
    shared = min(len(one.differences) for one in family)  # while the study runs, cells have seeds that others lack
    mean = np.mean([one.differences[:shared] for one in family], axis=0)
    return paired(mean, np.zeros_like(mean)), *better_and_worse(family, sure(family))


PARTS: dict[str, tuple[str, str, str]] = {
    **{part: ("fedprox-erm-parts", part, "accuracy") for part in ABLATIONS},
    f"both: {OURS}": ("fedprox-erm", OURS, "accuracy"),
    **{rival: ("fedprox-erm", rival, "accuracy") for rival in (WEIGHTED, VANILLA, "vanilla 40")},
    **{
        f"{rival}, {words}": ("fedprox-erm-averages", rival, score)
        for rival in (VANILLA, "vanilla 40")
        for score, words in AVERAGES.items()
    },
}
"""What the table of parts shows: a row of the study, a rival and a score."""


def parts_table(kept: Cells) -> list[str]:
    """Return what weights, step and averages do alone: gains over the paper's strategy, mean over the sets."""
    rows, most = [], ROWS["fedprox-erm-parts"].seeds
    for part, (row, rival, score) in PARTS.items():
        shown = []
        for epsilon in ALL:
            means = []
            for data in SYN:
                where = ("fedprox-erm", data, epsilon)
                seeds = shared_seeds(kept, where, {rival: row, "upcycled 0.5": "fedprox-erm"})[:most]
                if len(seeds) > 1:
                    ours = accuracies(kept, row, where, rival, seeds, score)
                    means.append(np.mean(ours - accuracies(kept, "fedprox-erm", where, "upcycled 0.5", seeds)))
            shown.append(f"{np.mean(means):+.2f}" if len(means) == len(SYN) else MISSING)
        if set(shown) != {MISSING}:
            rows.append([part, *shown])
    return table(["part", *(f"epsilon {epsilon:g}" for epsilon in ALL)], rows)


WEIGHED: dict[str, Any] = {"FedProx": up.FedProx(mu=0.5), "FedDyn by n_i": BY_SAMPLES}


def weigh(name: str, data: str, epsilon: float) -> dict[str, float]:
    """Return what is left of the noise by n_i under precision weights, and tau^2, on a generated federation."""
    federation = up.data.synthetic(*GENERATED[data], clients=30, seed=FIRST_SEED)
    algorithm = WEIGHED[name]
    spec = up.RunSpec(algorithm=algorithm, privacy=erm(epsilon), eval_every=2 * ROUNDS, progress=False, **REUSE)
    plan = make_plan(federation, spec)
    *_, (run, _) = iterate(plan, plan.engine.open(plan.task, None), start_run(plan))
    everybody, ones = np.arange(federation.sizes.size), np.ones(federation.sizes.size, dtype=np.int64)
    release = up.Release(everybody, np.zeros((everybody.size, plan.layout.size)), federation.sizes, ones)
    assert plan.mechanism.release_noise_std is not None
    assert run.state.noise_energy is not None
    by_samples = federation.sizes / federation.sizes.sum() * plan.mechanism.release_noise_std(release)
    of_round = run.state.noise_energy / algorithm.noise_gain**2 / plan.directions.dimension
    told = run.state.aggregator
    return {"left": of_round / float(by_samples @ by_samples), "tau2": float(told["total"]) / int(told["rounds"])}


def weigh_key(name: str, data: str, epsilon: float) -> str:
    return f"noise|{name}|{data}|{epsilon:g}"


def noise_table(kept: Cells) -> list[str]:
    """Return how far clients' pulls lie apart for each algorithm, and what precision weights leave of the noise."""
    rows = []
    for name, data in itertools.product(WEIGHED, GENERATED):
        found = [kept.get(weigh_key(name, data, epsilon)) for epsilon in ALL]
        left = [MISSING if one is None else f"{one['left']:.2f}" for one in found]
        rows.append([name, data, MISSING if found[2] is None else f"{found[2]['tau2']:.3f}", *left])
    return table(["", "like Syn", f"tau^2 at epsilon {ALL[2]:g}", *(f"epsilon {epsilon:g}" for epsilon in ALL)], rows)


def no_noise_table(kept: Cells) -> list[str]:
    """Return the accuracies without noise, where weights are those by n_i and the step is as long as is stable."""
    rows = []
    for name in (name for name in ROWS if name.startswith("no-noise")):
        for _, data, epsilon in places(name):
            found = [kept.get(Cell(name, data, epsilon, rival, FIRST_SEED).key) for rival in [*BASELINES, OURS]]
            rows.append(
                [ROWS[name].title, data, *(MISSING if one is None else f"{100 * one['accuracy']:.2f}" for one in found)]
            )
    return table(["", "Syn", *BASELINES, OURS], rows)


def femnist_table(kept: Cells) -> list[str]:
    """Return what weights do for a model whose noise is larger than all its updates."""
    rows, name = [], "femnist-mlp"
    for where in places(name):
        seeds = shared_seeds(kept, where, dict.fromkeys(ROWS[name].rivals, name))
        shown = [MISSING] * 3
        if len(seeds) > 1:
            plain, ours = (accuracies(kept, name, where, rival, seeds) for rival in ROWS[name].rivals)
            shown = [f"{plain.mean():.2f}", f"{ours.mean():.2f}", paired_words(paired(ours, plain))]
        rows.append([f"{where[2]:g}", *shown, str(len(seeds))])
    return table(["epsilon", *ROWS[name].rivals, "gain (95 %)", "seeds"], rows)


def chance_table(kept: Cells) -> list[str]:
    """Return the paper's strategy against vanilla of as many iterations, where four seeds once showed losses."""
    rows, name = [], "fedprox-erm"
    for data, epsilon in (("0.5,0.5", 2.0), ("0.5,0.5", 4.0)):
        where, rivals = (name, data, epsilon), ("upcycled 0.5", "vanilla 80")
        seeds = shared_seeds(kept, where, dict.fromkeys(rivals, name))
        theirs, vanilla = (accuracies(kept, name, where, rival, seeds) for rival in rivals)
        rows.append([data, f"{epsilon:g}", paired_words(paired(theirs, vanilla)), str(len(seeds))])
    return table(["Syn", "epsilon", "upcycled 0.5 minus vanilla 80 (95 %)", "seeds"], rows)


def saved_table(kept: Cells, name: str = "fedprox-erm") -> list[str]:
    """Return the smallest epsilon at which precision weights, with and without the step, match the paper's strategy."""
    rows = []
    for data, epsilon in itertools.product(SYN, ROWS[name].epsilons[1:]):
        shown = [_as_accurate(kept, (name, data, epsilon), rival) for rival in (OURS, WEIGHTED)]
        rows.append([data, f"{epsilon:g}", *itertools.chain(*shown)])
    difference = "difference in accuracy (95 %)"
    return table(
        ["Syn", "upcycled 0.5 spends", f"{OURS} spends", difference, f"{WEIGHTED} spends", difference],
        rows,
    )


def _as_accurate(kept: Cells, where: Where, rival: str) -> tuple[str, str]:
    """Return the smallest epsilon, below a place's own, at which a rival is not significantly worse; its difference."""
    name, data, epsilon = where
    for smaller in (e for e in ROWS[name].epsilons if e < epsilon):
        seeds = [
            s
            for s in shared_seeds(kept, where, {"upcycled 0.5": name})
            if Cell(name, data, smaller, rival, s).key in kept
        ]
        if len(seeds) < 2:
            continue
        ours = accuracies(kept, name, (name, data, smaller), rival, seeds)
        difference = paired(ours, accuracies(kept, name, where, "upcycled 0.5", seeds))
        if difference.interval[1] >= 0:  # not significantly worse
            return f"{smaller:g}", paired_words(difference)
    return MISSING, MISSING


def generated_table(kept: Cells, name: str = "generated-fedprox") -> list[str]:
    """Return the means of the generated sets, and reuse minus the decisive baseline with the sets as the sample."""
    rows = []
    for epsilon in ROWS[name].epsilons:
        found = [rivals_of(kept, where) for where in places(name) if where[2] == epsilon]
        known = [values for values in found if values is not None]
        shown = [MISSING] * (len(ROWS[name].rivals) + 4)
        if len(known) == len(found):
            means = {rival: np.array([values[rival].mean() for values in known]) for rival in ROWS[name].rivals}
            _, better, worse = _over(WEIGHTED, known)
            higher = int((means[OURS] > means[WEIGHTED]).sum())
            shown = [f"{values.mean():.2f}" for values in means.values()]
            shown += [paired_words(paired(means[OURS], means[WEIGHTED])), f"{higher} of {len(known)}"]
            shown += [f"{better}, {worse}", str(len(known[0][OURS]))]
        rows.append([f"{epsilon:g}", *shown])
    difference = [f"{OURS} minus {WEIGHTED} (95 %)", "sets where higher", "better, worse", "seeds"]
    return table(["epsilon", *ROWS[name].rivals, *difference], rows)


def blocks(kept: Cells) -> dict[str, list[str]]:
    """Return what stands between the page's marks."""
    found = {"verdict": [line for name in MAIN for line in verdict(kept, name)]}
    found |= {name: results_table(kept, name) for name in (*MAIN, "participation-fedprox")}
    found |= {"parts": parts_table(kept), "saved": saved_table(kept), "no-noise": no_noise_table(kept)}
    found |= {"generated": generated_table(kept)}
    return found | {"noise": noise_table(kept), "femnist": femnist_table(kept), "chance": chance_table(kept)}


def plot(kept: Cells) -> None:
    from matplotlib.figure import Figure

    colours = dict(zip([*BASELINES, OURS], ("#D55E00", "#666666", "#0072B2", "#CC79A7", "#009E73"), strict=True))
    figure = Figure(figsize=(13, 8.5), dpi=110, layout="constrained")
    axes = figure.subplots(len(MAIN), len(SYN), sharex=True, sharey="col", squeeze=False)
    for row, name in enumerate(MAIN):
        for column, data in enumerate(SYN):
            ax = axes[row][column]
            points = {e: found for e in ROWS[name].epsilons if (found := rivals_of(kept, (name, data, e))) is not None}
            for rival, colour in colours.items():
                mean = [found[rival].mean() for found in points.values()]
                error = [2 * found[rival].std(ddof=1) / len(found[rival]) ** 0.5 for found in points.values()]
                ax.errorbar(list(points), mean, error, color=colour, marker="o", markersize=4, capsize=2, label=rival)
            ax.set_xscale("log", base=2)
            ax.set_xticks(ALL, [f"{e:g}" for e in ALL])
            ax.grid(axis="y", color="#e5e5e5")
            ax.spines[["top", "right"]].set_visible(False)
            if row == 0:
                ax.set_title(f"Syn({data})")
            if column == 0:
                ax.set_ylabel(f"{ROWS[name].title}\ntest accuracy (%)", fontsize=8)
            if row == len(MAIN) - 1:
                ax.set_xlabel("proven epsilon of every client")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(colours), frameon=False)
    write_picture(figure, PLOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--only", default="", choices=["", "fedprox", "feddyn", "no-noise", *ROWS])
    parser.add_argument("--seeds", type=int, default=64)
    asked = parser.parse_args()
    if asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            kept = Cells(Path(folder) / CELLS.name)
            wanted = [c for c in cells("fedprox-erm", 2) if c.data == "iid" and c.epsilon == 1.0]
            compute_cells(kept, {cell.key: cell.arguments for cell in wanted}, value_of, may_fail=False)
            for cell in wanted:
                print(cell.key, kept[cell.key])
        return
    kept = Cells(CELLS)
    if not asked.page:
        wanted = list(cells(asked.only, asked.seeds))
        print(f"{sum(cell.key not in kept for cell in wanted)} runs to do", file=sys.stderr)
        compute_cells(kept, {cell.key: cell.arguments for cell in wanted}, value_of, may_fail=False)
        for place in itertools.product(WEIGHED, GENERATED, ALL):
            if weigh_key(*place) not in kept:
                kept.add(weigh_key(*place), weigh(*place))
        kept.fold()
    plot(kept)
    write_page(PAGE, blocks(kept))

"""The published test values, copied here, and the shared file they come from where it is at hand."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from upcycled.privacy import accounting as acc
from upcycled.privacy import audit

DELTA = 1e-5
EXACT, COMPOSED = 1e-6, 1e-3

# (section, arguments, key of the result, expected). Sections and keys are the ones of the shared file.
COPIED: list[tuple[str, dict[str, Any]]] = [
    ("paper_epsilon", {"rounds": 40, "tau": 10, "sigma": 0.8, "n": 224, "epsilon": 1.755837836}),
    ("paper_epsilon", {"rounds": 80, "tau": 10, "sigma": 1.0, "n": 224, "epsilon": 1.995760483}),
    ("paper_epsilon", {"rounds": 1, "tau": 10, "sigma": 1, "n": 100, "epsilon": 0.4848525912}),
    ("paper_delta", {"rounds": 40, "tau": 10, "sigma": 0.8, "n": 224, "epsilon": 1.5, "delta": 0.0002492011409}),
    ("paper_sigma", {"rounds": 40, "tau": 10, "n": 224, "epsilon": 1, "sigma": 1.383653226}),
    ("paper_sigma", {"rounds": 80, "tau": 10, "n": 224, "epsilon": 1, "sigma": 1.956781158}),
    ("gaussian_epsilon", {"rounds": 40, "sensitivity": "10/224", "std": 0.8, "epsilon": 1.353837229}),
    ("gaussian_epsilon", {"rounds": 1, "sensitivity": 0.1, "std": 1, "epsilon": 0.3406693647}),
    ("gaussian_epsilon", {"rounds": 1, "sensitivity": 20, "std": 1, "epsilon": 284.3918495}),
    ("gaussian_epsilon", {"rounds": 40, "sensitivity": "20/224", "std": 0.8, "epsilon": 2.9373680667}),
    ("gdp_epsilon", {"mu": 1, "epsilon": 4.377178096}),
    ("gdp_epsilon", {"mu": 2, "epsilon": 9.997256146}),
    ("gdp_delta", {"mu": 1, "epsilon": 1, "delta": 0.1269367375}),
    ("gaussian_std", {"rounds": 1, "sensitivity": 1, "epsilon": 1, "std": 3.730631635}),
    ("gaussian_std", {"rounds": 40, "sensitivity": 2, "epsilon": 8, "std": 7.592363944}),
    (
        "paper_objective_epsilon",
        {"alpha": 10, "u1": 1, "u2": 0.11, "n": 224, "mu": 0.5, "rounds": 80, "epsilon": 7.362857143}
        | {"tight_rank1": 7.221390012},
    ),
    (
        "paper_objective_epsilon",
        {"alpha": 20, "u1": 1, "u2": 0.11, "n": 224, "mu": 0.5, "rounds": 40, "epsilon": 7.252857143}
        | {"tight_rank1": 7.182123578},
    ),
    (
        "softmax_objective_epsilon",
        {"alpha": 20, "u1": 2, "R2": 2, "n": 224, "mu": 0.5, "rounds": 40, "classes": 2, "epsilon": 14.64127218},
    ),
    (
        "softmax_objective_epsilon",
        {"alpha": 20, "u1": 2, "R2": 2, "n": 224, "mu": 0.5, "rounds": 40, "classes": 10, "epsilon": 14.92799813},
    ),
    ("optimal_composition", {"epsilon_each": 0.092, "rounds": 80, "epsilon": 3.432648936}),
    (
        "erm_sensitivity",
        {"L": 2, "n": 224, "mu": 0.5, "sensitivity": 0.03571428571, "rounds": 40, "std": 0.8, "epsilon": 1.05874311},
    ),
    ("sgd_sensitivity", {"L": 2, "lr": 0.05, "passes": 10, "batch": 32, "sensitivity_convex": 0.0625}),
    (
        "sgd_sensitivity",
        {"L": 2, "lr": 0.05, "passes": 10, "batch": 32, "n": 224, "mu": 0.5, "sensitivity_strong": 0.03194297568},
    ),
    ("gd_error", {"L": 2, "smoothness": 1, "mu": 0.5, "steps": 50, "distance": 6.273314182e-09}),
    ("gd_error", {"L": 2, "smoothness": 1, "mu": 0.5, "steps": 50, "linear_norm": 84, "distance": 2.697525098e-07}),
    ("one_run_audit", {"canaries": 1000, "guesses": 100, "correct": 95, "epsilon": 2.165175799}),
    ("two_world", {"false_alarms": 0, "n0": 10000, "misses": 0, "n1": 10000, "epsilon": 7.904823178}),
    ("sampled_gaussian_add_remove", {"q": 0.01, "z": 1.1, "steps": 1000, "epsilon": 1.515370248}),
    ("sampled_gaussian_add_remove", {"q": 0.3, "z": 1, "steps": 40, "epsilon": 13.49762209}),
    ("sampled_gaussian_replace", {"q": 0.01, "z": 1.1, "steps": 1000, "epsilon": 2.4778}),
    ("sampled_gaussian_replace", {"q": 0.3, "z": 1, "steps": 40, "epsilon": 21.446189}),
    (
        "gd_sensitivity",
        {"L": 2, "n": 224, "a": 0.5, "smoothness": 1, "steps": 10, "eta": "1/(S+a)", "sensitivity": 0.03509494536},
    ),
    ("pure_heterogeneous", {"rounds": "20 of 0.05 and 20 of 0.1", "epsilon": 1.8918486119}),
    ("erm_std_per_client", {"epsilon": 2, "rounds": 40, "L": 2, "a": 0.5, "n": 224, "std": 0.45035633}),
]


def computed(section: str, row: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(ours, expected, relative tolerance) of every number that a row of the shared file states."""
    g = row.get
    if section == "paper_epsilon":
        ours = acc.paper_epsilon(rounds=g("rounds"), clip_norm=g("tau"), noise_std=g("sigma"), n=g("n"), delta=DELTA)
        return [(ours, row["epsilon"], EXACT)]
    if section == "paper_delta":
        ours = acc.paper_delta(
            rounds=g("rounds"), clip_norm=g("tau"), noise_std=g("sigma"), n=g("n"), epsilon=g("epsilon")
        )
        return [(ours, row["delta"], EXACT)]
    if section == "paper_sigma":
        ours = acc.paper_noise_std(rounds=g("rounds"), clip_norm=g("tau"), n=g("n"), epsilon=g("epsilon"), delta=DELTA)
        return [(ours, row["sigma"], EXACT)]
    if section == "gaussian_epsilon":
        sensitivity = float(Fraction(str(row["sensitivity"])))
        args = {"rounds": g("rounds"), "sensitivity": sensitivity, "noise_std": g("std")}
        back = acc.gaussian_delta(**args, epsilon=row["epsilon"])
        # A printed epsilon has ten digits, and delta moves up to a few hundred times faster than it.
        return [(acc.gaussian_epsilon(**args, delta=DELTA), row["epsilon"], EXACT), (back, DELTA, EXACT)]
    if section == "gdp_epsilon":
        return [(acc.gdp_epsilon(mu=g("mu"), delta=DELTA), row["epsilon"], EXACT)]
    if section == "gdp_delta":
        return [(acc.gdp_delta(mu=g("mu"), epsilon=g("epsilon")), row["delta"], EXACT)]
    if section == "gaussian_std":
        ours = acc.gaussian_noise_std(
            rounds=g("rounds"), sensitivity=g("sensitivity"), epsilon=g("epsilon"), delta=DELTA
        )
        return [(ours, row["std"], EXACT)]
    if section == "paper_objective_epsilon":
        args = {key: row[key] for key in ("alpha", "u1", "u2", "n", "rounds")}
        paper = acc.paper_objective_epsilon(**args, mu=g("mu"))
        tight = acc.ranked_objective_epsilon(**args, rank=1, a=g("mu"))
        return [(paper, row["epsilon"], EXACT), (tight, row["tight_rank1"], EXACT)]
    if section == "softmax_objective_epsilon":
        ours = acc.objective_epsilon(
            alpha=g("alpha"), classes=g("classes"), norm_bound_squared=g("R2"), n=g("n"), a=g("mu"), rounds=g("rounds")
        )
        lipschitz = acc.softmax_constants(classes=g("classes"), norm_bound=row["R2"] ** 0.5, bias=False)[0]
        return [(ours, row["epsilon"], EXACT), (lipschitz, row["u1"], EXACT)]
    if section == "optimal_composition":
        ours = acc.pure_composition_epsilon(epsilons=[row["epsilon_each"]] * row["rounds"], delta=DELTA)
        return [(ours, row["epsilon"], EXACT)]
    if section == "erm_sensitivity":
        ours = acc.erm_sensitivity(lipschitz=g("L"), n=g("n"), a=g("mu"))
        epsilon = acc.gaussian_epsilon(rounds=g("rounds"), sensitivity=ours, noise_std=g("std"), delta=DELTA)
        return [(ours, row["sensitivity"], EXACT), (epsilon, row["epsilon"], EXACT)]
    if section == "sgd_sensitivity":
        ours = acc.sgd_sensitivity(
            lipschitz=g("L"), lr=g("lr"), passes=g("passes"), batch=g("batch"), n=g("n"), a=row.get("mu", 0.0)
        )
        return [(ours, row["sensitivity_strong"] if "mu" in row else row["sensitivity_convex"], EXACT)]
    if section == "gd_error":
        ours = acc.gd_distance(
            lipschitz=g("L"),
            smoothness=g("smoothness"),
            a=g("mu"),
            steps=g("steps"),
            linear_norm=row.get("linear_norm", 0.0),
        )
        return [(ours, row["distance"], EXACT)]
    if section == "one_run_audit":
        result = audit.one_run(canaries=g("canaries"), guesses=g("guesses"), correct=g("correct"), delta=DELTA)
        return [(result.epsilon_lower, row["epsilon"], EXACT)]
    if section == "two_world":
        counts = {key: row[key] for key in ("false_alarms", "n0", "misses", "n1")}
        return [(audit.two_world_epsilon(**counts, delta=DELTA), row["epsilon"], EXACT)]
    if section.startswith("sampled_gaussian_"):
        ours = acc.sampled_gaussian_epsilon(
            q=g("q"),
            noise_multiplier=g("z"),
            steps=g("steps"),
            delta=DELTA,
            adjacency=section.removeprefix("sampled_gaussian_"),
        )
        return [(ours, row["epsilon"], COMPOSED)]
    if section == "gd_sensitivity":
        assert row["eta"] == "1/(S+a)"
        ours = acc.gd_sensitivity(lipschitz=g("L"), n=g("n"), a=g("a"), smoothness=g("smoothness"), steps=g("steps"))
        return [(ours, row["sensitivity"], EXACT)]
    if section == "pure_heterogeneous":
        assert row["rounds"] == "20 of 0.05 and 20 of 0.1"
        ours = acc.pure_composition_epsilon(epsilons=[0.05] * 20 + [0.1] * 20, delta=DELTA)
        return [(ours, row["epsilon"], EXACT)]  # the grid divides, so ours is exact, not merely composed
    if section == "erm_std_per_client":
        moves = acc.erm_sensitivity(lipschitz=g("L"), n=g("n"), a=g("a"))
        ours = acc.gaussian_noise_std(rounds=g("rounds"), sensitivity=moves, epsilon=g("epsilon"), delta=DELTA)
        return [(ours, row["std"], EXACT)]
    raise AssertionError(f"no function for section {section}")


@pytest.mark.parametrize(("section", "row"), COPIED, ids=[f"{s}-{i}" for i, (s, _) in enumerate(COPIED)])
def test_copied_values_are_met(section: str, row: dict[str, Any]) -> None:
    for ours, expected, tolerance in computed(section, row):
        assert ours == pytest.approx(expected, rel=tolerance)


def test_every_row_of_the_shared_file_is_met() -> None:
    folder = Path(os.environ.get("UPCYCLED_SPEC", Path(__file__).parents[3] / "shared" / "spec"))
    if not (folder / "golden.json").exists():
        pytest.skip("the shared file is not at hand; its values are copied above")
    golden = json.loads((folder / "golden.json").read_text())
    copied = {(section, json.dumps(row, sort_keys=True)) for section, row in COPIED}
    for section, rows in golden.items():
        if section in ("note", "paper_quotes"):
            continue
        for row in rows:
            if (section, json.dumps(row, sort_keys=True)) in copied:
                continue  # tested above
            for ours, expected, tolerance in computed(section, row):
                assert ours == pytest.approx(expected, rel=tolerance), (section, row)


def test_the_papers_quotes_come_out_of_its_formulas() -> None:
    shared = {"u1": 1, "u2": 0.11, "n": 224, "mu": 0.5}
    assert round(acc.paper_objective_epsilon(alpha=10, rounds=80, **shared), 2) == 7.36
    assert round(acc.paper_objective_epsilon(alpha=20, rounds=40, **shared), 2) == 7.25
    # Its output perturbation prints 1.59 and 1.40 (80 and 40 rounds): tau=10, n=224, a delta near 7.7e-4.
    output = {"clip_norm": 10, "n": 224, "delta": 7.7e-4}
    assert acc.paper_epsilon(rounds=80, noise_std=1, **output) == pytest.approx(1.59, abs=0.01)
    assert acc.paper_epsilon(rounds=40, noise_std=0.8, **output) == pytest.approx(1.40, abs=0.01)


def test_under_optimal_composition_the_papers_cheaper_setting_is_the_dearer_one() -> None:
    # Plain sums 7.36 against 7.25; optimally composed 3.43 against 4.90.
    many = acc.pure_composition_epsilon(epsilons=[7.362857143 / 80] * 80, delta=DELTA)
    few = acc.pure_composition_epsilon(epsilons=[7.252857143 / 40] * 40, delta=DELTA)
    assert (many, few) == pytest.approx((3.43, 4.90), abs=0.006)

"""``upcycled theory``: the convergence theorem for a config file or for plain numbers, and a run beside its bound."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from upcycled.cli.batches import Subparsers, add_command, add_config, add_json, experiment_of
from upcycled.cli.show import note, print_json, print_table
from upcycled.core.errors import InputError
from upcycled.support.formats import fixed, significant

if TYPE_CHECKING:
    from upcycled.experiments.theorem_check import Analysis

EXAMPLES = """\
examples:
  upcycled theory experiment.toml                        L, B, rho, C1 to C3, the least mu, the corollary's lambda
  upcycled theory experiment.toml algorithm.mu=400 --run      train, and set the bound beside what was measured
  upcycled theory constants --smoothness 1 --dissimilarity 1.2 --mu 4 --cohort 10 --lam 4
"""
OPTIONS: dict[str, tuple[type, str]] = {
    "smoothness": (float, "L, of every client's loss"),
    "dissimilarity": (float, "B >= 1"),
    "mu": (float, "FedProx's mu"),
    "strong_convexity": (float, "rho, of loss + mu/2 ||. - w||^2 (default: mu, as for convex losses)"),
    "cohort": (int, "K, clients drawn in a round (default: all take part)"),
    "lam": (float, "lambda_m; the coefficient is mu/(mu + lambda_m) (default: 0)"),
}
"""The numbers of ``theory constants``: type and meaning."""

MEANING = {
    "paper": "paper: as printed; false for mu > 1",
    "repaired": "repaired: the paper's proof with its two slips put right",
    "sharp": "sharp: the same assumptions, without the first-order term of unbiased sampling",
}
MOST_ROWS = 10


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "theory",
        help="the convergence theorem for a config file, and a run beside its bound",
        description=(
            "Estimate the smoothness L, the dissimilarity B and the strong convexity rho for a config file's data and "
            "model; show C1, C2 and C3 of the paper's Theorem 1, whether C1 > 0, the least mu that makes it so, and "
            "the lambda_m of its corollary. With --run, train the file's first seed and set the bound beside the "
            "measurement; exit code 1 if a proven bound is violated. With the word constants in place of a file: "
            "calculate from numbers."
        ),
        examples=EXAMPLES,
    )
    add_config(parser, "the experiment file, or the word: constants")
    parser.add_argument("--run", dest="measure", action="store_true", help="train, and measure the terms of the bound")
    for name, (kind, words) in OPTIONS.items():
        parser.add_argument(_flag(name), metavar="K" if kind is int else "X", help=f"constants: {words}")
    add_json(parser)
    parser.set_defaults(run=_run)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _run(args: argparse.Namespace) -> int:
    from upcycled.cli.privacy import number_of

    values = {name: number_of(name, getattr(args, name), kind) for name, (kind, _) in OPTIONS.items()}
    if args.config == "constants":
        return _calculate(args, values)
    for name, value in values.items():
        if value is not None:
            raise InputError(field=_flag(name), value=value, must="left out with a config file: use key=value")
    return _analyse(args)


def _calculate(args: argparse.Namespace, values: Mapping[str, Any]) -> int:
    from upcycled.config.wording import in_keys
    from upcycled.experiments.theorem_check import calculate, constants_json

    if args.measure or args.overrides:
        extra = "--run" if args.measure else f"'{args.overrides[0]}'"
        raise InputError(f"{extra} must be left out with `theory constants`, which takes numbers only")
    with in_keys({name: _flag(name) for name in values} | {"curvature": "--strong-convexity"}):
        found, least = calculate(values)
    if args.json:
        given = {name: value for name, value in values.items() if value is not None}
        print_json({"given": given, "forms": {form: constants_json(found[form], least[form]) for form in found}})
        return 0
    _show_constants(found, least)
    return 0


def _analyse(args: argparse.Namespace) -> int:
    from upcycled.experiments.theorem_check import analyse

    found = analyse(experiment_of(args), args.config, run=args.measure)
    for words in found.warnings:
        note(f"warning: {words}")
    if args.json:
        print_json(found.as_json())
    else:
        _show(found)
    is_violated = found.report is not None and any(found.report.holds(form) is False for form in ("repaired", "sharp"))
    return 1 if is_violated else 0


def _show(found: Analysis) -> None:
    e, f = found.estimates, found.facts
    where = "for all parameters" if e.is_for_all_parameters else "at the initial weights"
    along = "at the initial weights" if found.report is None else "the largest along the run"
    cohort = f"all {found.num_clients}" if f.cohort is None else f"{f.cohort} of {found.num_clients}"
    rows = [
        ["L, smoothness", significant(e.smoothness, 5), f"largest over clients, {where}"],
        ["B, dissimilarity", significant(e.dissimilarity, 5), along],
        ["lowest curvature", significant(e.curvature, 5), f"of the clients' losses, {where}"],
    ]
    if f.mu is not None:
        rows.append(["mu", significant(f.mu, 5), f"rho = {significant(f.mu + e.curvature, 5)}"])
    rows.append(["clients a round", cohort, f"{found.rounds} data rounds"])
    if found.lam is not None and f.mu:
        low, high = found.lam.min(), found.lam.max()
        words = significant(low) if low == high else f"{significant(low)} to {significant(high)}"
        rows.append(["lambda_m", words, "the coefficient is mu/(mu + lambda_m)"])
    print_table("The problem", ("", "value", ""), rows)
    print()
    if found.constants:
        _show_constants(found.constants, found.smallest_mu)
    if found.schedule is not None:
        print(
            f"The corollary's lambda_m for {found.rounds} data rounds: {significant(found.schedule[0], 5)} "
            f"(coefficient 1/sqrt(M) = {significant(found.rounds**-0.5, 3)}), as up.coefficients.Decaying(1) does."
        )
    for line in found.remarks:
        print(line)
    if found.report is not None:
        print()
        _show_run(found)


def _show_constants(found: Mapping[Any, Any], least: Mapping[Any, float | None]) -> None:
    import numpy as np

    def shown(value: Any) -> str:
        values = np.unique(value)
        return (
            significant(values[0], 5) if values.size == 1 else f"{significant(values[0])} to {significant(values[-1])}"
        )

    names = [f"C{i}{part}" for i in (1, 2, 3) for part in ("", "_hat", "_tilde")]
    rows = [[name.replace("_", " "), *(shown(getattr(one, name)) for one in found.values())] for name in names]
    rows.append(["C1 > 0", *("yes" if one.converges else "no" for one in found.values())])
    rows.append(["least mu for that", *("none" if mu is None else significant(mu, 5) for mu in least.values())])
    print_table("The theorem's constants", ("", *found), rows)
    for form in found:
        print(MEANING[form])
    if any(mu is None for mu in least.values()):
        print("No mu gives C1 > 0 where K <= 2 B^2: draw more clients a round.")


def _show_run(found: Analysis) -> None:
    report = found.report
    assert report is not None  # the caller has looked
    for line in report.assumption_lines():
        print(line)
    print()
    t, forms = report.terms, list(report.bounds)
    rounds = sorted({round(1 + k * (t.rounds - 1) / (MOST_ROWS - 1)) for k in range(MOST_ROWS)})
    rows = [
        [
            str(m),
            fixed(t.loss[m - 1], 4),
            significant(t.gradient_norm[m - 1] ** 2),
            significant(t.dissimilarity[m - 1]),
            significant(t.average[m - 1]),
            *(significant(report.bounds[form][m - 1]) for form in forms),
        ]
        for m in rounds
    ]
    columns = ("data round", "f", "||grad f||²", "B", "mean so far", *(f"bound\n{form}" for form in forms))
    print_table("Bound beside measurement", columns, rows)
    for line in report.bound_lines():
        print(line)

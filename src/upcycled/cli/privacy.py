"""``upcycled privacy``: privacy calculators, and what a config file protects, in words."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled._utils.formats import fixed, general
from upcycled.cli.common import Subparsers, add_command, add_config, add_json, experiment_of
from upcycled.cli.output import note, print_json, print_table
from upcycled.cli.privacy_records import add_account, add_evidence, add_ledger
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.audit.explain import Explanation, Scenario


PAGE_WIDTH = 79
EXAMPLES = """\
examples:
  upcycled privacy epsilon gaussian --rounds 40 --sensitivity 0.0893 --noise-std 0.8 --delta 1e-5
  upcycled privacy explain experiment.toml
  upcycled privacy own results/NAME --scores
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5
  upcycled privacy ledger results/NAME/seed-*/ledger.jsonl
  upcycled privacy evidence results/NAME/seed-0 -o evidence
"""
OPTIONS: dict[str, tuple[type, str]] = {
    "rounds": (int, "data rounds"),
    "sensitivity": (float, "how far one record moves the release (L2)"),
    "noise_std": (float, "noise std per coordinate"),
    "epsilon": (float, "in the place of --delta: the answer is the delta"),
    "delta": (float, "the delta of (epsilon, delta)"),
    "clip_norm": (float, "clip norm tau"),
    "n": (int, "records of the client"),
    "steps": (int, "all noisy steps"),
    "q": (float, "sampling rate of a record"),
    "noise_multiplier": (float, "noise std over clip norm"),
    "adjacency": (str, "replace (default) or add_remove"),
}
"""Every argument of the formulas: its type and what it is. Flags are the names with dashes."""


@dataclass(frozen=True)
class Formula:
    """A privacy formula of the command line."""

    about: str
    example: dict[str, str]
    """Every number that it requires, with a value for the help."""
    optional: tuple[str, ...]


FORMULAS = {
    "gaussian": Formula(
        "Gaussian releases of a known sensitivity, exact",
        {"rounds": "40", "sensitivity": "0.0893", "noise_std": "0.8", "delta": "1e-5"},
        ("epsilon",),
    ),
    "paper-output": Formula(
        "the paper's output perturbation, beside what clipping guarantees",
        {"rounds": "40", "clip_norm": "10", "noise_std": "0.8", "n": "224", "delta": "1e-5"},
        ("epsilon",),
    ),
    "sampled": Formula(
        "noisy steps on secret Poisson batches (DP-SGD)",
        {"q": "0.01", "noise_multiplier": "1.1", "steps": "1000", "delta": "1e-5"},
        ("adjacency",),
    ),
}


def add_parser(subparsers: Subparsers) -> None:
    text = "privacy calculators; explain a config file"
    parser = add_command(subparsers, "privacy", help=text, description=str(__doc__), examples=EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_epsilon(commands)
    text = "what a config file protects, against whom, under which assumptions, at what epsilon; nothing is trained"
    examples = "examples:\n  upcycled privacy explain experiment.toml iterations=80 --delta 1e-6 --clients\n"
    command = add_command(commands, "explain", help=text, description=text, examples=examples)
    add_config(command)
    text = "the delta to state epsilon at (default: the file's, or 1e-5)"
    command.add_argument("--delta", type=float, metavar="X", help=text)
    command.add_argument("--clients", action="store_true", help="a line for every client")
    add_json(command)
    command.set_defaults(run=_explain)
    text = "where a private run left what is the data holder's own; with --scores also print it"
    examples = "examples:\n  upcycled privacy own results/NAME\n  upcycled privacy own results/NAME/seed-0 --scores\n"
    command = add_command(commands, "own", help=text, description=text, examples=examples)
    command.add_argument("result", metavar="RESULT", help="a results folder")
    command.add_argument("--scores", action="store_true", help="print exact scores; showing them is a release")
    add_json(command)
    command.set_defaults(run=_own)
    add_account(commands)
    add_ledger(commands)
    add_evidence(commands)


def _add_epsilon(commands: Subparsers) -> None:
    """Add ``epsilon``, and below it each formula with its flags."""
    text = "what releases cost (with --epsilon in place of --delta: the delta)"
    examples = {
        name: " ".join([f"  upcycled privacy epsilon {name}", *(f"{_flag(k)} {v}" for k, v in formula.example.items())])
        for name, formula in FORMULAS.items()
    }
    every = "\n".join(["examples:", *examples.values(), ""])
    command = add_command(commands, "epsilon", help=text, description=text, examples=every)
    command.set_defaults(run=_calculate)
    formulas = command.add_subparsers(metavar="FORMULA", dest="formula", required=True)
    for name, formula in FORMULAS.items():
        about = textwrap.fill(f"{name}: {formula.about}. Answers with {text}.", PAGE_WIDTH)
        own = f"examples:\n{examples[name]}\n"
        page = add_command(formulas, name, help=formula.about, description=about, examples=own)
        for option in (*formula.example, *formula.optional):
            kind, words = OPTIONS[option]
            help_text = f"may be given: {words}" if option in formula.optional else words
            metavar = {int: "K", float: "X", str: "NAME"}[kind]
            page.add_argument(_flag(option), type=kind, metavar=metavar, help=help_text)
        add_json(page)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _calculate(args: argparse.Namespace) -> int:
    from upcycled.audit.explain import ANSWERS

    formula = FORMULAS[args.formula]
    required = list(formula.example)
    texts = {name: getattr(args, name) for name in (*required, *formula.optional)}
    given = {name: value for name, value in texts.items() if value is not None}
    if "epsilon" in given:
        if "delta" in given:
            raise InputError(field="--epsilon", value=given["epsilon"], must="left out with --delta")
        required.remove("delta")
    for name in required:
        if name not in given:
            raise InputError(field=_flag(name), but=f"{args.formula} needs it here ({', '.join(map(_flag, required))})")
    try:
        answers = ANSWERS[args.formula](given)
    except InputError as error:
        # The accounting functions name their arguments; a user knows the flags.
        raise error.renamed(_flag(error.field)) from error
    if args.json:
        rows = [{"name": a.name, "value": a.value, "proven": a.is_proven, "meaning": a.words} for a in answers]
        print_json({"question": "epsilon", "formula": args.formula, "given": given, "answers": rows})
        return 0
    print(f"{args.formula}: {formula.about}")
    for answer in answers:
        label = "" if answer.is_proven else "  (not proven)"
        print(f"{answer.name} = {general(answer.value, 10)}{label}\n    {answer.words}")
    return 0


def _own(args: argparse.Namespace) -> int:
    from upcycled.experiments.private_files import OwnResult, own_folders

    found = [OwnResult.read(folder) if args.scores else OwnResult(folder) for folder in own_folders(Path(args.result))]
    if args.scores:
        note("warning: no epsilon covers these scores: showing them to anybody else is a release")
    if args.json:
        print_json({"own": [one.as_json() for one in found]})
        return 0
    for one in found:
        print(one.folder)
    if args.scores:
        rows = [[str(one.folder.parent), *one.cells(), str(len(one.notes))] for one in found]
        print_table("The data holder's own scores", ("seed", *OwnResult.HEAD, "notes"), rows)
        for one in found:
            for words in one.notes:
                print(f"{one.folder.parent}: {words}")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from upcycled.audit.explain import explain

    found = explain(experiment_of(args), args.config, args.delta)
    for words in found.warnings:
        note(f"warning: {words}")
    if args.json:
        print_json(found.as_json())
    else:
        _show(found, args.clients)
    return 0


def _show(found: Explanation, every_client: bool) -> None:
    for topic, text in found.plain:
        print(f"{topic}: {text}")
    if found.plain:
        print("\nIn detail")
    for line in found.sentences:
        print(line)
    if not found.variants:
        return
    columns = ("", *(variant.title for variant in found.variants))
    names = list(found.variants[0].row())
    print()
    print_table("What it costs", columns, [[name, *(v.row()[name] for v in found.variants)] for name in names])
    for line in found.remarks:
        print(line)
    if every_client:
        print()
        _show_clients(found.variants)


def _show_clients(variants: tuple[Scenario, ...]) -> None:
    for variant in variants:
        rows = [
            [str(c["client"]), str(c["n"]), str(c["rounds"]), *(fixed(c[key], 4) for key in variant.client_numbers)]
            for c in variant.clients()
        ]
        print_table(variant.title.replace("\n", " "), ("client", "n", "rounds", *variant.client_numbers), rows)

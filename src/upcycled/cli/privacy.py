"""``upcycled privacy``: privacy calculators, and what a config file protects, in words."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.cli.batches import Subparsers, add_config, add_json, experiment_of
from upcycled.cli.holder.accounts import add_account
from upcycled.cli.holder.evidence_folder import add_evidence
from upcycled.cli.holder.ledgers import add_ledger
from upcycled.cli.show import note, print_json, print_table
from upcycled.core.errors import InputError, unknown
from upcycled.support.formats import fixed, general

if TYPE_CHECKING:
    from upcycled.auditing.explain import Explanation, Scenario

QUESTIONS = {
    "epsilon": "what releases cost (with --epsilon in place of --delta: the delta)",
    "noise": "the noise that reaches an epsilon",
    "rounds": "the data rounds (sampled: noisy steps) that an epsilon pays for",
}
PAGE_WIDTH = 79
EXAMPLES = """\
examples:
  upcycled privacy epsilon gaussian --rounds 40 --sensitivity 0.0893 --noise-std 0.8 --delta 1e-5
  upcycled privacy noise gaussian --rounds 40 --sensitivity 0.0893 --epsilon 2 --delta 1e-5
  upcycled privacy rounds gaussian --sensitivity 0.0893 --noise-std 0.8 --epsilon 2 --delta 1e-5
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
    "epsilon": (float, "the epsilon to reach; `privacy epsilon` answers with the delta"),
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
    noise: str
    """The number that ``privacy noise`` answers with."""
    count: str
    """The number that ``privacy rounds`` answers with."""
    example: dict[str, str]
    """Every number that ``privacy epsilon`` requires, with a value for the help."""
    optional: tuple[str, ...] = ()
    """Further options of every question."""
    gives_delta: bool = False
    """Whether ``privacy epsilon`` takes --epsilon in place of --delta."""

    def example_of(self, question: str) -> dict[str, str]:
        """Return every number that a question requires, with a value for the help.

        >>> FORMULAS["sampled"].example_of("rounds")
        {'q': '0.01', 'noise_multiplier': '1.1', 'epsilon': '2', 'delta': '1e-5'}
        """
        asked = {"noise": self.noise, "rounds": self.count}.get(question)
        return dict(("epsilon", "2") if name == asked else (name, value) for name, value in self.example.items())

    def options_of(self, question: str) -> tuple[str, ...]:
        """Return the options that a question does not require."""
        return ("epsilon", *self.optional) if question == "epsilon" and self.gives_delta else self.optional


FORMULAS = {
    "gaussian": Formula(
        "Gaussian releases of a known sensitivity, exact", "noise_std", "rounds",
        {"rounds": "40", "sensitivity": "0.0893", "noise_std": "0.8", "delta": "1e-5"}, gives_delta=True,
    ),
    "paper-output": Formula(
        "the paper's output perturbation, beside what clipping guarantees", "noise_std", "rounds",
        {"rounds": "40", "clip_norm": "10", "noise_std": "0.8", "n": "224", "delta": "1e-5"}, gives_delta=True,
    ),
    "sampled": Formula(
        "noisy steps on secret Poisson batches (DP-SGD)", "noise_multiplier", "steps",
        {"q": "0.01", "noise_multiplier": "1.1", "steps": "1000", "delta": "1e-5"}, ("adjacency",),
    ),
}  # fmt: skip


def add_parser(subparsers: Subparsers) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "privacy", help="privacy calculators; explain a config file", description=__doc__, epilog=EXAMPLES,
        formatter_class=layout, allow_abbrev=False,
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for question, text in QUESTIONS.items():
        _add_question(commands, question, text)
    text = "what a config file protects, against whom, under which assumptions, at what epsilon; nothing is trained"
    command = commands.add_parser(
        "explain", help=text, description=text, formatter_class=layout, allow_abbrev=False,
        epilog="examples:\n  upcycled privacy explain experiment.toml iterations=80 --delta 1e-6 --clients\n",
    )  # fmt: skip
    add_config(command)
    command.add_argument("--delta", metavar="X", help="the delta to state epsilon at (default: the file's, or 1e-5)")
    command.add_argument("--clients", action="store_true", help="a line for every client")
    add_json(command)
    command.set_defaults(run=_explain)
    text = "where a private run left what is the data holder's own; with --scores also print it"
    command = commands.add_parser(
        "own", help=text, description=text, formatter_class=layout, allow_abbrev=False,
        epilog="examples:\n  upcycled privacy own results/NAME\n  upcycled privacy own results/NAME/seed-0 --scores\n",
    )  # fmt: skip
    command.add_argument("result", metavar="RESULT", help="a results folder")
    command.add_argument("--scores", action="store_true", help="print exact scores; showing them is a release")
    command.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    command.set_defaults(run=_own)
    add_account(commands)
    add_ledger(commands)
    add_evidence(commands)


def check_formula(words: Sequence[str]) -> None:
    """Refuse a formula that there is not in one sentence, before argparse does so in its own way."""
    for command, question, word in zip(words, words[1:], words[2:], strict=False):
        if command == "privacy" and question in QUESTIONS and not word.startswith("-") and word not in FORMULAS:
            raise unknown("FORMULA", word, FORMULAS)


def _add_question(commands: Subparsers, question: str, text: str) -> None:
    """Add a question, and below it each formula with the flags that it has for this question."""
    layout = argparse.RawDescriptionHelpFormatter
    epilog = f"the flags of a formula: upcycled privacy {question} {next(iter(FORMULAS))} --help\n\n"
    epilog += _examples(question, *FORMULAS)
    command = commands.add_parser(
        question, help=text, description=text, epilog=epilog, formatter_class=layout, allow_abbrev=False
    )
    command.set_defaults(run=_calculate, question=question)
    formulas = command.add_subparsers(metavar="FORMULA", dest="formula", required=True)
    for name, formula in FORMULAS.items():
        about = textwrap.fill(f"{name}: {formula.about}. Answers with {text}.", PAGE_WIDTH)
        page = formulas.add_parser(
            name, help=formula.about, description=about, epilog=_examples(question, name), formatter_class=layout,
            allow_abbrev=False,
        )  # fmt: skip
        optional = formula.options_of(question)
        for option in (*formula.example_of(question), *optional):
            kind, words = OPTIONS[option]
            help_text = f"may be given: {words}" if option in optional else words
            page.add_argument(_flag(option), metavar={int: "K", float: "X", str: "NAME"}[kind], help=help_text)
        add_json(page)


def _examples(question: str, *formulas: str) -> str:
    lines = []
    for formula in formulas:
        words = " ".join(f"{_flag(name)} {value}" for name, value in FORMULAS[formula].example_of(question).items())
        lines.append(f"  upcycled privacy {question} {formula} {words}\n")
    return f"examples:\n{''.join(lines)}"


def number_of(name: str, text: str | None, kind: type = float) -> Any:
    """Return the number of a flag, or None where it was not given; a wrong word is one sentence."""
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        right = "an integer" if kind is int else "a number"
        raise InputError(field=_flag(name), value=text, must=right) from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _calculate(args: argparse.Namespace) -> int:
    from upcycled.auditing.formulas import ANSWERS

    formula = FORMULAS[args.formula]
    required, optional = list(formula.example_of(args.question)), formula.options_of(args.question)
    texts = {name: getattr(args, name) for name in (*required, *optional)}
    given = {name: number_of(name, text, OPTIONS[name][0]) for name, text in texts.items() if text is not None}
    if "epsilon" in optional and "epsilon" in given:
        if "delta" in given:
            raise InputError(field="--epsilon", value=given["epsilon"], must="left out with --delta")
        required.remove("delta")
    for name in required:
        if name not in given:
            raise InputError(field=_flag(name), but=f"{args.formula} needs it here ({', '.join(map(_flag, required))})")
    try:
        answers = ANSWERS[args.formula](args.question, given)
    except InputError as error:
        # The accounting functions name their arguments; a user knows the flags.
        raise error.renamed(_flag(error.field)) from error
    if args.json:
        rows = [{"name": a.name, "value": a.value, "proven": a.is_proven, "meaning": a.words} for a in answers]
        print_json({"question": args.question, "formula": args.formula, "given": given, "answers": rows})
        return 0
    print(f"{args.formula}: {FORMULAS[args.formula].about}")
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
    from upcycled.auditing.explain import explain

    found = explain(experiment_of(args), args.config, number_of("delta", args.delta))
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

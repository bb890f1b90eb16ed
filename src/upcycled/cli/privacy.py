"""``upcycled privacy``: calculators for every formula, and what a config file protects, in words."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.auditing.formula_table import FORMULAS
from upcycled.cli.advise import add_advise
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
  upcycled privacy noise erm --rounds 40 --n 224 --a 0.5 --norm-bound 1 --epsilon 2 --delta 1e-5
  upcycled privacy rounds pure --epsilon-each 0.092 --epsilon 3.44 --delta 1e-5
  upcycled privacy explain experiment.toml
  upcycled privacy advise experiment.toml -o better.toml
  upcycled privacy own results/NAME --scores
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5
  upcycled privacy ledger results/NAME/seed-*/ledger.jsonl
  upcycled privacy evidence results/NAME/seed-0 -o evidence
"""
FORMULA_EXAMPLES = {
    "gaussian": "--rounds 40 --sensitivity 0.0893 --noise-std 0.8 --delta 1e-5",
    "paper-output": "--rounds 40 --clip-norm 10 --noise-std 0.8 --n 224 --delta 1e-5",
    "paper-objective": "--alpha 20 --u1 1 --u2 0.11 --n 224 --a 0.5 --rounds 40",
    "objective": "--alpha 20 --norm-bound 1 --n 224 --a 0.5 --rounds 40",
    "sampled": "--q 0.01 --noise-multiplier 1.1 --steps 1000 --delta 1e-5",
    "pure": "--epsilon-each 0.092 --rounds 80 --delta 1e-5",
    "erm": "--norm-bound 1 --n 224 --a 0.5 --rounds 40 --noise-std 0.8 --delta 1e-5",
    "gd": "--norm-bound 1 --n 224 --a 0.5 --steps 10 --rounds 40 --noise-std 0.8 --delta 1e-5",
    "sgd": "--norm-bound 1 --lr 0.05 --passes 10 --batch 32 --rounds 40 --noise-std 0.8 --delta 1e-5",
}
"""Of `privacy epsilon`; a formula's page has those of its own question."""
OPTIONS: dict[str, tuple[type, str]] = {
    "rounds": (int, "data rounds"),
    "sensitivity": (float, "how far one record moves the release (L2)"),
    "noise_std": (float, "noise std per coordinate"),
    "epsilon": (float, "the epsilon to reach; `privacy epsilon` answers with the delta"),
    "delta": (float, "the delta of (epsilon, delta)"),
    "clip_norm": (float, "clip norm tau"),
    "n": (int, "records of the client"),
    "alpha": (float, "rate of the noise in the objective"),
    "u1": (float, "bound on per-sample gradients"),
    "u2": (float, "bound on per-sample Hessians"),
    "a": (float, "coefficient of the quadratic term (the paper's mu)"),
    "classes": (int, "classes of softmax regression (default: 2)"),
    "norm_bound": (float, "R, to which features are projected"),
    "lipschitz": (float, "L of a record's loss, in place of --norm-bound"),
    "smoothness": (float, "S of a record's loss"),
    "gamma": (float, "gradient norm that the solver leaves (default: 0)"),
    "cover_alpha": (float, "rate of the noise that covers gamma"),
    "steps": (int, "gd: steps a round; sampled: all noisy steps"),
    "lr": (float, "learning rate"),
    "passes": (int, "passes over the data a round"),
    "batch": (int, "batch size"),
    "q": (float, "sampling rate of a record"),
    "noise_multiplier": (float, "noise std over clip norm"),
    "epsilon_each": (float, "pure epsilon of a round"),
}
"""Every number that a formula may need: its type and what it is. Flags are the names with dashes."""
WORDS = {
    "no_bias": "softmax regression without a bias",
    "adjacency": "replace (default) or add_remove",
}
"""What else a formula may take, which is no number."""


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
    add_advise(commands)
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
    # The formula as a flag is how it was asked for once: it still is understood, and no page speaks of it.
    command.add_argument("--formula", help=argparse.SUPPRESS)
    for name in (*OPTIONS, *WORDS):
        _add_number(command, name, is_shown=False)
    command.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    command.set_defaults(run=_calculate, question=question)
    formulas = command.add_subparsers(metavar="FORMULA", dest="formula_word")
    for name, formula in FORMULAS.items():
        about = textwrap.fill(f"{name}: {formula.about}. Answers with {text}.", PAGE_WIDTH)
        made = formulas.add_parser(
            name, help=formula.about, description=about, epilog=_examples(question, name), formatter_class=layout,
            allow_abbrev=False,
        )  # fmt: skip
        needed = formula.needed(question)
        for option in formula.options(question):
            _add_number(made, option, is_needed=option in needed)
        add_json(made)


def _add_number(parser: argparse.ArgumentParser, name: str, is_shown: bool = True, is_needed: bool = True) -> None:
    kind, words = OPTIONS.get(name, (str, WORDS.get(name, "")))
    text = (words if is_needed else f"may be given: {words}") if is_shown else argparse.SUPPRESS
    if name == "no_bias":
        parser.add_argument(_flag(name), action="store_true", help=text)
    else:
        parser.add_argument(_flag(name), metavar={int: "K", float: "X"}.get(kind, "NAME"), help=text)


def _examples(question: str, *formulas: str) -> str:
    """Return formulas' examples: those of epsilon, with the number that is asked for in the place of epsilon."""
    lines = []
    for formula in formulas:
        made, words = FORMULAS[formula], FORMULA_EXAMPLES[formula].split()
        asked = {"noise": made.noise, "rounds": made.count}.get(question)
        if asked is not None:
            at = words.index(_flag(asked))
            words[at : at + 2] = ["--epsilon", "2"]
        lines.append(f"  upcycled privacy {question} {formula} {' '.join(words)}\n")
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
    from upcycled.auditing.calculators import calculate
    from upcycled.config.wording import in_keys

    args.formula = args.formula_word or args.formula
    if args.formula is None:
        raise InputError(field="FORMULA", must=f"one of {', '.join(FORMULAS)}")
    if args.formula not in FORMULAS:
        raise unknown("FORMULA", args.formula, FORMULAS)
    values = {name: number_of(name, getattr(args, name), kind) for name, (kind, _) in OPTIONS.items()}
    values |= {"no_bias": True if args.no_bias else None, "adjacency": args.adjacency}
    # The accounting functions name their arguments; a user knows the flags.
    flags = {name: _flag(name) for name in values} | {"mu": "--a", "step_size": "--lr"}
    with in_keys(flags):
        answers = calculate(args.question, args.formula, values)
    given = {name: value for name, value in values.items() if value is not None}
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

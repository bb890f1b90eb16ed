"""``upcycled run``: one experiment file, all its seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled._utils.formats import NONE, count, epsilon, fixed, mean_sd, megabytes
from upcycled.cli.common import Subparsers, add_batch_options, add_command, experiment_of, options_of, resumable
from upcycled.cli.output import note, print_json, print_table, tip_words

if TYPE_CHECKING:
    from upcycled.config.experiment import Experiment
    from upcycled.experiments.batch import Outcome, SeedOutcome
    from upcycled.privacy.ledger.joint import Together


EXAMPLES = """\
examples:
  upcycled run experiment.toml
  upcycled run experiment.toml local.lr=0.1 algorithm.name=fedavg 'seeds=[0, 1]'
  upcycled run experiment.toml '~upcycle' name=vanilla      without the file's table [upcycle]
  upcycled run experiment.toml --show-config     print the complete file, defaults included
"""
BASELINE = "learning nothing from features"
COLUMNS = ("seed", "accuracy %", "loss", "data\nrounds", "iterations", "messages", "MB", "seconds")


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "run",
        help="run one experiment file, all its seeds",
        description="Run one experiment file, all its seeds. Seeds that are already there are not run again.",
        examples=EXAMPLES,
    )
    add_batch_options(parser)
    parser.add_argument("--show-config", action="store_true", help="print the complete resolved file and stop")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.experiments.batch import run_experiment, seed_line

    experiment = experiment_of(args)
    if args.show_config:
        if args.json:
            print_json(experiment.resolved())
        else:
            print(experiment.resolved_toml(), end="")
        return 0
    if experiment.sweep:
        note("note: run ignores the table [sweep] and runs the file's own values")

    def tell(ran: Experiment, seed: SeedOutcome) -> None:
        if not args.quiet or seed.error is not None:
            note(seed_line(seed))

    with resumable(args):
        outcome = run_experiment(experiment, args.config, options_of(args, tell))
    if args.json:
        print_json(_document(outcome))
    else:
        _show(outcome)
    return 0 if outcome.is_complete else 1


def _document(outcome: Outcome) -> dict[str, object]:
    experiment, together = outcome.experiment, _together(outcome)
    return {
        "name": experiment.name,
        "folder": str(Path(experiment.results) / experiment.name),
        "config": experiment.resolved(),
        "seeds": [seed.as_json() for seed in outcome.seeds],
        "summary": outcome.summary(),
        "together": None if together is None else together.as_json(),
    }


def _show(outcome: Outcome) -> None:
    from upcycled._utils.statistics import mean_and_sd
    from upcycled.run_folder import RunFolder

    experiment = outcome.experiment
    rows = [_row(seed) for seed in outcome.seeds]
    done = len(outcome.finished)
    if done > 1:
        s = outcome.summary()
        rows.append(
            [
                "mean",
                mean_sd(s["accuracy"], 2, 100),
                mean_sd(s["loss"], 3),
                count(s["data_rounds"]["mean"]),
                count(s["iterations"]["mean"]),
                count(s["messages"]["mean"]),
                megabytes(s["bytes"]["mean"]),
                fixed(s["seconds"]["mean"], 2),
            ]
        )
    names = [*dict.fromkeys(name for summary in outcome.finished for name in summary.metrics)]
    algorithm = f"{'upcycled ' if experiment.upcycle else ''}{experiment.algorithm.build().name}"
    print_table(f"{experiment.name}: {algorithm}", COLUMNS, rows, last_apart=done > 1)
    if done > 1:
        print(f"Mean ± standard deviation over {done} seeds.")
    _show_privacy(outcome)
    if experiment.noise == "system":
        for seed in outcome.seeds:
            # A run that stopped early has made releases too.
            if words := tip_words(seed.summary or RunFolder(seed.folder).read_summary()):
                print(f"Seed {seed.seed}: {words}.")
    for name in names:
        known = mean_and_sd(summary.metrics.get(name) for summary in outcome.finished)
        learnt_nothing = mean_and_sd((summary.baseline or {}).get(name) for summary in outcome.finished)
        print(f"{name}: {mean_sd(known, 4)} ({BASELINE}: {fixed(learnt_nothing['mean'], 4)})")
    for words in dict.fromkeys(words for summary in outcome.finished for words in summary.notes):
        note(f"warning: {words}")
    if done:
        print(f"Results: {Path(experiment.results) / experiment.name}")
    if outcome.is_restricted:
        print(
            "The data holder's own (scores, notes) is in private/ of each seed's folder; see "
            f"`upcycled privacy own {Path(experiment.results) / experiment.name}`."
        )


def _show_privacy(outcome: Outcome) -> None:
    """Say what the costliest run cost, what was paid again, and what all runs cost together."""
    from upcycled.privacy.ledger.statement import repeats_words
    from upcycled.privacy.mechanisms import claim_word, epsilon_called

    spent = {summary.seed: summary.privacy for summary in outcome.finished if summary.privacy is not None}
    if not spent:
        return
    worst = max(spent.values(), key=lambda one: one.worst_epsilon)
    called = epsilon_called(claim_word(worst.mechanism))
    print(
        f"Privacy ({worst.noise}): {called} {epsilon(worst.epsilon.max)} for the worst client, "
        f"{epsilon(worst.epsilon.median)} median, at delta {worst.delta:g}; "
        f"{worst.scope}: seeds add up."
    )
    for seed, one in spent.items():
        if repeats := one.repeats:
            words = repeats_words(repeats.charges, one.epsilon.max, repeats.epsilon_without)
            print(f"Seed {seed}: {words}.")
        if not one.as_planned:
            print(f"Seed {seed} did not end as planned: epsilon is that of all rounds that it planned.")
    if (together := _together(outcome)) is not None:
        print(f"{together.words}.")


def _together(outcome: Outcome) -> Together | None:
    """Return what all runs with real noise cost together, those that stopped too."""
    from upcycled.privacy.ledger.joint import cost_together

    is_real = outcome.experiment.noise == "system"
    return cost_together(seed.folder for seed in outcome.seeds) if is_real else None


def _row(seed: SeedOutcome) -> list[str]:
    s = seed.summary
    if s is None:
        return [str(seed.seed), seed.status, *[NONE] * (len(COLUMNS) - 2)]
    return [
        str(seed.seed),
        fixed(s.accuracy, 2, 100),
        fixed(s.loss, 3),
        count(s.data_rounds),
        count(s.iterations),
        count(s.messages),
        megabytes(s.bytes),
        fixed(s.seconds, 2),
    ]

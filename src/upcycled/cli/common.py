"""What commands have in common: how they are declared, their options, and how Ctrl-C ends those that run."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from upcycled.cli.exit import ended_by
from upcycled.cli.output import note

if TYPE_CHECKING:
    from upcycled.config.experiment import Experiment
    from upcycled.experiments.batch import Options, Tell


Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    subparsers: Subparsers, name: str, *, help: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Declare a command whose help ends in examples, laid out as they are."""
    return subparsers.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add what every such command takes."""
    add_config(parser)
    add_json(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument(
        "--resume-anyway",
        action="store_true",
        help="go on from checkpoints that other versions of packages wrote, or your code before it was edited; and "
        "keep finished runs of such code",
    )
    parser.add_argument("--parquet", action="store_true", help="write metrics.parquet beside metrics.jsonl")
    parser.add_argument(
        "--tracker",
        action="append",
        default=[],
        metavar="NAME",
        help="tensorboard or mlflow, in files below the results folder; may be given twice",
    )


def add_metric(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the score by which a command judges runs."""
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help=f"the score that is {what}: accuracy, loss, a metric such as auroc or rmse, or one of the file's own "
        "(default: accuracy, or the loss where right answers have no meaning)",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes that reads an experiment file."""
    parser.add_argument("config", metavar="CONFIG.toml", help="the experiment file")
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        help="optional: values that replace those of the file; '~key' takes one out, such as '~upcycle' or "
        "'~algorithm.mu'",
    )
    parser.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with code that the file names as 'module:Name', which is run; may be given several times",
    )


def experiment_of(args: argparse.Namespace) -> Experiment:
    """Read and check a command's experiment file, and say what a change on the command line left out of it."""
    from upcycled.config.experiment import load_config

    return load_config(args.config, args.overrides, tell=lambda words: note(f"note: {words}"))


def options_of(args: argparse.Namespace, tell: Tell) -> Options:
    """Return how to run a batch, as the command line has it; a missing extra is refused here."""
    from upcycled._utils.extras import needs
    from upcycled.experiments.batch import Options
    from upcycled.trackers import open_trackers

    if args.parquet:
        needs("--parquet", "pyarrow")
    return Options(
        progress=not args.quiet,
        parquet=args.parquet,
        resume_anyway=args.resume_anyway,
        watch=open_trackers(args.tracker),
        tell=tell,
        remark=_each_once(),
    )


def _each_once() -> Callable[[str], None]:
    """Return what says a sentence, and says none twice."""
    said: set[str] = set()

    def say(words: str) -> None:
        if words not in said:
            said.add(words)
            note(f"note: {words}")

    return say


@contextmanager
def resumable(
    args: argparse.Namespace, kept: str = "finished runs and the checkpoints of the others are"
) -> Iterator[None]:
    """Say on Ctrl-C what is kept and how to go on; and show warnings as single lines, each once."""
    with _warnings_in_a_line():
        try:
            yield
        except KeyboardInterrupt as stop:
            signal_name, code = ended_by(stop)
            note(f"error: stopped by {signal_name}; {kept} kept; to go on: {args.repeat}")
            raise SystemExit(code) from None


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    said: set[str] = set()

    def say(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if text not in said:
            said.add(text)
            note(f"warning: {text}")

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def names_of(text: str) -> list[str]:
    """Return the parts of a list with commas.

    >>> names_of("fedavg, fedprox")
    ['fedavg', 'fedprox']
    """
    return [part.strip() for part in text.split(",")]


def warn_about_tuning(experiment: Experiment) -> None:
    """Say of a simulated private experiment what its epsilon does not cover; real noise on private data is refused."""
    if experiment.privacy is not None and experiment.noise == "seeded":
        note(
            "warning: tuning on private data is not covered by the stated epsilon, which is that of one run: all runs "
            "on the same data add up, the choice between them included"
        )

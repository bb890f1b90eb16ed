"""The command ``upcycled``: exit code 0 done, 1 failed, 2 wrong use, 70 unforeseen, 130 stopped by Ctrl-C.

SIGTERM and SIGHUP end it as Ctrl-C does, with the exit codes 143 and 129.

Nothing heavy is imported here: commands import what they need when they run.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from upcycled import __version__
from upcycled._utils.messages import say
from upcycled.cli import audit, compare, data, demo, federation, predict, privacy, report, run, sweep
from upcycled.cli.exit import UNFORESEEN, ended_by, ended_like_ctrl_c, is_about_output, silence, unforeseen
from upcycled.core.errors import InputError, UpcycledError, readable, suggest

COMMANDS = {
    "demo": demo,
    "run": run,
    "compare": compare,
    "sweep": sweep,
    "report": report,
    "predict": predict,
    "privacy": privacy,
    "audit": audit,
    "data": data,
    "federation": federation,
}
"""To add a command: write its module with ``add_parser`` and add a line."""

EXAMPLES = """\
examples:
  upcycled demo                                 one model vanilla, upcycled, and with a proven epsilon
  upcycled run experiment.toml local.lr=0.1     one experiment, with a value changed
  upcycled compare experiment.toml              vanilla against upcycled, with a test of the difference
  upcycled sweep experiment.toml                many settings, chosen on validation data
  upcycled report results/NAME                  one HTML page of everything in a results folder
  upcycled predict results/NAME/seed-0 new.csv  the trained model's answers for new samples
  upcycled privacy explain experiment.toml      what is protected, against whom, at what epsilon
  upcycled audit experiment.toml                attack the releases, and compare with the claim
  upcycled data describe set.npz                clients, samples, label skew
  upcycled federation init experiment.toml DIR  the same experiment on its data holders' machines
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A name in an encoding that the terminal has not is shown by its numbers.
        sys.stdout.reconfigure(errors="backslashreplace")
    return exit_code(lambda: _dispatch(words), words)


def _complete() -> None:
    """Answer a shell that asks what may come next, and end; without the extra ``completion`` there is no answer."""
    from upcycled._utils.extras import missing

    if not missing("argcomplete"):
        import argcomplete

        argcomplete.autocomplete(_parser())


def exit_code(command: Callable[[], int], words: Sequence[str] = ()) -> int:
    """Run a command and return its exit code; every error ends in one sentence on standard error.

    Args:
        command: returns its exit code.
        words: of the command line, for the log of an error that nobody foresaw.
    """
    try:
        with ended_like_ctrl_c():
            code = _code_of(command)
            print(end="", flush=True)  # that its reader has gone is noticed here, and not at exit
        return code
    except InputError as error:
        return _fail(error, 2)
    except UpcycledError as error:
        return _fail(error, 1)
    except MemoryError:
        return _fail("there is not enough memory for this: use fewer clients, samples or parameters", 1)
    except KeyboardInterrupt as stop:
        signal_name, code = ended_by(stop)
        return _fail(f"stopped by {signal_name}", code)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): say nothing.
        silence(sys.stdout)
        return 1
    except Exception as error:
        if isinstance(error, OSError) and is_about_output(error):
            silence(sys.stdout)
            return _fail(f"standard output cannot be written ({error.strerror})", 1)
        return _fail(unforeseen(error, words), UNFORESEEN)


def _code_of(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2


def _dispatch(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        raise InputError(f"the command '{command}' is not known{suggest(command, COMMANDS)}")
    parser = _parser()
    if not words:
        say(parser.format_help().rstrip())
        return 2
    args, rest = parser.parse_known_args(words)
    # argparse leaves out positional arguments that stand after an option: `run FILE --json key=value`.
    if rest and hasattr(args, "overrides") and all(_is_override(word) for word in rest):
        args.overrides = [*args.overrides, *rest]
    elif rest:
        raise InputError(f"{rest[0]!r} is not an argument of this command; see --help")
    args.repeat = shlex.join(["upcycled", *words])
    chosen: Callable[[argparse.Namespace], int] = args.run
    with _code_in(getattr(args, "path", [])):
        return chosen(args)


def _is_override(word: str) -> bool:
    return word.startswith("~") or ("=" in word and not word.startswith("-"))


@contextmanager
def _code_in(folders: Sequence[str]) -> Iterator[None]:
    """Let files name code in these folders while a command runs."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(field="--path", value=folder, must="a folder with Python modules")
    before = list(sys.path)
    sys.path[:0] = [os.path.abspath(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = before


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="upcycled",
        description="Federated learning that reuses what was already released.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"upcycled {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        module.add_parser(commands)
    return parser


def _fail(error: Exception | str, code: int) -> int:
    say(f"error: {readable(str(error))}")
    return code

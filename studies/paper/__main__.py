"""The paper's tables and figures, computed anew and set beside its numbers: ``python -m studies.paper WHAT``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.common.data import ROOT
from studies.common.page import write_page
from studies.paper import run as running
from studies.paper.document import write_document
from studies.paper.markdown import COMMAND, mean_of
from studies.paper.published.chain import chain, next_runs, pairs
from studies.paper.published.command import compute, known_in, published_block
from studies.paper.published.page import as_json, chain_table
from studies.paper.run import Asked, open_book
from studies.paper.settings import load_settings
from upcycled._utils.formats import NONE, fixed, interval, mean_sd, signed
from upcycled._utils.lock import locked
from upcycled.cli.common import names_of, resumable
from upcycled.cli.main import exit_code
from upcycled.cli.output import note, print_json, print_table
from upcycled.core.errors import InputError, unknown

WHAT = {
    "table1": "accuracy with 90 % stragglers: seven methods, six data sets",
    "table2": "accuracy with 30 % stragglers",
    "table3": "accuracy on FEMNIST with 26 letters",
    "table4": "training time, vanilla against upcycled at equal iterations",
    "figures": "private runs; draws them and the convergence of tables 1 and 2",
    "seeds": "tables 1 and 2 on the synthetic sets with 64 seeds in place of four",
    "as-published": "the official code's model and way of tuning on the synthetic sets, one difference after the other",
    "sent140": "Sent140 as far as an hour on one core goes",
    "document": "writes the page docs/reproduction.md from what is there; computes nothing",
}
EXAMPLES = f"""\
examples:
  {COMMAND} table1 --quick             everything small: minutes
  {COMMAND} table1 --budget            what is missing and what it costs; computes nothing
  {COMMAND} table1 --only syn          the four synthetic sets
  {COMMAND} table2 --only femnist fedavg fedprox
"""
PAGE, IMAGES = ROOT / "docs" / "reproduction.md", ROOT / "docs" / "images"
COLUMNS = ("", "vanilla", "paper", "diff.", "upcycled", "paper", "diff.", "gain (95 % interval)", "paper")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, with the exit codes and sentences of ``upcycled``."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(words))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=(
            "Compute a table or the figures of the paper. The budget is printed first; results are kept run by run, so "
            "a stopped command goes on where it was. Settings are chosen on validation samples, never on test samples."
        ),
        epilog="what:\n" + "".join(f"  {name:12} {words}\n" for name, words in WHAT.items()) + "\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("what", metavar="WHAT", help="one of: " + ", ".join(WHAT))
    parser.add_argument("--quick", action="store_true", help="few rounds, tries and seeds: shows that all works")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="data sets and methods: syn fedavg ...")
    parser.add_argument("--budget", action="store_true", help="print what is missing and what it costs, and stop")
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="the folder of the cells (default: studies/paper/results); --quick has a folder in it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return parser


def _run(words: Sequence[str]) -> int:
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(words)
    args.repeat = f"{COMMAND} {shlex.join(words)}"
    if args.what not in WHAT:
        raise unknown("WHAT", args.what, WHAT)
    if args.what == "document":
        return _document(args)
    asked = Asked(args.what, args.quick, _names(args.only), None if args.results is None else Path(args.results))
    if args.what == "as-published":
        return _as_published(asked, args)
    with resumable(args, kept="finished runs are"):
        found = running.run(asked, note, args.budget)
    if args.budget:
        return 0
    if args.json:
        print_json(found)
    elif args.what == "table4":
        _show_times(found)
    elif args.what == "figures":
        _show_private(found)
    else:
        _show_table(found)
    if args.quick and not args.json:
        print("Quick: few rounds, tries and seeds. These numbers cannot be set beside the paper's.")
    if asked.folder.resolve() == running.RESULTS.resolve():
        write_document(open_book(asked), PAGE, IMAGES)
    return 0


def _as_published(asked: Asked, args: argparse.Namespace) -> int:
    book = open_book(asked)
    wanted = pairs(book.settings, asked.only)
    if not wanted:
        raise InputError(f"as-published has nothing of --only {' '.join(asked.only)} to compute: it is about Syn")
    known = known_in(book.store)
    with resumable(args, kept="finished runs are"), locked(asked.folder):
        note(f"as-published: {len(next_runs(wanted, known))} runs that can be named by now; cells in {asked.folder}")
        if args.budget:
            return 0
        compute(known, book.sources, wanted, note)
        found, beside = chain(wanted, known)
        document = as_json(found, beside, book.settings)
        running.write_json(asked.folder / "as-published.json", document)
    if args.json:
        print_json(document)
    else:
        print("\n".join(chain_table(found, beside, wanted, book.settings)))
    if asked.folder.resolve() == running.RESULTS.resolve() and not asked.only:
        write_page(PAGE, {"as-published": published_block(book.store)})
    return 0


def _names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of ``--only``: one or several in a word, between commas."""
    found: list[str] = []
    for word in words:
        names = [name for name in names_of(word) if name]
        if not names:
            raise InputError(field="--only", value=word, but="it must name data sets or methods")
        found += names
    return tuple(found)


def _document(args: argparse.Namespace) -> int:
    for name in ("quick", "only", "budget", "results", "json"):
        if getattr(args, name) not in (False, None, []):
            raise InputError(f"document takes no --{name}: it writes {PAGE} from all cells in {running.RESULTS}")
    book = open_book(Asked("document"))
    if not any(len(book.store.named(name)) for name in book.store.names()):
        raise InputError(f"{running.RESULTS} has no cells, but the page is written from them: compute a table first")
    for path in write_document(book, PAGE, IMAGES):
        print(path)
    return 0


def _show_table(found: Mapping[str, Any]) -> None:
    titles = {name: method.title for name, method in load_settings().methods.items()}
    for column in found["columns"]:
        rows = [row for row in found["rows"] if row["column"] == column["name"]]
        if rows:
            share = f"{100 * column['stragglers']:g} % stragglers"
            title = f"{column['title']}, {share}, {column['data_rounds']} data rounds"
            print_table(title, COLUMNS, [[titles[row["method"]], *_line(row)] for row in rows])
    print(f"Test accuracy in %, mean ± sd over {len(found['seeds'])} seeds. * The paired interval excludes 0.")
    if not found["is_quick"]:
        _show_edges(found["rows"])
    _show_hopeless(
        f"{row['method']} on {row['column']}, {side}"
        for row in found["rows"]
        for side in ("vanilla", "upcycled")
        if row[side] is not None and not row[side]["by_seed"]
    )
    missing, wanted = found["runs"]["missing"], found["runs"]["wanted"]
    if missing:
        print(f"Not computed yet: {missing} of {wanted} runs ({NONE}). The same command goes on with them.")


def _line(row: Mapping[str, Any]) -> list[str]:
    line = _numbers(row["vanilla"]) + (["", "", ""] if row["upcycled"] is None else _numbers(row["upcycled"]))
    gain = row["gain"]
    if gain is None:
        return [*line, "" if row["upcycled"] is None else NONE, _signed(row["paper_gain"])]
    mark = "*" if gain["is_significant"] else " "
    shown = f"{signed(gain['mean'])} ({interval(gain['low'], gain['high'])}){mark}"
    return [*line, shown, _signed(row["paper_gain"])]


def _numbers(entry: Mapping[str, Any]) -> list[str]:
    paper = "" if entry["paper"] is None else fixed(entry["paper"][0])
    return [mean_sd(entry), paper, _signed(entry["difference"])]


def _show_edges(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say how often a wider grid might have done better; the small version's grid is all edge."""
    sides = [row[side] for row in rows for side in ("vanilla", "upcycled") if row[side] is not None]
    chosen = [side["at_edge"] for side in sides if side["at_edge"] is not None]
    for name, words in (("lr", "The learning rate"), ("rho", "rho")):
        count = sum(name in edges for edges in chosen)
        if count:
            print(f"{words} is at an edge of its grid in {count} of {len(chosen)} choices (at_edge in --json).")


def _show_times(found: Mapping[str, Any]) -> None:
    rows = [
        [
            row["method"],
            *(fixed(mean_of(row["seconds"][side]), 3) for side in ("vanilla", "upcycled")),
            fixed(row["ratio"]),
            fixed(row["ratio_sd"]),
            fixed(row["paper_ratio"]),
        ]
        for row in found["rows"]
    ]
    print_table("Training time at equal iterations", ("", "vanilla s", "upcycled s", "ratio", "sd", "paper"), rows)


def _show_private(found: Mapping[str, Any]) -> None:
    for name, title in found["titles"].items():
        rows = []
        for panel in found["panels"]:
            if panel["figure"] == name:
                gain = panel["gain"]
                mark = "*" if gain and gain["is_significant"] else " "
                shown = NONE
                if gain is not None:
                    shown = f"{signed(gain['mean'], 3)} ({interval(gain['low'], gain['high'], 3)}){mark}"
                losses = [fixed(panel[side]["loss"], 3) for side in ("vanilla", "upcycled")]
                rows.append([f"{panel['title']}, {panel['method_title']}", *losses, shown])
        if rows:
            print_table(title, ("", "vanilla loss", "upcycled loss", "gain (95 % interval)"), rows)

    _show_hopeless(
        f"{panel['method']} on {panel['data']}, {side} ({panel['figure']})"
        for panel in found["panels"]
        for side in ("vanilla", "upcycled")
        if panel[side]["settings"] is None and not panel[side]["missing"]
    )


def _show_hopeless(names: Iterable[str]) -> None:
    """Name what has no numbers, and never will with these settings."""
    found = list(names)
    if found:
        print(f"No setting of the grid works, every try diverged: {'; '.join(found)}.")


def _signed(value: float | None) -> str:
    return "" if value is None else signed(value)


if __name__ == "__main__":
    raise SystemExit(main())

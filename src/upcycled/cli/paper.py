"""``upcycled paper``: the paper's tables and figures, computed anew and set beside its numbers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upcycled.cli.batches import names_of, resumable
from upcycled.cli.show import note, print_json, print_table
from upcycled.core.formats import NONE, fixed, interval, mean_sd, signed

WHAT = {
    "table1": "accuracy with 90 % stragglers: seven methods, six data sets",
    "table2": "accuracy with 30 % stragglers",
    "table3": "accuracy on FEMNIST with 26 letters",
    "table4": "training time, vanilla against upcycled at equal iterations",
    "figures": "private runs; draws them and the convergence of tables 1 and 2",
    "seeds": "tables 1 and 2 on the synthetic sets with 64 seeds in place of four",
    "sent140": "Sent140 as far as an hour on one core goes",
    "document": "writes the page docs/reproduction.md from what is there; computes nothing",
}
EXAMPLES = """\
examples:
  upcycled paper table1 --quick                  everything small: minutes
  upcycled paper table1 --budget                 what is missing and what it costs; computes nothing
  upcycled paper table1 --only syn               the four synthetic sets
  upcycled paper table2 --only femnist fedavg fedprox
"""
COLUMNS = ("", "vanilla", "paper", "diff.", "upcycled", "paper", "diff.", "gain (95 % interval)", "paper")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``paper``."""
    parser = subparsers.add_parser(
        "paper",
        help="the paper's tables and figures, computed anew and set beside its numbers",
        description=(
            "Compute a table or the figures of the paper. The budget is printed first; results are kept run by run, so "
            "a stopped command goes on where it was. Settings are chosen on validation samples, never on test samples."
        ),
        epilog="what:\n" + "".join(f"  {name:10} {words}\n" for name, words in WHAT.items()) + "\n" + EXAMPLES,
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
        help="the folder of the cells (default: docs/reproduction in a checkout); --quick has a folder in it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.core.errors import unknown
    from upcycled.experiments.paper.run import Asked, run

    if args.what not in WHAT:
        raise unknown("WHAT", args.what, WHAT)
    if args.what == "document":
        return _document(args)
    asked = Asked(args.what, args.quick, _names(args.only), None if args.results is None else Path(args.results))
    with resumable(args, kept="finished runs are"):
        found = run(asked, note, args.budget)
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
    _write_page(asked)
    return 0


def _names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of ``--only``: one or several in a word, between commas."""
    from upcycled.core.errors import InputError

    found: list[str] = []
    for word in words:
        names = [name for name in names_of(word) if name]
        if not names:
            raise InputError(field="--only", value=word, but="it must name data sets or methods")
        found += names
    return tuple(found)


def _document(args: argparse.Namespace) -> int:
    from upcycled.core.errors import InputError
    from upcycled.experiments.paper.run import REPOSITORY, Asked, is_checkout

    for name in ("quick", "only", "budget", "results", "json"):
        if getattr(args, name) not in (False, None, []):
            raise InputError(f"document takes no --{name}: it writes {REPOSITORY}.md from all cells in {REPOSITORY}")
    if not is_checkout():
        raise InputError(f"there is no {REPOSITORY}.md here to write, so the folder must be a project's checkout")
    if not any(path.stat().st_size for path in REPOSITORY.glob("cells-*.jsonl")):
        raise InputError(f"{REPOSITORY} has no cells, but the page is written from them: compute a table first")
    for path in _write_page(Asked("document")):
        print(path)
    return 0


def _write_page(asked: Any) -> list[Path]:
    """Bring the page up to date, where the command worked on a checkout's own cells."""
    from upcycled.experiments.paper.document import write_document
    from upcycled.experiments.paper.run import REPOSITORY, is_checkout, open_book

    if not is_checkout() or asked.folder != REPOSITORY or asked.quick:
        return []
    return write_document(open_book(asked), REPOSITORY.with_suffix(".md"), Path("docs") / "images")


def _show_table(found: Mapping[str, Any]) -> None:
    from upcycled.experiments.paper.settings import load_settings

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
            *(fixed(_mean(row["seconds"][side]), 3) for side in ("vanilla", "upcycled")),
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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _signed(value: float | None) -> str:
    return "" if value is None else signed(value)

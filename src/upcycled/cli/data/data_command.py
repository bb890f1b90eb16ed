"""``upcycled data``: see what data there is, fetch or make some, describe it, check it, draft its schema."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from upcycled.cli.batches import add_command, add_json
from upcycled.cli.data.data_fetch import add_fetch
from upcycled.cli.data.data_make import add_make, columns, file_options
from upcycled.cli.data.data_schema import add_schema, problems, source, title_of_files
from upcycled.cli.show import note, print_json, print_rows
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from upcycled.data import FederatedData
    from upcycled.data.schema.encoding import TableProblem

_BUILT_IN = (
    ("synthetic iid", "one model for all clients: upcycled data make synthetic OUT.npz --iid"),
    ("synthetic (alpha, beta)", "a model per client: upcycled data make synthetic OUT.npz --alpha 0.5 --beta 0.5"),
    ("your own file", ".npz with train_x, train_y, train_client; .csv or .parquet with a client and a label column"),
)
REAL = ("femnist", "sent140")
EXAMPLES = """\
examples:
  upcycled data list
  upcycled data make synthetic set.npz --alpha 0.5 --beta 0.5
  upcycled data describe patients.csv --client hospital --label diagnosis
  upcycled data schema sites --label diagnosis
  upcycled data check sites --schema schema.toml
  upcycled data fetch femnist
"""
_OF_ONE = """\
examples:
  upcycled data {0} set.npz
  upcycled data {0} patients.csv --client hospital --label diagnosis --test-fraction 0.2
  upcycled data {0} sites --schema schema.toml
  upcycled data {0} femnist --letters 26
"""
_OF_FILES = (
    "name",
    "client",
    "label",
    "split",
    "features",
    "classes",
    "labels",
    "vocabulary",
    "targets",
    "schema",
    "repair",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``data`` and its sub-commands; each sets ``run``, a function from the arguments to the exit code."""
    parser = add_command(
        subparsers,
        "data",
        help="list, fetch, make, describe and check federated data",
        description="See what data there is, fetch or make some, describe it, check it, draft its schema.",
        examples=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    text = "built-in sources, which real sets are there, and the files in the folder $UPCYCLED_DATA"
    examples = "examples:\n  upcycled data list\n  upcycled data list --json\n"
    listing = add_command(commands, "list", help=text, description=text, examples=examples)
    add_json(listing)
    listing.set_defaults(run=_list)

    add_fetch(commands)
    for name, run, text in (
        ("describe", _describe, "clients, samples, sizes, classes and label skew of a file or a real set"),
        ("check", _check, "say OK, or all that is wrong with files or a real set (exit code 2), and what mends it"),
    ):
        command = add_command(commands, name, help=text, description=text, examples=_OF_ONE.format(name))
        command.add_argument(
            "file",
            metavar="FILE",
            nargs="+",
            help=".npz; .csv, .parquet or .xlsx, several, or a folder of them; or femnist, or sent140",
        )
        command.add_argument("--schema", metavar="TOML", help="what the columns of tables are")
        file_options(command)
        command.add_argument("--client", metavar="COLUMN", help="the client column (default: client)")
        command.add_argument("--split", metavar="COLUMN", help="a column that says train or test, or 0 or 1")
        command.add_argument("--classes", type=int, metavar="K", help="the number of classes (default: read off)")
        command.add_argument(
            "--labels", metavar="A,B,..", help="the names of the classes, in the order of their numbers"
        )
        command.add_argument("--vocabulary", type=int, metavar="K", help="features are token ids below this number")
        command.add_argument("--targets", metavar="KIND", help="classes (default), numbers or labels")
        command.add_argument("--repair", action="store_true", help="count what is no number or no class as 0")
        command.add_argument("--test-fraction", type=float, default=0.0, metavar="F", help="to hold out (default: 0)")
        command.add_argument("--seed", type=int, default=0, help="of --test-fraction, or of the set (default: 0)")
        command.add_argument("--source", metavar="PATH", help="of femnist or sent140: the file or folder to read")
        command.add_argument("--devices", type=int, help="of femnist or sent140")
        command.add_argument("--letters", type=int, help="of femnist: 10, or up to 26")
        command.add_argument("--dimension", type=int, help="of sent140: 50, 100 or 300 numbers per word (default: 50)")
        add_json(command)
        command.set_defaults(run=run)
    add_schema(commands)
    add_make(commands)


def _list(args: argparse.Namespace) -> int:
    from upcycled.data.loading import files_in
    from upcycled.data.paths import chosen_folder
    from upcycled.data.sets.inventory import inventory

    folder = chosen_folder()
    files = files_in(folder) if folder else []
    sets = inventory()
    if args.json:
        print_json(
            {
                "sources": dict(_BUILT_IN),
                "sets": [{**asdict(found), "path": found.path and str(found.path)} for found in sets],
                "folder": str(folder) if folder else None,
                "files": [asdict(file) for file in files],
            }
        )
        return 0
    print_rows("data sources", list(_BUILT_IN))
    print_rows(
        "real sets",
        [
            (found.name, str(found.path) if found.path else f"not there: upcycled data fetch {found.fetch}")
            for found in sets
        ],
    )
    if not folder:
        note("Set UPCYCLED_DATA to a folder to list its files here.")
        return 0
    rows = [
        (found.file, found.problem or ", ".join(found.sets) or ("one set" if found.kind == "npz" else "a table"))
        for found in files
    ]
    print_rows(f"files in {folder}", rows or [("none", "no .npz, .csv or .parquet")])
    return 0


def _label(args: argparse.Namespace) -> str | list[str] | None:
    """Return the label column; targets that are no classes may have several, with commas between."""
    has_several = args.targets in ("numbers", "labels") and "," in (args.label or "")
    return columns(args.label) if has_several else args.label


def _load(args: argparse.Namespace) -> FederatedData:
    from upcycled import data

    given = {name: getattr(args, name) for name in ("source", "devices", "letters", "dimension")}
    given = {name: value for name, value in given.items() if value is not None}
    if args.file[0] not in REAL:
        for name, value in given.items():
            raise InputError(field=f"--{name}", value=value, must="left out: it is for femnist and sent140")
        return data.load(
            source(args.file),
            name=args.name,
            client=args.client,
            label=_label(args),
            split=args.split,
            test_fraction=args.test_fraction,
            features=columns(args.features),
            seed=args.seed,
            num_classes=args.classes,
            label_names=columns(args.labels),
            vocabulary=args.vocabulary,
            targets=args.targets,
            schema=args.schema,
            repair=args.repair,
        )
    if len(args.file) > 1:
        raise InputError(field="FILE", value=args.file, must=f"{args.file[0]} alone, or files")
    which = args.file[0]
    for name in (*_OF_FILES, "test_fraction", "dimension" if which == "femnist" else "letters"):
        if getattr(args, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(field=flag, value=getattr(args, name), must=f"left out for {which}")
    real = data.femnist if which == "femnist" else data.sent140
    return real(seed=args.seed, **given)


def _describe(args: argparse.Namespace) -> int:
    data, title = _load(args), title_of_files(args.file)
    if args.json:
        print_json({"file": title, **data.describe().to_dict()})
    else:
        print_rows(title, data.describe().rows())
    return 0


def _check(args: argparse.Namespace) -> int:
    from upcycled.data.lint import hints

    title = title_of_files(args.file)
    met = [] if args.file[0] in REAL else problems(args)
    wrong = [one for one in met if one.blocks and (one.is_shape or one.is_grave or not args.repair)]
    slips = [one for one in met if not one.blocks]
    if wrong:
        if args.json:
            print_json({"file": title, "ok": False, "problems": _plain(wrong), "hints": _plain(slips)})
        else:
            print(f"{title} has {len(wrong)} problem{'s' * (len(wrong) > 1)}:")
            _print_each("problem", wrong)
            _print_each("hint", slips)
        return 2
    data = _load(args)
    words = hints(data, is_repaired=args.repair)
    found = {"clients": data.num_clients, "samples": data.train.num_rows, data.targets: data.num_classes}
    found["test_samples"] = 0 if data.test is None else data.test.num_rows
    inferred = sorted(data.inferred)
    marks = () if data.schema is None else data.schema.marks
    if args.json:
        about = {"hints": [*words, *(one.said for one in slips)], "inferred": inferred, "notes": list(data.notes)}
        print_json({"file": title, "ok": True, **found, **about, "marks": list(marks), "mends": _plain(slips)})
    else:
        print(f"OK: {title} has " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in found.items()))
        for note_of_holder in data.notes if args.repair else ():
            print(f"repaired: {note_of_holder}")
        if inferred:
            print(f"read off the data: {', '.join(inferred)} (a run with real noise wants them given)")
        if marks:
            print(f"marked as from_data: {', '.join(marks)}")
        for slip in words:
            print(f"hint: {slip}")
        _print_each("hint", slips)
    return 0


def _print_each(what: str, problems: Sequence[TableProblem]) -> None:
    for one in problems:
        print(f"{what}: {f'{one.where}: ' if one.where else ''}{one.said}")
        for i, line in enumerate(one.mend.splitlines()):
            print(f"    {'        ' if i else 'schema: '}{line}")


def _plain(problems: Sequence[TableProblem]) -> list[dict[str, str]]:
    return [{"file": one.where, "said": one.said, "schema": one.mend} for one in problems]

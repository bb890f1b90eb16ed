"""``upcycled data``: see what data there is, fetch or make some, describe it, check it, draft its schema.

``upcycled data`` and its commands.

``upcycled data fetch``: bring a real set to this machine.

``upcycled data make``: write an .npz, of the paper's synthetic data or of a file dealt out to clients.

``upcycled data schema``: a draft of what the columns of tables are; and what ``data check`` finds in tables.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled._utils.messages import is_terminal
from upcycled.cli.common import add_command, add_json, names_of
from upcycled.cli.output import note, print_json, print_rows
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from upcycled.data import FederatedData
    from upcycled.data.loading import Pool
    from upcycled.data.schema.encoding import TableProblem


_EPILOG = """\
femnist downloads EMNIST (562 MB), sent140 the original tweets (81 MB), glove the word vectors for them.
The download needs the extra [data]. Data goes to $UPCYCLED_DATA, else to the cache folder.

examples:
  upcycled data fetch femnist
  upcycled data fetch sent140 --to DIR
"""


def add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "download a real set from its publisher, and check it"
    parser = add_command(commands, "fetch", help=text, description=text, examples=_EPILOG)
    parser.add_argument("set", metavar="SET", help="femnist, sent140 or glove")
    parser.add_argument("--to", metavar="DIR", help="the data folder to put it in")
    parser.add_argument("--url", help="another address of the same archive")
    add_json(parser)
    parser.set_defaults(run=_fetch)


def _fetch(args: argparse.Namespace) -> int:
    from upcycled.data.sets.fetch import fetch, package_of

    package = package_of(args.set)
    note(f"{package.title}: {args.url or package.url}")
    found = fetch(args.set, args.to, args.url, shows_progress=is_terminal())
    if args.json:
        print_json(
            {
                "set": found.name,
                "files": [str(file) for file in found.files],
                "was_there": found.was_there,
                "checked": found.checked,
            }
        )
        return 0
    print(f"{'already there' if found.was_there else 'fetched'}: {args.set} ({found.checked})")
    for file in found.files:
        print(f"  {file}")
    return 0


_SCHEMES = ("iid", "dirichlet", "classes", "column")
_SYNTHETIC_EXAMPLES = """\
examples:
  upcycled data make synthetic set.npz --alpha 0.5 --beta 0.5
  upcycled data make synthetic even.npz --iid --clients 10 --samples 200
"""
_PARTITION_EXAMPLES = """\
examples:
  upcycled data make partition pool.npz dealt.npz --scheme dirichlet --clients 20 --alpha 0.3
  upcycled data make partition patients.csv dealt.npz --scheme column --column hospital --label diagnosis
"""


def add_make(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    examples = _SYNTHETIC_EXAMPLES + _PARTITION_EXAMPLES.removeprefix("examples:\n")
    text = "write an .npz"
    command = add_command(commands, "make", help=text, description=text, examples=examples)
    kinds = command.add_subparsers(metavar="KIND", required=True)
    _add_synthetic(kinds)
    _add_partition(kinds)


def _add_synthetic(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "the synthetic data of the paper"
    parser = add_command(kinds, "synthetic", help=text, description=text, examples=_SYNTHETIC_EXAMPLES)
    parser.add_argument("out", metavar="OUT.npz")
    parser.add_argument("--iid", action="store_true", help="one model for all clients, in place of --alpha and --beta")
    parser.add_argument("--alpha", type=float, help="standard deviation of the clients' models")
    parser.add_argument("--beta", type=float, help="standard deviation of the clients' features")
    parser.add_argument("--clients", type=int, default=30, help="(default: 30)")
    parser.add_argument("--dim", type=int, default=20, help="features (default: 20)")
    parser.add_argument("--num-classes", type=int, default=2, help="(default: 2)")
    parser.add_argument("--samples", type=int, help="of every client (default: lognormal sizes, as published)")
    _out_options(parser)
    parser.set_defaults(run=_make_synthetic)


def _add_partition(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "deal the samples of a file out to clients, whatever clients or test part it has"
    parser = add_command(kinds, "partition", help=text, description=text, examples=_PARTITION_EXAMPLES)
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .parquet")
    parser.add_argument("out", metavar="OUT.npz")
    parser.add_argument("--scheme", required=True, choices=_SCHEMES, help="how to deal them out")
    parser.add_argument("--clients", type=int, help="how many; not with the scheme column")
    parser.add_argument("--sigma", type=float, help="scheme iid: lognormal sizes with this spread")
    parser.add_argument("--alpha", type=float, help="scheme dirichlet: small for strong label skew")
    parser.add_argument("--classes-per-client", type=int, metavar="K", help="scheme classes")
    parser.add_argument("--column", help="scheme column: one client for each of its values")
    file_options(parser)
    _out_options(parser)
    parser.set_defaults(run=_make_partition)


def file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what in a file is what."""
    parser.add_argument("--name", help="which set of an .npz that holds several")
    parser.add_argument("--label", metavar="COLUMN", help="the label column (default: label; in an .npz y)")
    parser.add_argument("--features", metavar="A,B,..", help="the feature columns (default: all others)")


def _out_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--test-fraction", type=float, default=0.1, metavar="F", help="(default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.npz")
    add_json(parser)


def _make_synthetic(args: argparse.Namespace) -> int:
    from upcycled.data import synthetic

    if args.iid == (args.alpha is not None):
        given = "both" if args.iid else "neither"
        raise InputError(f"--iid and --alpha: {given} given, but it must be --iid, or --alpha with --beta")
    _check_out(args)
    data = synthetic(
        "iid" if args.iid else args.alpha,
        args.beta,
        clients=args.clients,
        dim=args.dim,
        num_classes=args.num_classes,
        sizes=args.samples,
        test_fraction=args.test_fraction,
        seed=args.seed,
    )
    return _write(data, args)


def _make_partition(args: argparse.Namespace) -> int:
    import numpy as np

    from upcycled.data import FederatedData
    from upcycled.data.lint import hints
    from upcycled.data.loading import read_pool

    _check_scheme(args)
    _check_out(args)
    column = args.column if args.scheme == "column" else None
    pool = read_pool(args.file, args.name, args.label, columns(args.features), column)
    data = FederatedData.from_pool(
        pool.x,
        pool.y,
        _parts(pool, args),
        test_fraction=args.test_fraction,
        seed=args.seed,
        client_names=None if pool.column is None else [str(value) for value in np.unique(pool.column)],
    )
    if args.scheme in ("dirichlet", "classes"):
        data = replace(data, inferred=data.inferred | {"sizes"})  # who has how many follows from the labels
    for slip in hints(data):
        note(f"hint: {slip}")
    return _write(data, args)


def _check_scheme(args: argparse.Namespace) -> None:
    """Refuse options that the scheme would ignore, and ask for the ones it needs."""
    needs = {"iid": ("clients",), "dirichlet": ("clients", "alpha"), "classes": ("clients", "classes_per_client")}
    needed = needs.get(args.scheme, ("column",))
    allowed = (*needed, "sigma") if args.scheme == "iid" else needed
    for option in ("clients", "sigma", "alpha", "classes_per_client", "column"):
        value = getattr(args, option)
        flag = f"--{option.replace('_', '-')}"
        if value is None and option in needed:
            raise InputError(field=flag, but=f"the scheme {args.scheme} needs it")
        if value is not None and option not in allowed:
            raise InputError(field=flag, value=value, must=f"left out with the scheme {args.scheme}")


def _parts(pool: Pool, args: argparse.Namespace) -> list[Any]:
    from upcycled.data import partition

    if args.scheme == "dirichlet":
        return list(partition.dirichlet(pool.y, args.clients, args.alpha, args.seed))
    if args.scheme == "classes":
        return list(partition.by_classes(pool.y, args.clients, args.classes_per_client, args.seed))
    if args.scheme == "column":
        assert pool.column is not None  # it was asked for
        return list(partition.by_column(pool.column))
    sizes = None
    if args.sigma is not None:
        sizes = partition.lognormal_sizes(len(pool.y), args.clients, args.sigma, args.seed)
    return list(partition.iid(pool.y, args.clients, args.seed, sizes))


def check_new_file(field: str, out: Path, ending: str, force: bool) -> None:
    """Refuse a file to write that has another ending, or exists already."""
    if out.suffix.lower() != ending:
        raise InputError(field=field, value=str(out), must=f"a file that ends in {ending}")
    if out.exists() and not force:
        raise InputError(f"{field} is '{out}', which exists already, but it must be a new file (or give --force)")


def _check_out(args: argparse.Namespace) -> None:
    """Refuse before the work, not after it."""
    out = Path(args.out)
    check_new_file("OUT", out, ".npz", args.force)
    if not out.absolute().parent.is_dir():
        raise InputError(field="OUT", value=str(out), but="its folder must exist")


def _write(data: FederatedData, args: argparse.Namespace) -> int:
    from upcycled.data import save

    save(data, args.out)
    note(f"wrote {args.out}")
    if args.json:
        print_json({"file": args.out, **data.describe().to_dict()})
    else:
        print_rows(args.out, data.describe().rows())
    return 0


def columns(text: str | None) -> list[str] | None:
    """Return the names in a list with commas."""
    return None if text is None else names_of(text)


SCHEMA_EXAMPLES = """\
examples:
  upcycled data schema sites --label diagnosis
  upcycled data schema patients.csv --client hospital --label diagnosis -o mine.toml
"""


def add_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "write a draft of a schema to edit: what each column is, with what follows from the data marked"
    parser = add_command(commands, "schema", help=text, description=text, examples=SCHEMA_EXAMPLES)
    parser.add_argument("file", metavar="FILE", nargs="+", help=".csv, .parquet or .xlsx; several, or a folder of them")
    parser.add_argument(
        "-o", "--output", metavar="TOML", default="schema.toml", help="where it goes (default: schema.toml)"
    )
    parser.add_argument("--client", metavar="COLUMN", help="the client column (default: client, or the files' names)")
    parser.add_argument("--label", metavar="COLUMN", help="the label column (default: label)")
    parser.add_argument("--targets", choices=("classes", "numbers"), help="what the label is (default: as it looks)")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    add_json(parser)
    parser.set_defaults(run=_draft)


def _draft(args: argparse.Namespace) -> int:
    import tomllib

    from upcycled._utils.files import write_whole
    from upcycled.data.loading import files_of, read_all
    from upcycled.data.readers.raw_tables import sniffed
    from upcycled.data.schema.draft import draft
    from upcycled.data.schema.schema import Schema

    out = Path(args.output)
    check_new_file("--output", out, ".toml", args.force)
    files = files_of(source(args.file))
    dialect = sniffed(files)
    tables = read_all(files, dialect)
    text = draft(tables, client=args.client, label=args.label, targets=args.targets, dialect=dialect)
    marks = Schema.from_dict(tomllib.loads(text)).marks
    write_whole(out, text.encode())
    if args.json:
        print_json({"file": title_of_files(args.file), "output": str(out), "marks": list(marks)})
    else:
        note(f"wrote {out}: {len(marks)} entries are from the data, and marked")
    return 0


def problems(args: argparse.Namespace) -> list[TableProblem]:
    """Return all that is wrong with tables, and what often is; nothing of an .npz."""
    from upcycled.data.loading import raw_tables
    from upcycled.data.schema.problems import problems_by_schema, problems_without_schema
    from upcycled.data.schema.schema import Schema

    if len(args.file) == 1 and Path(args.file[0]).suffix.lower() == ".npz":
        return []
    if args.schema is not None:
        schema = Schema.read(args.schema)
        return problems_by_schema(raw_tables(source(args.file), schema), schema)
    tables = raw_tables(source(args.file))
    labels = columns(args.label) or ["label"]
    # Labels with names, and several of them, are for the reader to check.
    is_plain = args.label_names is None and len(labels) == 1 and args.targets in (None, "classes")
    client = args.client or ("client" if all("client" in table.columns for table in tables) else None)
    others = [name for name in (args.split, *(() if is_plain else labels)) if name is not None]
    holders = sum(labels[0] in table.columns for table in tables)
    # One that was asked for and is nowhere is a slip of the pen.
    is_told = holders == len(tables) or (holders == 0 and args.label is not None)
    label = labels[0] if is_plain and is_told else None
    features = columns(args.features)
    if features is not None and any(name not in table.columns for table in tables for name in features):
        return []  # the reader says which
    return problems_without_schema(tables, client=client, label=label, features=features, others=others)


def source(files: list[str]) -> str | list[str]:
    """Return one file or folder as itself."""
    return files[0] if len(files) == 1 else files


def title_of_files(files: list[str]) -> str:
    """Return what the command calls its files."""
    return files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")


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
    "num_classes",
    "label_names",
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
        command.add_argument("--num-classes", type=int, metavar="K", help="the number of classes (default: read off)")
        command.add_argument(
            "--label-names", metavar="A,B,..", help="the names of the classes, in the order of their numbers"
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
    from upcycled.data.sets.fetch import inventory
    from upcycled.data.sets.paths import chosen_folder

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
        options = {name: getattr(args, name) for name in (*_OF_FILES, "test_fraction", "seed")}
        options |= {"label": _label(args)} | {name: columns(options[name]) for name in ("features", "label_names")}
        return data.load(source(args.file), **options)
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


__all__ = ["add_parser"]

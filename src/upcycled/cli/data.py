"""``upcycled data``: see what data there is, make some, describe it, check it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.data import FederatedData
    from upcycled.data.files import Pool

_SCHEMES = ("iid", "dirichlet", "classes", "column")
_BUILT_IN = (
    ("synthetic iid", "one model for all clients: upcycled data make synthetic OUT.npz --iid"),
    ("synthetic (alpha, beta)", "a model per client: upcycled data make synthetic OUT.npz --alpha 0.5 --beta 0.5"),
    ("your own file", ".npz with train_x, train_y, train_client; .csv or .parquet with a client and a label column"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``data`` and its sub-commands; each sets ``run``, a function from the arguments to the exit code."""
    parser = subparsers.add_parser("data", help="list, make, describe and check federated data", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="built-in sources, and the files in the folder $UPCYCLED_DATA")
    _json_option(listing)
    listing.set_defaults(run=_list)

    for name, run, text in (
        ("describe", _describe, "clients, samples, sizes, classes and label skew of a file"),
        ("check", _check, "say OK, or in one sentence what is wrong with a file (exit code 2)"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", metavar="FILE", help=".npz, .csv or .parquet")
        _file_options(command)
        command.add_argument("--client", metavar="COLUMN", help="the client column (default: client)")
        command.add_argument("--split", metavar="COLUMN", help="a column that says train or test, or 0 or 1")
        command.add_argument("--test-fraction", type=float, default=0.0, metavar="F", help="to hold out (default: 0)")
        command.add_argument("--seed", type=int, default=0, help="of --test-fraction (default: 0)")
        _json_option(command)
        command.set_defaults(run=run)

    kinds = commands.add_parser("make", help="write an .npz").add_subparsers(metavar="KIND", required=True)
    _add_synthetic(kinds)
    _add_partition(kinds)


def _add_synthetic(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "the synthetic data of the paper"
    parser = kinds.add_parser("synthetic", help=text, description=text)
    parser.add_argument("out", metavar="OUT.npz")
    parser.add_argument("--iid", action="store_true", help="one model for all clients, in place of --alpha and --beta")
    parser.add_argument("--alpha", type=float, help="standard deviation of the clients' models")
    parser.add_argument("--beta", type=float, help="standard deviation of the clients' features")
    parser.add_argument("--clients", type=int, default=30, help="(default: 30)")
    parser.add_argument("--dim", type=int, default=20, help="features (default: 20)")
    parser.add_argument("--classes", type=int, default=2, help="(default: 2)")
    parser.add_argument("--samples", type=int, help="of every client (default: lognormal sizes, as published)")
    _out_options(parser)
    parser.set_defaults(run=_make_synthetic)


def _add_partition(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "deal the samples of a file out to clients, whatever clients or test part it has"
    parser = kinds.add_parser("partition", help=text, description=text)
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .parquet")
    parser.add_argument("out", metavar="OUT.npz")
    parser.add_argument("--scheme", required=True, choices=_SCHEMES, help="how to deal them out")
    parser.add_argument("--clients", type=int, help="how many; not with the scheme column")
    parser.add_argument("--sigma", type=float, help="scheme iid: lognormal sizes with this spread")
    parser.add_argument("--alpha", type=float, help="scheme dirichlet: small for strong label skew")
    parser.add_argument("--classes-per-client", type=int, metavar="K", help="scheme classes")
    parser.add_argument("--column", help="scheme column: one client for each of its values")
    _file_options(parser)
    _out_options(parser)
    parser.set_defaults(run=_make_partition)


def _file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="which set of an .npz that holds several")
    parser.add_argument("--label", metavar="COLUMN", help="the label column (default: label; in an .npz y)")
    parser.add_argument("--features", metavar="A,B,..", help="the feature columns (default: all others)")


def _out_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--test-fraction", type=float, default=0.1, metavar="F", help="(default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.npz")
    _json_option(parser)


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _list(args: argparse.Namespace) -> int:
    from upcycled.data.files import files_in

    folder = os.environ.get("UPCYCLED_DATA", "")
    if folder and not Path(folder).is_dir():
        raise InputError(f"UPCYCLED_DATA is '{folder}', but it must be a folder")
    files = files_in(folder) if folder else []
    if args.json:
        _print_json({"sources": dict(_BUILT_IN), "folder": folder or None, "files": [asdict(file) for file in files]})
        return 0
    _print_table("data sources", list(_BUILT_IN))
    if not folder:
        print("Set UPCYCLED_DATA to a folder to list its files here.", file=sys.stderr)
        return 0
    rows = [
        (found.file, found.problem or ", ".join(found.sets) or ("one set" if found.kind == "npz" else "a table"))
        for found in files
    ]
    _print_table(f"files in {folder}", rows or [("none", "no .npz, .csv or .parquet")])
    return 0


def _load(args: argparse.Namespace) -> FederatedData:
    from upcycled.data import load

    return load(
        args.file,
        name=args.name,
        client=args.client,
        label=args.label,
        split=args.split,
        test_fraction=args.test_fraction,
        features=_columns(args.features),
        seed=args.seed,
    )


def _describe(args: argparse.Namespace) -> int:
    data = _load(args)
    if args.json:
        _print_json({"file": args.file, **data.describe().to_dict()})
    else:
        _print_table(args.file, data.describe().rows())
    return 0


def _check(args: argparse.Namespace) -> int:
    data = _load(args)
    found = {"clients": data.num_clients, "samples": data.train.num_rows, "classes": data.num_classes}
    found["test_samples"] = 0 if data.test is None else data.test.num_rows
    if args.json:
        _print_json({"file": args.file, "ok": True, **found})
    else:
        print(f"OK: {args.file} has " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in found.items()))
    return 0


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
        classes=args.classes,
        sizes=args.samples,
        test_fraction=args.test_fraction,
        seed=args.seed,
    )
    return _write(data, args)


def _make_partition(args: argparse.Namespace) -> int:
    import numpy as np

    from upcycled.data import FederatedData
    from upcycled.data.files import read_pool

    _check_scheme(args)
    _check_out(args)
    column = args.column if args.scheme == "column" else None
    pool = read_pool(args.file, args.name, args.label, _columns(args.features), column)
    data = FederatedData.from_pool(
        pool.x,
        pool.y,
        _parts(pool, args),
        args.test_fraction,
        args.seed,
        client_names=None if pool.column is None else [str(value) for value in np.unique(pool.column)],
    )
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
            raise InputError(f"{flag} is missing, but the scheme {args.scheme} needs it")
        if value is not None and option not in allowed:
            raise InputError(f"{flag} is {value}, but it must be left out with the scheme {args.scheme}")


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


def _check_out(args: argparse.Namespace) -> None:
    """Refuse before the work, not after it."""
    out = Path(args.out)
    if out.suffix.lower() != ".npz":
        raise InputError(f"OUT is '{out}', but it must end in .npz")
    if out.exists() and not args.force:
        raise InputError(f"OUT is '{out}', which exists already, but it must be a new file (or give --force)")
    if not out.absolute().parent.is_dir():
        raise InputError(f"OUT is '{out}', but its folder must exist")


def _write(data: FederatedData, args: argparse.Namespace) -> int:
    from upcycled.data import save

    save(data, args.out)
    print(f"wrote {args.out}", file=sys.stderr)
    if args.json:
        _print_json({"file": args.out, **data.describe().to_dict()})
    else:
        _print_table(args.out, data.describe().rows())
    return 0


def _columns(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))


def _print_table(title: str, rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in rows:
        table.add_row(what, value)
    # Names out of files are text, never markup.
    Console(markup=False, emoji=False, highlight=False).print(table)

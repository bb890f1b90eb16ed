"""``upcycled data make``: write an .npz, of the paper's synthetic data or of a file dealt out to clients."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.cli.batches import add_command, add_json, names_of
from upcycled.cli.show import note, print_json, print_rows
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.data import FederatedData
    from upcycled.data.loading import Pool

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
    parser.add_argument("--classes", type=int, default=2, help="(default: 2)")
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
        classes=args.classes,
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
        args.test_fraction,
        args.seed,
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

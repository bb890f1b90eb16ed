"""``upcycled predict``: the answers of a trained model for the samples of a file."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.cli.common import Subparsers, add_command, add_json
from upcycled.cli.output import note, print_json
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.data.new_samples import NewSamples
    from upcycled.serving import Predictor


EXAMPLES = """\
examples:
  upcycled predict results/synthetic/seed-0 new.csv -o answers.csv
  upcycled predict results/synthetic/seed-0 new.csv --id patient     each row by a name of its own
  upcycled predict results/own new.csv --client hospital-3           with a client's personal model
  upcycled predict results/net new.csv --allow my_net --path .       a model that your function in my_net.py made
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "predict",
        help="answers of a trained model for the samples of a file",
        description="Write a CSV with an answer for each sample of a file: its class and the probability of each, or "
        "its numbers. The file has the columns of training, by name and in any order; its client and label columns "
        "may be there and are not looked at. RESULT is a seed's folder, a folder of result.save, or a results folder "
        "with one model.",
        examples=EXAMPLES,
    )
    parser.add_argument("result", metavar="RESULT", help="the folder with the model")
    parser.add_argument("file", metavar="FILE", help=".csv, .parquet or .npz (with x, or the parts of a set)")
    parser.add_argument("-o", "--output", metavar="OUT.csv", help="where answers go (default: standard output)")
    parser.add_argument("--client", metavar="NAME", help="use this client's personal model (pFedMe)")
    parser.add_argument("--id", metavar="COLUMN", help="call rows by this column (default: by their numbers from 0)")
    parser.add_argument("--name", metavar="SET", help="which set of an .npz that holds several")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module's code if the model names it as what makes it; nothing else that a model names is run",
    )
    parser.add_argument(
        "--path", action="append", default=[], metavar="DIR", help="a folder to look for the allowed code in"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled._utils.files import write_whole
    from upcycled._utils.messages import collected_warnings
    from upcycled.data.new_samples import read_samples
    from upcycled.serving import load

    if args.output is not None and Path(args.output).suffix.lower() != ".csv":
        raise InputError(field="--output", value=args.output, must="a file that ends in .csv")
    predictor = load(args.result, allow=args.allow)
    if args.client is not None:
        predictor = predictor.personal(args.client)
    card = predictor.card
    with collected_warnings(Warning) as warned:
        samples = read_samples(
            args.file, card.feature_names, card.other_columns, schema=card.schema, id=args.id, name=args.name
        )
    for words in warned:
        note(f"warning: {words}")
    try:
        columns, rows = _answers(predictor, samples)
    except InputError as error:
        raise error.at(args.file) from error
    if args.output is not None:
        write_whole(Path(args.output), _as_csv(columns, rows).encode())
        note(f"{len(rows)} answers: {args.output}")
    if args.json:
        about = {"model": str(predictor.folder), "file": args.file, "output": args.output, "samples": len(rows)}
        told = {"answers": [dict(zip(columns, row, strict=True)) for row in rows]} if args.output is None else {}
        print_json({**about, **told})
    elif args.output is None:
        print(_as_csv(columns, rows), end="")
    return 0


def _answers(predictor: Predictor, samples: NewSamples) -> tuple[list[str], list[list[Any]]]:
    """Return the columns of the answer, and a row for each sample."""
    answers = predictor.predict(samples.x)
    names = ["prediction"]
    if answers.ndim > 1:
        answers = answers.reshape(len(answers), -1)
        names = [f"prediction_{place}" for place in range(answers.shape[1])]
    columns, parts = [samples.id_name, *names], [answers.reshape(len(answers), -1).tolist()]
    if predictor.classes is not None:
        columns += [f"probability_{name}" for name in predictor.classes]
        parts.append(predictor.predict_proba(samples.x).tolist())
    rows = [[row, *(value for cells in one for value in cells)] for row, *one in zip(samples.ids, *parts, strict=True)]
    return columns, rows


def _as_csv(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a table for programs: every digit of every number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()

"""``upcycled data schema``: a draft of what the columns of tables are; and what ``data check`` finds in tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled.cli.batches import add_command, add_json
from upcycled.cli.data.data_make import check_new_file, columns
from upcycled.cli.show import note, print_json

if TYPE_CHECKING:
    from upcycled.data.schema.encoding import TableProblem

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

    from upcycled.data.loading import files_of, read_all
    from upcycled.data.readers.raw_tables import sniffed
    from upcycled.data.schema.draft import draft
    from upcycled.data.schema.table_schema import Schema
    from upcycled.support.files import write_whole

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
    from upcycled.data.schema.table_lint import problems_by_schema, problems_without_schema
    from upcycled.data.schema.table_schema import Schema

    if len(args.file) == 1 and Path(args.file[0]).suffix.lower() == ".npz":
        return []
    if args.schema is not None:
        schema = Schema.read(args.schema)
        return problems_by_schema(raw_tables(source(args.file), schema), schema)
    tables = raw_tables(source(args.file))
    labels = columns(args.label) or ["label"]
    # Labels with names, and several of them, are for the reader to check.
    is_plain = args.labels is None and len(labels) == 1 and args.targets in (None, "classes")
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

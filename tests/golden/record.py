"""``python -m tests.golden.record`` writes golden.json anew: what the runs give with the code as it is now.

Record only when results are meant to change, and say in the commit which and why.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.cases import CASES
from tests.golden.facts import digest, signature, summary

GOLDEN = Path(__file__).with_name("golden.json")


def recorded(facts):
    """Return what is kept of a case's facts: part -> the digest of each column, and what holds on any machine."""
    return {
        part: {"exact": {name: digest(values) for name, values in columns.items()}, **summary(part, columns)}
        for part, columns in facts.items()
    }


def carried_out(name):
    """Return the facts of a case, run in an empty folder."""
    with TemporaryDirectory(prefix="golden-") as folder:
        return CASES[name](Path(folder).resolve())


def main(out):
    cases = {}
    for name in CASES:
        start = time.perf_counter()
        cases[name] = recorded(carried_out(name))
        print(f"{time.perf_counter() - start:6.2f} s  {name}", file=sys.stderr)
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in cases.items()]
    text = f'{{"signature": {json.dumps(signature())},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    out.write_text(text, encoding="utf-8")
    print(f"{len(cases)} cases, {len(text)} bytes: {out}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)

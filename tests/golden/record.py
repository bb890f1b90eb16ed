"""``python -m tests.golden.record`` records what the golden runs give on this processor, with the code as it is now.

There is one recording for each processor, since bits depend on its vector instructions. Record only when results are
meant to change, and say in the commit which and why. With names of cases only these are recorded; recordings of other
processors then keep of them what is the same on every processor. ``--remove NAME ...`` deletes the cases of a removed
feature from every recording and changes nothing else; ``NAME:PART:COLUMN`` deletes one column of a case that stays.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.cases import CASES
from tests.golden.facts import digest, signature, summary

RECORDINGS = Path(__file__).with_name("recordings")


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


def written(path, found_on, cases):
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in cases.items()]
    text = f'{{"signature": {json.dumps(found_on)},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text, encoding="utf-8")
    print(f"{len(cases)} cases, {len(text)} bytes: {path}", file=sys.stderr)


def remove(names):
    for path in sorted(RECORDINGS.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        try:
            for name in names:
                remove_one(kept["cases"], *name.split(":", 2))
        except KeyError:
            raise SystemExit(f"{path}: {name} is not recorded") from None
        written(path, kept["signature"], kept["cases"])


def remove_one(cases, name, part=None, column=None):
    if part is None:
        del cases[name]
        return
    columns = cases[name][part]
    columns["exact"].pop(column, None)  # a recording of another processor may lack the column
    columns["near"].pop(column, None)
    columns["same"] = [one for one in columns["same"] if one != column]


def replace(names):
    fresh = {name: recorded(carried_out(name)) for name in names}
    for path in sorted(RECORDINGS.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        is_here = kept["signature"] == signature()
        written(path, kept["signature"], kept["cases"] | (fresh if is_here else {n: portable(fresh[n]) for n in names}))


def portable(case):
    """Return what a case has on every processor."""
    return {
        part: {**kept, "exact": {name: kept["exact"][name] for name in kept["same"]}} for part, kept in case.items()
    }


def main():
    cases = {}
    for name in CASES:
        start = time.perf_counter()
        cases[name] = recorded(carried_out(name))
        print(f"{time.perf_counter() - start:6.2f} s  {name}", file=sys.stderr)
    found_on = signature()
    written(RECORDINGS / f"{found_on['cpu']}.json", found_on, cases)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--remove"]:
        remove(sys.argv[2:])
    elif sys.argv[1:]:
        replace(sys.argv[1:])
    else:
        main()

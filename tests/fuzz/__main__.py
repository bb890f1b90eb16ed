"""Fuzz the package at length; the default suite tries a few hundred of the same files.

    python -m tests.fuzz configs --count 100000 --seed 0
    python -m tests.fuzz files --count 10000
    python -m tests.fuzz commands --count 500
    python -m tests.fuzz evidence --count 10000

Evidence folders are forged: none may be accepted with a head and a smaller epsilon, or without one and inconsistent.
Every other input must be taken, or refused in one sentence, within 10 s; the process may have 1,000 MB more than it
begins with. What fails is kept in ``--kept`` to be looked at; once mended, it belongs into ``tests/fuzz/corpus``.
Several processes share the work: ``--part 0/2`` and ``--part 1/2``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import configs, evidence, files
from tests.fuzz.judge import LONGEST, SECONDS, bound_memory, peak_megabytes, verdict

WARM = "".join(
    [
        configs.HEAD,
        'metrics = ["auroc"]\n',
        configs.DATA,
        '[algorithm]\nname = "fedavg"\n',
        configs.LOCAL,
        configs.PARTS[8],
    ]
).encode()


def tried(kind: str, content: bytes, path: Path) -> str | None:
    """Write a file and have it read; return what its reader did wrong."""
    path.write_bytes(content)
    read = configs.read if kind == "configs" else files.READERS[kind]
    return verdict(lambda: read(path))


COMMANDS = {
    "configs": ("run f.toml --show-config", "f.toml"),
    "npz": ("data describe f.npz", "f.npz"),
    "csv": ("data describe f.csv", "f.csv"),
    "parquet": ("data describe f.parquet", "f.parquet"),
    "table": ("data check f.csv --schema schema.toml", "f.csv"),
    "schema": ("data check g.csv --schema f.toml", "f.toml"),
    "ledger": ("privacy ledger f", "f"),
}
"""What the real command is asked about a file of each kind, and what that file is called."""


def of_command(kind: str, content: bytes, folder: Path) -> str | None:
    """Have the real command read a file, in a process of its own; return what it did wrong."""
    words, name = COMMANDS[kind]
    (folder / "schema.toml").write_text(files.SCHEMA)
    (folder / "g.csv").write_text(files.TABLE)
    (folder / name).write_bytes(content)
    command = [sys.executable, "-m", "upcycled", *words.split()]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=6 * SECONDS)  # it loads torch, too
    except subprocess.TimeoutExpired:
        return "TooLong"
    said = done.stderr.decode(errors="replace")
    if done.returncode not in (0, 2) or "Traceback" in said:
        return f"exit code {done.returncode}: {said[-500:]}"
    is_one = said.startswith("error: ") and said.count("\n") == 1 and len(said) < LONGEST + 10
    is_list = not said and "check" in words  # all problems at once, on standard output
    return None if done.returncode == 0 or is_one or is_list else f"no sentence: {said[:500]!r}"


def forge(places: range, seed: int) -> int:
    """Forge evidence folders, and say how far each kind of forgery came."""
    came: Counter[str] = Counter()
    wrong = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for place in places:
            case, made = evidence.forged(place, seed)
            how, why = evidence.wrong_of(case, made, Path(folder))
            came[how] += 1
            if why is not None:
                wrong += 1
                print(f"{place} ({case.name}): {why}", flush=True)
    how_many = ", ".join(f"{count} {how}" for how, count in sorted(came.items()))
    print(f"{len(places)} forged folders in {time.monotonic() - began:.0f} s, seed {seed}: {how_many}; {wrong} wrong")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["configs", "files", "commands", "evidence"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="of how many processes this is which (default: 0/1)")
    parser.add_argument("--memory", type=int, default=1000, metavar="MB")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-found")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    if args.what == "evidence":
        return forge(range(part, args.count, parts), args.seed)
    kinds = {
        "files": files.kinds(),
        "configs": ["configs"],
        "commands": ["configs" if i % 2 else kind for kind in COMMANDS if kind != "configs" for i in range(2)],
    }[args.what]
    found: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        paths = {kind: Path(folder, f"f{files.SUFFIXES.get(kind, '')}") for kind in kinds} | {
            "configs": Path(folder, "f.toml")
        }
        if args.what != "commands":  # what is imported when it is first needed is no reader's time
            for kind in kinds:
                tried(kind, WARM if kind == "configs" else files.good_files()[kind], paths[kind])
        bound_memory(args.memory)
        before = peak_megabytes()
        for place in range(part, args.count, parts):
            kind = kinds[place // parts % len(kinds)]
            is_config = kind == "configs"
            content = configs.text_of(place, args.seed) if is_config else files.content_of(kind, place, args.seed)
            for _ in range(2):  # a machine may stop a process for a while: what hangs, hangs again
                if args.what == "commands":
                    wrong = of_command(kind, content, Path(folder))
                else:
                    wrong = tried(kind, content, paths[kind])
                if wrong is None or not wrong.startswith("TooLong"):
                    break
            if wrong is not None:
                if not found[f"{kind}: {wrong}"]:
                    args.kept.mkdir(exist_ok=True)
                    (args.kept / f"{kind}-{hashlib.sha256(content).hexdigest()[:12]}").write_bytes(content)
                    print(f"{kind} {place}: {wrong}", flush=True)
                found[f"{kind}: {wrong}"] += 1
            if sys.stderr.isatty() or args.what == "commands":  # which take seconds each
                print(f"\r{place + 1} of {args.count}", end="", file=sys.stderr, flush=True)
    seconds, tries = time.monotonic() - began, len(range(part, args.count, parts))
    print(
        f"{tries} {args.what} in {seconds:.0f} s, seed {args.seed}, part {args.part}: {found.total()} went wrong in "
        f"{len(found)} ways; memory grew by {peak_megabytes() - before:.0f} MB to {peak_megabytes():.0f} MB at most"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

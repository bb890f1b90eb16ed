"""Fuzz the package at length; the default suite tries a few hundred of the same files.

    python -m tests.fuzz configs --count 100000 --seed 0
    python -m tests.fuzz files --count 10000
    python -m tests.fuzz commands --count 500

Each input must be taken, or refused in one sentence, within 10 s; the process may have 1,000 MB more than it begins
with. What fails is kept in ``--kept`` to be looked at; once mended, it belongs into ``tests/fuzz/corpus``. Several
processes share the work: ``--part 0/2`` and ``--part 1/2``.
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

from tests.fuzz import configs, files
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


def of_command(content: bytes, folder: Path) -> str | None:
    """Have the real command read a file, in a process of its own; return what it did wrong."""
    (folder / "f.toml").write_bytes(content)
    words = [sys.executable, "-m", "upcycled", "run", "f.toml", "--show-config"]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=6 * SECONDS)  # it loads torch, too
    except subprocess.TimeoutExpired:
        return "TooLong"
    said = done.stderr.decode(errors="replace")
    if done.returncode not in (0, 2) or "Traceback" in said:
        return f"exit code {done.returncode}: {said[-500:]}"
    is_one = said.startswith("error: ") and said.count("\n") == 1 and len(said) < LONGEST + 10
    return None if done.returncode == 0 or is_one else f"no sentence: {said[:500]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["configs", "files", "commands"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="of how many processes this is which (default: 0/1)")
    parser.add_argument("--memory", type=int, default=1000, metavar="MB")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-found")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    kinds = files.kinds() if args.what == "files" else [args.what]
    found: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for kind in (
            kinds if args.what != "commands" else ()
        ):  # what is imported when it is first needed is no reader's time
            tried(
                kind, (files.good_files() | {"configs": WARM})[kind], Path(folder, f"f{files.SUFFIXES.get(kind, '')}")
            )
        bound_memory(args.memory)
        before = peak_megabytes()
        for place in range(part, args.count, parts):
            kind = kinds[place // parts % len(kinds)]
            if args.what == "files":
                content = files.content_of(kind, place, args.seed)
                wrong = tried(kind, content, Path(folder, f"f{files.SUFFIXES.get(kind, '')}"))
            else:
                content = configs.text_of(place, args.seed)
                wrong = (
                    of_command(content, Path(folder))
                    if kind == "commands"
                    else tried(kind, content, Path(folder, "f.toml"))
                )
            if wrong is not None:
                if not found[f"{kind}: {wrong}"]:
                    args.kept.mkdir(exist_ok=True)
                    (args.kept / f"{kind}-{hashlib.sha256(content).hexdigest()[:12]}").write_bytes(content)
                    print(f"{kind} {place}: {wrong}", flush=True)
                found[f"{kind}: {wrong}"] += 1
    seconds, tries = time.monotonic() - began, len(range(part, args.count, parts))
    print(
        f"{tries} {args.what} in {seconds:.0f} s, seed {args.seed}, part {args.part}: {found.total()} went wrong in "
        f"{len(found)} ways; memory grew by {peak_megabytes() - before:.0f} MB to {peak_megabytes():.0f} MB at most"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

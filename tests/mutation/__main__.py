"""``python -m tests.mutation RESULTS``: try seeded mutants, each against the tests of its room.

RESULTS is a file of JSON lines; what stands in it is not tried again. A mutant is compiled in the place of its module
in a forked process that runs pytest; no file changes. Tests that start other processes see the sound module there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from tests.mutation.mutants import Mutant, drawn, mutated

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "upcycled"
# Where a wrong number would be a wrong promise, or a wrong round; what is tried first, and what survivors meet then.
ACCOUNTING = ("accounting_*", "tilted_renyi", "joint", "objective_cover", "gaussian_objective")
LEDGER = (
    "ledger",
    "ledger_file",
    "ledger_read",
    "ledger_evidence",
    "joint",
    "accounts",
    "plain_words",
    "charged_scores",
)
SPENDING = (
    "tests/privacy",
    "tests/auditing",
    "tests/cli/test_privacy_command.py",
    "tests/experiments/test_private_files.py",
    "tests/experiments/test_old_results.py",
    "tests/runtime/test_checkpoint_refusals.py",
)
WATCHED = {
    "core/strategy.py": (
        ("tests/core/test_strategy.py", "tests/contracts/test_rules.py", "tests/coefficients"),
        ("tests/golden", "tests/contracts/test_algorithms.py", "tests/runtime", "tests/aggregators"),
    ),
    "runtime/round.py": (
        ("tests/runtime/test_round.py", "tests/privacy/test_adaptive_clipping.py", "tests/aggregators",
         "tests/coefficients/test_rules.py", "tests/runtime/test_batch_norm.py"),
        ("tests/golden", "tests/contracts", "tests/runtime", "tests/privacy", "tests/flower"),
    ),
    "privacy/ledger/*.py": (tuple(f"tests/privacy/test_{name}.py" for name in LEDGER), SPENDING),
    "privacy/accounting/*.py": (tuple(f"tests/privacy/test_{name}.py" for name in ACCOUNTING), SPENDING),
}  # fmt: skip
MOST_CPU, MOST_WALL = 90, 180  # seconds for one mutant; more means that it does not end


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="try survivors again, against more tests")
    options = parser.parse_args()
    tried = _read(options.results)
    _load()
    for pattern in WATCHED:
        sound = Mutant(min(PACKAGE.glob(pattern)).relative_to(ROOT).as_posix(), None, 0, 0, "", "")
        outcome, detail = _outcome(sound, _tests_of(sound, options.again))
        if outcome != "survived":
            print(f"the sound {pattern} fails: {detail}")
            return 1
    for mutant in chosen_mutants(options.count, options.seed):
        before = tried.get(mutant.name)
        if before is not None and not (options.again and before == "survived"):
            continue
        chosen = _tests_of(mutant, options.again)
        started = time.monotonic()
        outcome, detail = _outcome(mutant, chosen)
        row = {"mutant": mutant.name, "number": mutant.number, "outcome": outcome,
               "seconds": round(time.monotonic() - started, 1), "by": detail}  # fmt: skip
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{outcome:9s} {row['seconds']:6.1f} s {mutant.name}", flush=True)
    last = _read(options.results)
    print({kind: sum(value == kind for value in last.values()) for kind in sorted(set(last.values()))})
    return 0


def chosen_mutants(count: int, seed: int) -> list[Mutant]:
    """Draw as many of each room as of any other, or all that it has; the last makes up for what others lack."""
    found: list[Mutant] = []
    for i, pattern in enumerate(WATCHED):
        share = (count - len(found)) // (len(WATCHED) - i)
        found += drawn(sorted(PACKAGE.glob(pattern)), ROOT, share, seed)
    return random.Random(seed).sample(found, len(found))


def _read(path: Path) -> dict[str, str]:
    """Return the last outcome of every mutant that was tried."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["mutant"]: row["outcome"] for row in rows}


def _tests_of(mutant: Mutant, is_again: bool) -> list[str]:
    """Return the files of tests that are run against it."""
    first, then = next(tests for pattern, tests in WATCHED.items() if (ROOT / mutant.path) in PACKAGE.glob(pattern))
    patterns = (*first, *then) if is_again else first
    return list(dict.fromkeys(path.relative_to(ROOT).as_posix() for one in patterns for path in sorted(ROOT.glob(one))))


def _load() -> None:
    """Import what takes long and is not under test, so that a forked process has it."""
    import dp_accounting
    import numba
    import numpy as np
    import pydantic
    import pytest
    import scipy.optimize
    import scipy.stats
    import torch

    _ = dp_accounting, numba, np, pydantic, pytest, scipy.optimize, scipy.stats, torch


def _outcome(mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """Run the tests against the mutant in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_in_child(mutant, tests, writing)
    os.close(writing)
    # Counted in naps and not by the clock: time in which everything is stopped does not count.
    for _ in range(MOST_WALL * 10):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        return "killed", "it does not end"
    with os.fdopen(reading, "rb") as pipe:
        detail = pipe.read().decode()
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "survived", ""
    if code in (4, 5):  # pytest's words for a wrong call and for no tests
        return "untested", detail
    return "killed", detail if code > 0 else f"signal {-code}"


def _run_in_child(mutant: Mutant, tests: list[str], writing: int) -> None:
    code = 3
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU + 5))
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(sink, stream)
        module = "upcycled." + mutant.path.removeprefix("src/upcycled/").removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, Swap(module.removesuffix(".__init__"), ROOT / mutant.path, mutant.number))
        os.chdir(ROOT)
        import pytest

        seen = Failures()
        with contextlib.redirect_stdout(io.StringIO()):
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[seen]))
        os.write(writing, (seen.first or "").encode()[:2000])
    except BaseException as error:
        os.write(writing, repr(error).encode()[:2000])
    finally:
        os._exit(code)


class Failures:
    """A plugin that remembers which test failed first."""

    first: str | None = None

    def pytest_runtest_logreport(self, report) -> None:  # type: ignore[no-untyped-def]
        if report.failed and self.first is None:
            self.first = report.nodeid

    def pytest_collectreport(self, report) -> None:  # type: ignore[no-untyped-def]
        if report.failed and self.first is None:
            self.first = f"collecting {report.nodeid}"


class Swap(importlib.machinery.SourceFileLoader):
    """A finder and loader that gives the mutant in the place of its module."""

    def __init__(self, module: str, path: Path, number: int | None) -> None:
        super().__init__(module, str(path))
        self.number = number

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        within = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=within)

    def get_code(self, fullname: str):  # type: ignore[no-untyped-def]
        return compile(mutated(Path(self.path), self.number), self.path, "exec", dont_inherit=True)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.mutation RESULTS``: try seeded mutants, each against the tests of its room.

RESULTS is a file of JSON lines; what stands in it is not tried again. Tests are collected once. For each mutant a
forked process gives a function that is already loaded other code, or, if the mutant lies outside of functions, loads
its module anew where nothing was loaded; no file changes. Tests that start processes see the sound module there.

``--stored EARLIER`` tries the mutants of an earlier RESULTS instead: the same edits of the same functions, wherever
they are now, each first against the test that killed it then. ``stored.jsonl`` beside this file is such a file.

Hand-written mutants, and what catches each, are in ``planted.py``: ``python -m tests.mutation.planted``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.mutants import Edit, Mutant, drawn, found_again
from tests.mutation.swapping import load_anew, outside_of_functions, replace_code

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "upcycled"
# Where a wrong number would be a wrong promise, or a wrong round: what is tried first, and what survivors meet then.
ACCOUNTING = ("accounting_*", "joint", "objective_cover")
LEDGER = ("ledger", "ledger_file", "ledger_read", "ledger_evidence", "joint", "accounts", "plain_words", "charged_*")
SPENDING = (
    "tests/privacy/test_*.py",
    "tests/audit/test_*.py",
    "tests/cli/test_privacy_command.py",
    "tests/experiments/test_private_files.py",
    "tests/training/test_checkpoint_refusals.py",
)
WATCHED = {
    "core/upcycling.py": (
        ("tests/core/test_strategy.py", "tests/contracts/test_rules.py", "tests/coefficients/test_*.py"),
        ("tests/golden/test_*.py", "tests/contracts/test_*.py", "tests/training/test_*.py", "tests/aggregators/*.py"),
    ),
    "training/round.py": (
        (
            "tests/training/test_round.py",
            "tests/privacy/test_adaptive_clipping.py",
            "tests/aggregators/test_*.py",
            "tests/coefficients/test_rules.py",
            "tests/training/test_batch_norm.py",
        ),
        ("tests/golden/test_*.py", "tests/contracts/test_*.py", "tests/training/test_*.py", "tests/privacy/test_*.py"),
    ),
    "privacy/ledger/*.py": (tuple(f"tests/privacy/test_{name}.py" for name in LEDGER), SPENDING),
    "privacy/accounting/*.py": (tuple(f"tests/privacy/test_{name}.py" for name in ACCOUNTING), SPENDING),
}
CASE = pytest.StashKey[int]()
FEW, FIRST = 2, 25  # cases of a test that come first; tests that are tried at first
MOST_CPU, MOST_NAPS = 240, 12000  # seconds, and tenths of a second, for one mutant; more means that it does not end
ENOUGH_CPU = 60  # seconds after which no further test is begun: what so many tests did not notice survived


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="try survivors again, against more tests")
    parser.add_argument("--contexts", type=Path, help="coverage data that tell which tests reach a line")
    parser.add_argument("--stored", type=Path, help="results of an earlier commit, whose mutants are tried here")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help="every OF-th of them")
    options = parser.parse_args()
    tried = read(options.results)
    killers = {} if options.stored is None else stored_mutants(options.stored)
    every = list(killers) if killers else chosen_mutants(options.count, options.seed)
    left = [
        mutant
        for mutant in every[options.part[0] :: options.part[1]]
        if mutant.name not in tried or (options.again and tried[mutant.name] == "survived")
    ]
    outside = [mutant for mutant in left if outside_of_functions(ROOT / mutant.path, mutant.number)]
    inside = [mutant for mutant in left if mutant not in outside]
    os.chdir(ROOT)
    if inside and not (child := os.fork()):  # this process stays one that has not loaded the package
        reached = None if options.contexts is None else Reached(options.contexts)
        files = sorted({file for mutant in inside for file in tests_of(mutant, options.again)})
        files = files if reached is None else sorted(reached.files)
        files = ["tests"] if killers else files
        plugin = EachInFork(inside, options.results, options.again, reached, killers)
        os._exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[plugin]))
    if inside and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) not in (0, 5):
        return 1
    for mutant in outside:
        note(options.results, mutant, *in_fork(lambda one=mutant: tested_anew(one, tests_of(one, options.again))))
    print(dict(Counter(read(options.results).values())))
    return 0


def stored_mutants(path: Path) -> dict[Mutant, str]:
    """Return the mutants of an earlier file of results as they are now, each with the test that killed it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    before = {Edit(*(row[name] for name in Edit._fields)): row for row in rows}
    now = found_again(before, sorted(PACKAGE.rglob("*.py")), ROOT)
    for edit, mutant in now.items():
        if mutant is None:
            print(f"gone ({before[edit]['outcome']} before): {edit.function}: {edit.before!r} -> {edit.after!r}")
    return {mutant: before[edit]["by"] for edit, mutant in now.items() if mutant is not None}


def chosen_mutants(count: int, seed: int) -> list[Mutant]:
    """Draw as many of each room as of any other, or all that it has; the last makes up for what others lack."""
    found: list[Mutant] = []
    for i, pattern in enumerate(WATCHED):
        share = (count - len(found)) // (len(WATCHED) - i)
        found += drawn(sorted(PACKAGE.glob(pattern)), ROOT, share, seed)
    return random.Random(seed).sample(found, len(found))


def tests_of(mutant: Mutant, is_again: bool) -> list[str]:
    """Return the files of tests that are run against it."""
    rooms = (tests for pattern, tests in WATCHED.items() if ROOT / mutant.path in PACKAGE.glob(pattern))
    first, then = next(rooms, ((), ()))
    patterns = (*first, *then) if is_again else first
    return list(dict.fromkeys(path.relative_to(ROOT).as_posix() for one in patterns for path in sorted(ROOT.glob(one))))


def read(path: Path) -> dict[str, str]:
    """Return the last outcome of every mutant that was tried."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["mutant"]: row["outcome"] for row in rows}


def note(results: Path, mutant: Mutant, outcome: str, by: str) -> None:
    row = {"mutant": mutant.name, **mutant.edit._asdict(), "outcome": outcome, "by": by}
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    sys.__stdout__.write(f"{time.strftime('%H:%M:%S')} {outcome:9s} {mutant.name}\n")
    sys.__stdout__.flush()


def in_fork(work, most_cpu: int = MOST_CPU) -> tuple[str, str]:
    """Return how a mutant fared, and why: ``work`` gives the name of a test that fails, and how many were run."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (most_cpu, most_cpu + 5))
            sink = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(sink, stream)
            with contextlib.redirect_stdout(io.StringIO()):
                failed, run = work()
            os.write(writing, (f"survived\n{run}" if failed is None else f"killed\n{failed}").encode()[:2000])
        except BaseException as error:  # of ours: a test's own is seen by pytest
            os.write(writing, f"unknown\n{error!r}".encode()[:2000])
        finally:
            os._exit(0)
    os.close(writing)
    # Counted in naps and not by the clock: time in which everything is stopped does not count.
    for _ in range(MOST_NAPS):
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        outcome, _, by = pipe.read().decode().partition("\n")
    return (outcome, by) if outcome else ("killed", "it does not end")


def tested_anew(mutant: Mutant, files: list[str]) -> tuple[str | None, str]:
    """Run tests in this process, which has not loaded the package, with the mutant in the place of its module."""
    load_anew(PACKAGE, ROOT / mutant.path, mutant.number)
    seen = First()
    pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[seen])
    return seen.name, f"all tests of {len(files)} files"


class First:
    """Remembers what failed first."""

    name: str | None = None

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.failed and self.name is None:
            self.name = f"collecting {report.nodeid}"


class EachInFork:
    """In the place of pytest's loop over tests: for each mutant a forked process that has this very session."""

    def __init__(
        self, mutants: list[Mutant], results: Path, is_again: bool, reached: Reached | None, known: dict[Mutant, str]
    ) -> None:
        self.mutants, self.results, self.is_again, self.reached, self.known = mutants, results, is_again, reached, known
        self.killers: Counter[tuple[str, str]] = Counter()

    def pytest_runtestloop(self, session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} files cannot be collected")
        for mutant in self.mutants:
            outcome, by = in_fork(lambda one=mutant: self.failing(session, one))
            self.killers[mutant.path, by] += 1
            note(self.results, mutant, outcome, by)
        # A test that fails without any mutant has found nothing.
        found = {by for _, by in self.killers}
        killers = [item for item in session.items if item.nodeid in found]
        outcome, by = in_fork(lambda: first_failing(session, killers), most_cpu=10 * MOST_CPU)
        if outcome != "survived":
            raise session.Interrupted(f"{by} fails with the sound modules, too")
        return True

    def failing(self, session: pytest.Session, mutant: Mutant) -> tuple[str | None, str]:
        """Return the first test that fails with the mutant in this process, and how many were run."""
        replace_code(PACKAGE, ROOT / mutant.path, mutant.number)
        return first_failing(session, self.chosen(session.items, mutant), ENOUGH_CPU)

    def chosen(self, items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """Return the tests for a mutant: first those that found others, and those that reach little else."""
        first = [item for item in items if self.known and is_same_test(item.nodeid, self.known[mutant])]
        return first + [item for item in self.near(items, mutant) if item not in first]

    def near(self, items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        known = self.killers
        if self.reached is None:
            files = {file: i for i, file in enumerate(tests_of(mutant, self.is_again))}
            found = [item for item in items if item.nodeid.partition("::")[0] in files]
            return sorted(
                found, key=lambda one: (-known[mutant.path, one.nodeid], files[one.nodeid.partition("::")[0]])
            )
        tests, width = self.reached.tests_of(mutant), self.reached.width[mutant.path]
        found = [item for item in items if item.nodeid in tests]
        found.sort(key=lambda one: (-known[mutant.path, one.nodeid], width[one.nodeid]))
        cases: Counter[str] = Counter()
        for item in found:
            cases[item.nodeid.partition("[")[0]] += 1
            item.stash[CASE] = cases[item.nodeid.partition("[")[0]]
        found.sort(key=lambda one: one.stash[CASE] > FEW)  # a few cases of each test before all cases of one
        return found if self.is_again else found[:FIRST]


def is_same_test(nodeid: str, before: str) -> bool:
    """Tell whether a test is the one of this id, though its file may have moved."""
    return nodeid.partition("::")[2] == before.partition("::")[2] != ""


def first_failing(
    session: pytest.Session, chosen: list[pytest.Item], enough: float = math.inf
) -> tuple[str | None, str]:
    seen, run = First(), 0
    session.config.pluginmanager.register(seen)
    for item, then in zip(chosen, [*chosen[1:], None], strict=True):
        run += 1
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
        if seen.name is not None or sum(os.times()[:4]) > enough:
            break
    return seen.name, f"{run} of {len(chosen)} tests"


class Reached:
    """Which tests reach which lines, by coverage data with a context for each test."""

    def __init__(self, path: Path) -> None:
        import coverage

        data = coverage.CoverageData(str(path))
        data.read()
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.width: dict[str, Counter[str]] = {}
        self.files: set[str] = set()
        for measured in data.measured_files():
            name = "src/upcycled/" + measured.rpartition("/src/upcycled/")[2]
            lines = {
                line: {one.rpartition("|")[0] for one in contexts if "::" in one}
                for line, contexts in data.contexts_by_lineno(measured).items()
            }
            self.lines[name] = lines
            self.width[name] = Counter(test for tests in lines.values() for test in tests)
            self.files |= {test.partition("::")[0] for test in self.width[name]}
        if not self.files:
            raise SystemExit(f"{path} has no contexts of tests")

    def tests_of(self, mutant: Mutant) -> set[str]:
        """Return the tests that reach its line, or, inside of an expression of many lines, the one before it."""
        lines = self.lines[mutant.path]
        at = max((line for line, tests in lines.items() if line <= mutant.line and tests), default=None)
        return set() if at is None else lines[at]


if __name__ == "__main__":
    sys.exit(main())

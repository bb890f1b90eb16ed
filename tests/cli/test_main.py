"""The command as a whole: exit codes, help, unknown commands, and what importing it costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import upcycled
from tests.experiments.small import small_file
from tests.wording import has_all, only_line
from upcycled.cli import main as main_module
from upcycled.cli.main import COMMANDS, main
from upcycled.core.errors import DivergedError, UpcycledError

SOURCE = Path(upcycled.__file__).parent


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"upcycled {upcycled.__version__}\n"


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_is_everywhere_and_gives_an_example(words, capsys):
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: {' '.join(['upcycled', *words])}")
    if words != ["data"]:
        assert "examples:\n  upcycled " in out


def test_no_command_shows_the_help_and_is_wrong_use(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: upcycled" in err


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert main(["rnu", "a.toml"]) == 2
    assert has_all(
        only_line(capsys.readouterr().err), "error", "command 'rnu'", "did you mean 'run'?", f"{', '.join(COMMANDS)})"
    )


def test_an_unknown_option_is_wrong_use(capsys):
    assert main(["run", "a.toml", "--jsno"]) == 2
    assert has_all(capsys.readouterr().err, "'--jsno'", "command")
    assert main(["demo", "--rounds", "many"]) == 2
    assert has_all(capsys.readouterr().err, "invalid", "'many'")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DivergedError("the run diverged\nafter iteration 3"), 1, "iteration 3"),
        (UpcycledError("something else"), 1, "something else"),
        (MemoryError(), 1, "enough memory"),
        (KeyboardInterrupt(), 130, r"stopped.*Ctrl-C"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_is_one_sentence_and_its_exit_code(error, code, words, capsys, monkeypatch):
    def fail(words):
        raise error

    monkeypatch.setattr(main_module, "_dispatch", fail)
    assert main(["demo"]) == code
    err = capsys.readouterr().err
    assert re.search(words, err)
    assert err.count("\n") == 1


def command(*words, folder, **options):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900, **options)


def test_the_module_runs_a_file_and_exits_with_0(tmp_path):
    small_file(tmp_path)
    done = command(sys.executable, "-m", "upcycled", "run", "small.toml", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seeds"][1]["status"] == "finished"
    assert (tmp_path / "results" / "small" / "seed-1" / "summary.json").exists()


def test_the_installed_command_answers_a_wrong_file_with_2_and_no_traceback(tmp_path):
    small_file(tmp_path, ("mu = 0.5", "mu = -0.5"))
    script = Path(sys.executable).with_name("upcycled")
    done = command(str(script), "run", "small.toml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: small.toml: algorithm.mu is -0.5, but it must be a finite number >= 0\n"


@pytest.mark.slow
@pytest.mark.parametrize(("end", "unbuffered"), [("small.toml --show-config", ""), ("a.toml --help", ""),
                                                   ("small.toml --show-config", "1")])  # fmt: skip
def test_a_reader_that_goes_away_is_not_a_traceback(tmp_path, monkeypatch, end, unbuffered):
    # Buffered, output meets the closed pipe only when the buffer is emptied.
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    small_file(tmp_path)
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "upcycled", "run", *end.split()]
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(words, cwd=tmp_path, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=900)
    assert done.returncode == 1
    assert done.stderr == ""


OWN = {"upcycled", "upcycled.__main__", "upcycled.cli", "upcycled.core", "upcycled.core.errors", "upcycled._utils"} | {
    ".".join(["upcycled", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    for path in (SOURCE / "cli").rglob("*.py")
}
OWN |= {"upcycled._utils.messages"}
SLOW_OF_PYTHON = {"asyncio", "email", "http", "importlib.metadata", "logging", "multiprocessing", "unittest"}


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("import upcycled", {"upcycled"}),
        ("import upcycled; dir(upcycled), upcycled.__version__", {"upcycled"}),
        ("from upcycled.cli.main import main; main(['--help'])", OWN | {"upcycled._utils.formats"}),
        ("from upcycled.cli.main import main; main(['run', '--help'])", OWN | {"upcycled._utils.formats"}),
        ("from upcycled.cli.main import main; main(['rnu'])", OWN | {"upcycled._utils.formats"}),
    ],
)
def test_the_first_second_imports_nothing_but_the_command_and_the_standard_library(tmp_path, words, own):
    # Instead of a clock: all that takes long is in other people's packages, and in the package's own rooms.
    script = f"""
import sys
before = set(sys.modules)  # what the interpreter itself starts with, hooks of installed packages included
{words}
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""
    done = command(sys.executable, "-c", script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = set(done.stderr.splitlines()[-1].split())
    others = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    assert "upcycled" in others
    assert others <= own | {"lazy_loader"}
    assert not found & SLOW_OF_PYTHON

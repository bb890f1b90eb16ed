"""A shell that asks what may come next gets an answer, from the installed command, with the extra ``completion``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from upcycled.cli.main import COMMANDS

pytest.importorskip("argcomplete", reason="the extra `completion` is not installed")
SCRIPT = Path(sys.executable).with_name("upcycled")


def completions(line, folder):
    """What the command writes where argcomplete's shell code reads it."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer")}
    done = subprocess.run(
        [str(SCRIPT)], cwd=folder, env=os.environ | asked, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return set((folder / "answer").read_text().split("\n"))


def test_commands_options_and_files_are_completed(tmp_path):
    (tmp_path / "study.toml").touch()
    assert completions("upcycled ", tmp_path) >= set(COMMANDS)
    assert completions("upcycled privacy ac", tmp_path) == {"account"}
    assert completions("upcycled run --sho", tmp_path) == {"--show-config"}
    assert "study.toml" in completions("upcycled run st", tmp_path)


def test_without_the_extra_the_command_goes_on_as_if_not_asked(tmp_path):
    (tmp_path / "argcomplete.py").write_text("raise ImportError\n")
    without = os.environ | {"_ARGCOMPLETE": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([str(SCRIPT), "--version"], env=without, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("upcycled ")

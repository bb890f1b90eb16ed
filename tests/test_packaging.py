"""What stands around the package: citation, platforms, templates, help. The wheel itself: ``.ci/small_install``."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import upcycled as up
from upcycled.cli.main import COMMANDS, _is_override, _parser

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLATFORMS = (ROOT / "docs" / "stability.md").read_text().split("## Platforms")[1]


def minors(text):
    return {tuple(map(int, found)) for found in re.findall(r"\b(3)\.(\d+)\b", text)}


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", text, flags=re.MULTILINE) == [up.__version__]
    assert "Federated Learning with Reduced Information Leakage and Computation" in text


def test_the_installed_range_of_flower_is_the_tested_one():
    from upcycled.federation.transport import REQUIREMENT

    assert PROJECT["optional-dependencies"]["flower"] == [REQUIREMENT]
    assert REQUIREMENT.removeprefix("flwr") in PLATFORMS


def test_the_statement_of_platforms_is_that_of_the_package_and_of_this_run():
    promised = minors(PLATFORMS.split("is what the tests run on")[0])
    assert promised == minors(" ".join(PROJECT["classifiers"]))
    assert sys.version_info[:2] in promised, "say in docs/stability.md and in the classifiers that tests run on it"
    assert min(promised) == min(minors(PROJECT["requires-python"]))
    torch = next(words for words in PROJECT["dependencies"] if words.startswith("torch"))
    lock = re.search(r"^torch==(\d+\.\d+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1]
    assert f"{torch.removeprefix('torch>=')} or newer by declaration; {lock} in the tests" in PLATFORMS


def every_command(parser, *words):
    """Return every command there is, and those below it, with their pages."""
    for action in parser._actions:
        for word, below in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            yield " ".join((*words, word)), below.format_help()
            yield from every_command(below, *words, word)


def test_the_help_of_every_command_ends_in_examples_of_it_that_the_command_line_knows():
    pages = dict(every_command(_parser()))
    assert pages.keys() >= {*COMMANDS, "data check", "privacy epsilon gaussian", "federation init"}
    for command, page in pages.items():
        examples = re.findall(r"^  (upcycled .*?)(?: {2,}.*)?$", page.partition("examples:\n")[2], flags=re.MULTILINE)
        own = [line for line in examples if f"{line} ".startswith(f"upcycled {command} ")]
        assert own, f"upcycled {command} --help has no example"
        for line in examples:
            _, rest = _parser().parse_known_args(shlex.split(line)[1:])
            assert all(_is_override(word) for word in rest), line


def test_the_issue_templates_are_forms():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert form["name"]
            assert form["description"]
            assert all(part["type"] in ("markdown", "textarea", "input") for part in form["body"])
            assert all("label" in part["attributes"] for part in form["body"] if part["type"] != "markdown")

"""Every example and command of the documentation is run or parsed, in order, as a reader would."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import upcycled as up

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("data", "models", "privacy", "tables", "theory", "training"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    patients(tmp_path / "patients.csv")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names = {"up": up, "data": up.data.synthetic("iid", clients=4, sizes=200, seed=0)}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out.strip()


WALKED = ["docs/index.md", "docs/concepts.md", *(f"docs/howto/{path.name}" for path in ROOT.glob("docs/howto/*.md"))]
MADE = {"docs/reference/index.md", "docs/changelog.md"}
"""Pages that are there on the site alone, made by website/hooks.py."""
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)
HEAVY = {
    "docs/howto/torch-model.md",
    "docs/howto/private-run.md",
    "docs/howto/sweep.md",
    "docs/howto/csv.md",
    "docs/index.md",
}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in HEAVY else ()) for page in sorted(WALKED)]
)
def test_a_reader_who_does_all_that_a_page_says_gets_through(page, tmp_path, monkeypatch, capsys):
    """Files with a title are written, Python is run, commands are given, in the order of the page."""
    from upcycled.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names, done = {}, 0
    for language, title, block in FENCE.findall((ROOT / page).read_text()):
        if title == "patients.csv":
            patients(tmp_path / title)
        elif title:
            assert language in ("python", "toml"), f"{title} of {page} is written by nobody"
            (tmp_path / title).write_text(block)
        elif language == "python":
            exec(compile(block, page, "exec"), names)
            done += 1
        elif language == "bash":
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                assert words[0] == "upcycled"
                assert main(words[1:]) == 0, f"{line}: {capsys.readouterr().err}"
                done += 1
        else:
            raise AssertionError(f"a block of {page} is {language}, which nobody runs")
    for path in tmp_path.glob("*.py"):  # the next page may have a module of the same name
        sys.modules.pop(path.stem, None)
    assert done
    assert capsys.readouterr().out.strip()


def patients(path):
    rng = np.random.default_rng(0)
    rows = [f"{'abc'[i % 3]},{x:.3f},{y:.3f},{int(x > y)}" for i, (x, y) in enumerate(rng.normal(size=(60, 2)))]
    path.write_text("hospital,age,dose,diagnosis\n" + "\n".join(rows) + "\n")


def test_the_experiment_file_of_the_page_on_tables_is_one(tmp_path, monkeypatch):
    from upcycled.config.experiment import load_config

    text = (ROOT / "docs" / "tables.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "run.toml").write_text(block)
    (schema,) = re.findall(r'schema.toml"\).write_text\("""\n(.*?)"""', text, flags=re.DOTALL)
    (tmp_path / "schema.toml").write_text(schema)
    experiment = load_config(tmp_path / "run.toml")
    assert experiment.is_restricted
    assert experiment.resolved()["data"]["schema"]["columns"]["age"]["bounds"] == [0.0, 110.0]


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))],
)
def test_links_and_pictures_of_a_page_exist(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        aimed = ((ROOT / page).parent / target).resolve()
        if not target.startswith("http") and aimed.relative_to(ROOT).as_posix() not in MADE:
            assert aimed.exists(), f"{page} points to {target}"


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_commands_of_a_page_are_known_to_the_command_line_with_all_their_options(page):
    from upcycled.cli.main import _is_override, _parser

    # A comment begins at two spaces and a sign; what data fetch says of its sets begins at three spaces.
    lines = re.findall(r"^upcycled .*$", (ROOT / page).read_text(), flags=re.MULTILINE)
    for line in lines:
        words = shlex.split(re.split(r"\s{2,}", line)[0])
        try:
            _, rest = _parser().parse_known_args(words[1:])
        except SystemExit:
            pytest.fail(f"{page}: {line}")
        assert all(_is_override(word) for word in rest), f"{page}: {line}"

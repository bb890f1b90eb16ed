"""Every Python example of the documentation is run, in order, as a reader would."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import upcycled as up

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("data", "models", "privacy", "tables", "theory", "training"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{'abc'[i % 3]},{x:.3f},{y:.3f},{int(x > y)}" for i, (x, y) in enumerate(rng.normal(size=(60, 2)))]
    Path("patients.csv").write_text("hospital,age,dose,diagnosis\n" + "\n".join(rows) + "\n")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names = {"up": up, "data": up.data.synthetic("iid", clients=4, sizes=200, seed=0)}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", ["README.md"])
def test_tables_of_a_page_are_accepted_in_an_experiment_file(page):
    from upcycled.config.experiment import parse

    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    file = tomllib.loads((ROOT / "examples" / "compare.toml").read_text())
    for block in blocks:
        parse(file | tomllib.loads(block))


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
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))]
)
def test_links_and_pictures_of_a_page_exist(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))])
def test_commands_of_a_page_are_known_to_the_command_line(page):
    from upcycled.cli.main import main

    text = (ROOT / page).read_text()
    for command in set(re.findall(r"^upcycled ([a-z]+)", text, flags=re.MULTILINE)):
        assert main([command, "--help"]) == 0

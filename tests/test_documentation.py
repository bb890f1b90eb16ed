"""Every example and command of the documentation is run or parsed, in order, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from upcycled.cli.main import main

ROOT = Path(__file__).parents[1]
GUIDES = ("coefficients", "data", "models", "privacy", "reuse", "tables", "theory", "training")
PAGES = ["README.md", *(f"docs/{name}.md" for name in GUIDES)]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    patients(tmp_path / "patients.csv")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names = {"up": up, "data": up.data.synthetic("iid", clients=4, sizes=200, seed=0)}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out.strip() or "print(" not in "".join(blocks)


@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.filterwarnings("error")
def test_the_first_example_warns_of_nothing_with_any_noise(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert block.count('noise="seeded"') == 1
    names = {}
    exec(compile(block.replace('noise="seeded"', f'noise="{noise}"'), "README.md", "exec"), names)
    out, err = capsys.readouterr()
    assert re.fullmatch(r"\d\d\.\d%, 2400 messages\nepsilon 4\.000 at delta 1e-5\n", out)
    assert "warning" not in err
    assert not names["result"].notes


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


@pytest.mark.parametrize("page", ["docs/howto/own-mechanism.md", "docs/howto/private-run.md"])
def test_the_data_of_a_page_about_privacy_have_something_to_learn(page, tmp_path):
    """Where nearly all samples are of one class, any noise at all seems to cost nothing."""
    files = [block for language, _, block in FENCE.findall((ROOT / page).read_text()) if language == "toml"]
    made = re.findall(r"up\.data\.synthetic\(.*\)", (ROOT / page).read_text())
    assert (len(files), len(made)) == (1, 1)
    table = dict(tomllib.loads(files[0])["data"])
    assert table.pop("source") == "synthetic"
    told, shown = up.data.synthetic(table.pop("alpha"), **table), eval(made[0], {"up": up})
    assert np.array_equal(told.train.x, shown.train.x)  # the file's, and Python's
    shares = np.bincount(told.test.y) / told.test.num_rows
    assert shares.max() < 0.7


BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
COMMANDS = ["README.md", *(f"docs/{name}.md" for name in ("models", "privacy", "tables"))]
"""Pages whose commands a reader gives in a folder that has what they name."""
ELSEWHERE = {
    "pip install": ".ci/small_install, which installs the wheel into an environment of its own",
    "make demo": "tests/experiments/test_demo.py, and .ci/small_install",
    "upcycled data fetch": "tests/data/test_fetch.py, from a server of its own: the sets are half a gigabyte",
    "python -m studies.": "tests/studies",
    "upcycled federation": "tests/federation, over real processes",
    "upcycled privacy account show bern/site/bern/account": "tests/federation",
    "cat study/": "tests/federation",
    "upcycled predict results/net new.csv --allow my_net": "tests/cli/test_predict_command.py",
    "cd evidence && python verify.py --head TIP": "tests/audit/test_evidence.py: the tip differs from run to run",
}
"""Commands that no test of documentation gives, by their beginning, and where it is tested what they do."""


def commands_of(block):
    """Return the lines of a block that are commands: those after a dollar where there are some, else all of them."""
    lines = [re.split(r"\s{2,}#", line)[0].strip() for line in block.splitlines()]
    given = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    known = ("upcycled ", "make ", "pip ", "python ", "cd ", "cat ")
    return given or (lines if lines and all(line.startswith(known) for line in lines) else [])


def scene(page, folder):
    """Put what a page's commands name into a folder."""
    (folder / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "examples" / "proven-epsilon.toml").read_text().replace('"proven-epsilon"', '"NAME"')
    (folder / "experiment.toml").write_text(
        text.replace("iterations = 80", "iterations = 4").replace("[0, 1, 2, 3]", "[0]")
    )
    patients(folder / "patients.csv")
    if page == "docs/tables.md":
        rows = "patient,age,sex,admitted,creatinine\np1,70,f,2020-02-02,120\np2,,m,2021-03-04,80\n"
        (folder / "new.csv").write_text(rows)
    if page == "docs/models.md":
        pandas = pytest.importorskip("pandas")
        rows = (folder / "patients.csv").read_text()
        for number, name in enumerate("abc", start=1):
            rows = rows.replace(f"\n{name},", f"\nhospital-{number},")
        (folder / "patients.csv").write_text(rows)
        new = pandas.DataFrame({"patient": ["p1", "p2"], "age": [0.5, -0.5], "dose": [0.1, 0.2]})
        new.to_csv(folder / "listed.csv", index=False)
        new.drop(columns="patient").to_csv(folder / "new.csv", index=False)
        new.drop(columns="patient").to_parquet(folder / "new.parquet")
        (folder / "predicted.toml").write_text(PREDICTED)
        assert main(["run", "predicted.toml", "--quiet"]) == 0


PREDICTED = """\
name = "NAME"
iterations = 4

[data]
source = "csv"
path = "patients.csv"
client = "hospital"
label = "diagnosis"
label_names = ["0", "1"]

[algorithm]
name = "pfedme"
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", COMMANDS)
def test_a_reader_who_gives_all_commands_of_a_page_gets_through(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scene(page, tmp_path)
    names = {"up": up, "data": up.data.synthetic("iid", clients=4, sizes=200, seed=0)}
    given = 0
    for language, block in BLOCK.findall((ROOT / page).read_text()):
        if language == "python":
            exec(compile(block, page, "exec"), names)
            continue
        for line in commands_of(block):
            if line.startswith(tuple(ELSEWHERE)):
                continue
            if line.startswith("upcycled "):
                assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
            else:
                path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
                done = subprocess.run(line, shell=True, env=os.environ | {"PATH": path}, capture_output=True, text=True)
                assert done.returncode == 0, f"{line}: {done.stderr}"
            given += 1
    assert given


def test_every_block_of_every_page_is_run_by_a_test_or_says_where_it_is():
    """Blocks are code, commands or pictures of text; a page that is new, or a command, belongs into a list above."""
    pages = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
    ]
    for page in pages:
        if page in WALKED:
            continue
        for language, block in BLOCK.findall((ROOT / page).read_text()):
            if language == "python":
                assert page in PAGES, f"Python of {page} is run by nobody"
            elif language == "toml":
                assert page in FILES, f"a file of {page} is read by nobody"
            else:
                for line in commands_of(block):
                    assert page in COMMANDS or line.startswith(tuple(ELSEWHERE)), f"{page}: nobody gives {line}"


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


def test_the_experiment_file_of_the_page_on_training_is_one(tmp_path):
    from upcycled.config.experiment import load_config

    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), flags=re.DOTALL)
    rows = (ROOT / "examples" / "clinics.csv").read_text().replace("clinic,", "client,", 1)
    (tmp_path / "clinics.csv").write_text(rows)
    head, rest = 'name = "f"\niterations = 2\n', '\n[algorithm]\nname = "fedavg"\n'
    (tmp_path / "run.toml").write_text(head + block + rest)
    experiment = load_config(tmp_path / "run.toml")
    assert experiment.build_data().targets == "numbers"
    assert experiment.spec(0).local.epochs == 2


def test_the_sites_file_of_the_page_on_deployment_is_one(tmp_path):
    from upcycled.federation.site.policy import read_policy

    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), flags=re.DOTALL)
    (tmp_path / "policy.toml").write_text(block)
    policy = read_policy(tmp_path / "policy.toml")
    assert (policy.name, policy.privacy.least_noise, policy.account.epsilon) == ("bern", 2.0, 3.0)


FILES = ["docs/tables.md", "docs/training.md", "docs/deployment.md"]
"""Pages with a file that a test above reads."""


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
    lines = re.findall(r"^(?:\$ )?(upcycled .*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    for line in lines:
        words = shlex.split(re.split(r"\s{2,}", line)[0])
        try:
            _, rest = _parser().parse_known_args(words[1:])
        except SystemExit:
            pytest.fail(f"{page}: {line}")
        assert all(_is_override(word) for word in rest), f"{page}: {line}"

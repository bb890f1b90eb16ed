"""A hospital's way, from six exports to answers for new patients: seeded, and with real noise."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import upcycled as up
from tests.wording import has_all
from upcycled.cli.main import main

SITES = ("bern", "lyon", "oslo", "riga", "rome", "turin")
HEAD = "patient,age,sex,admitted,creatinine,diagnosis"
RUN = """\
name = "hospitals"
iterations = 20
[data]
source = "table"
path = "sites"
schema = "schema.toml"
test_fraction = 0.2
[algorithm]
name = "fedprox"
mu = 0.5
[upcycle]
coefficient = 0.5
[privacy]
mechanism = "erm_output"
norm_bound = 2.0
epsilon = 2.0
delta = 1e-4
"""
PUBLIC = {
    "bounds = [20, 89]": "bounds = [0, 110]",
    "gap = 54.5": "gap = 55",
    'values = ["f", "m", "unknown"]': 'values = ["f", "m"]',
    "bounds = [19.5, 290.25]": "bounds = [0, 300]",
    "bounds = [2019-01-01, 2022-12-31]": "bounds = [2018-01-01, 2024-12-31]",
}
"""What a draft took from the data, and what everybody knows."""


def patients(site):
    """Return rows with text, gaps, dates and unequal scales; those with a high age and creatinine are mostly ill."""
    rng = np.random.default_rng(site)
    rows = []
    for i in range(60 + 20 * site):
        age, creatinine = int(rng.integers(20, 90)), round(float(np.clip(rng.lognormal(4.5, 0.4), 20, 290)), 1)
        day = date(2019, 1, 1) + timedelta(int(rng.integers(0, 1461)))
        ill = "ill" if (age - 55) / 20 + (creatinine - 95) / 40 + rng.normal(0, 0.5) > 0 else "well"
        sex = "unknown" if rng.random() < 0.03 else "fm"[rng.integers(2)]
        rows.append((f"p{site}-{i}", "" if rng.random() < 0.05 else age, sex, day, creatinine, ill))
    # What every draft of these rows says is known by hand: the ends of ages, days and creatinine.
    rows[0] = (rows[0][0], 20, "unknown", date(2019, 1, 1), 19.5, "well")
    rows[1] = (rows[1][0], 89, "f", date(2022, 12, 31), 290.25, "ill")
    rows[2] = (rows[2][0], "", *rows[2][2:])
    return rows


def by_hand(rows):
    """Scale rows without the package: age, is missing, f, m, other, admitted, creatinine."""
    first, last = date(2018, 1, 1), date(2024, 12, 31)
    x = [
        [
            2 * (55 if age == "" else age) / 110 - 1,
            float(age == ""),
            *(float(sex == one) for one in ("f", "m")),
            float(sex not in ("f", "m")),
            2 * (day - first).days / (last - first).days - 1,
            2 * creatinine / 300 - 1,
        ]
        for _, age, sex, day, creatinine, _ in rows
    ]
    return np.array(x).astype(np.float32), np.array([int(row[-1] == "well") for row in rows])


@pytest.fixture
def hospitals(tmp_path, monkeypatch, capsys):
    """Six exports, and their schema: drafted, then edited by somebody who knows what is public."""
    monkeypatch.chdir(tmp_path)
    Path("sites").mkdir()
    for i, site in enumerate(SITES):
        rows = [",".join(map(str, row)) for row in patients(i)]
        Path(f"sites/{site}.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    Path("run.toml").write_text(RUN)
    assert main(["data", "schema", "sites", "--label", "diagnosis"]) == 0
    draft = Path("schema.toml").read_text()
    assert main(["run", "run.toml", "privacy.noise=system", "--quiet"]) == 2
    assert has_all(capsys.readouterr().err, "schema marks", "from_data")
    edited = draft
    for taken, known in PUBLIC.items():
        assert taken in edited
        edited = edited.replace(taken, known)
    lines = [line.split("  #")[0] for line in edited.splitlines() if not line.startswith("from_data")]
    Path("schema.toml").write_text("\n".join(lines) + "\n")
    assert main(["data", "check", "sites", "--schema", "schema.toml"]) == 0
    assert capsys.readouterr().out.startswith("OK: sites has 6 clients, 660 samples, 2 classes, 0 test samples\n")
    Path("new.csv").write_text("creatinine,patient,age,sex,admitted\n280,q1,85,m,2021-05-05\n30.5,q2,25,?,2020-01-31\n")
    return tmp_path


def test_a_seeded_run_is_that_of_data_scaled_by_hand(hospitals, capsys):
    assert main(["run", "run.toml", "--quiet"]) == 0
    folder = Path("results/hospitals/seed-0")
    xs, ys = zip(*(by_hand(patients(i)) for i in range(6)), strict=True)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=2).split(0.2)
    privacy = up.privacy.ErmOutput(norm_bound=2.0, epsilon=2.0, delta=1e-4)
    options = {"upcycle": 0.5, "iterations": 20, "privacy": privacy, "progress": False}
    result = up.train(data, algorithm=up.FedProx(mu=0.5), **options)
    stored = up.load(folder)
    assert torch.equal(torch.cat([value.reshape(-1) for value in stored.model.parameters()]), result.params)
    # The model answers for raw rows as it does for their numbers by hand.
    raw = [("", 85, "m", date(2021, 5, 5), 280.0, ""), ("", 25, "?", date(2020, 1, 31), 30.5, "")]
    capsys.readouterr()
    assert main(["predict", str(folder), "new.csv", "--id", "patient"]) == 0
    head, *answers = capsys.readouterr().out.splitlines()
    assert head == "patient,prediction,probability_ill,probability_well"
    assert [line.split(",")[:2] for line in answers] == [["q1", "ill"], ["q2", "well"]]
    expected = result.model(torch.from_numpy(by_hand(raw)[0])).double().softmax(1)
    found = [[float(number) for number in line.split(",")[2:]] for line in answers]
    assert found == expected.tolist()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["accuracy"] > 0.6
    card = json.loads((folder / "model.json").read_text())
    assert card["schema_sha256"] == up.data.Schema.read("schema.toml").fingerprint
    assert main(["run", "run.toml", "--quiet"]) == 0  # it is there already
    Path("schema.toml").write_text(Path("schema.toml").read_text().replace("[0, 110]", "[0, 120]"))
    assert main(["run", "run.toml", "--quiet"]) == 2
    assert has_all(
        capsys.readouterr().err, "data.schema.columns.age.bounds", "[0.0, 120.0]", "results/hospitals/seed-0"
    )


def test_with_real_noise_no_exact_score_leaves_and_the_model_serves(hospitals, capsys):
    assert main(["run", "run.toml", "privacy.noise=system", "--quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    folder = Path("results/hospitals/seed-0")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["restricted"] is True
    assert summary["privacy"]["epsilon"]["max"] == pytest.approx(2.0, abs=1e-6)
    assert (told["seeds"][0]["accuracy"], summary["accuracy"], summary["loss"]) == (None, None, None)
    own = [json.loads(line) for line in (folder / "private" / "scores.jsonl").read_text().splitlines()]
    assert own[-1]["accuracy"] is not None
    assert main(["report", "results/hospitals"]) == 0
    exact = {repr(row[name]) for row in own for name in ("accuracy", "loss", "global_accuracy", "global_loss")}
    for file in [path for path in Path("results").rglob("*") if path.is_file() and "private" not in path.parts]:
        content = file.read_bytes()
        assert not any(len(number) > 6 and number.encode() in content for number in exact), file
        assert b"p3-7" not in content  # no patient, either
    assert main(["predict", "results/hospitals", "new.csv", "-o", "answers.csv"]) == 0
    rows = Path("answers.csv").read_text().splitlines()
    assert rows[0] == "row,prediction,probability_ill,probability_well"
    assert len(rows) == 3
    # A changed schema is another run: it is not taken for the finished one.
    Path("schema.toml").write_text(Path("schema.toml").read_text().replace("[0, 110]", "[0, 120]"))
    assert main(["run", "run.toml", "privacy.noise=system", "--quiet"]) == 2


LOOK_FIRST = (
    "note: cells that do not fit the schema are replaced without a word here, labels too: `upcycled data check sites "
    "--schema SCHEMA --repair` says how many, to the holder alone\n"
)


def test_a_private_run_says_first_how_the_holder_sees_what_it_replaces(hospitals, capsys):
    words = ["run", "run.toml", "iterations=2", "seeds=[0, 1]", "--quiet"]
    assert main([*words, "name=seeded"]) == 0
    assert "do not fit" not in capsys.readouterr().err  # it would have refused them
    assert main([*words, "privacy.noise=system"]) == 0
    said = capsys.readouterr().err
    assert said.startswith(LOOK_FIRST)  # quiet or not
    assert said.count("do not fit") == 1  # of both seeds
    # A word of it about the cells themselves would tell records apart.
    table = Path("sites/bern.csv")
    table.write_text(table.read_text().replace(",ill", ",ILL").replace(",well", ",Well"))
    assert main([*words, "privacy.noise=system", "name=misspelt"]) == 0
    assert capsys.readouterr().err == said
    # What is there already charges nothing.
    assert main([*words, "privacy.noise=system"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["data", "check", "sites", "--schema", "schema.toml", "--repair"]) == 2  # and says how many
    assert "and 59 more such" in capsys.readouterr().out


def test_a_run_that_cannot_be_says_nothing_of_its_cells(hospitals, capsys):
    assert main(["run", "run.toml", "privacy.noise=system", "privacy.account=account", "--quiet"]) == 2
    assert "do not fit" not in capsys.readouterr().err


def test_a_new_patient_outside_of_all_bounds_is_answered_with_a_warning(hospitals, capsys):
    assert main(["run", "run.toml", "iterations=2", "--quiet"]) == 0
    Path("odd.csv").write_text("age,sex,admitted,creatinine\n810,f,2031-01-01,90\n70,m,2020-02-02,100\n")
    capsys.readouterr()
    assert main(["predict", "results/hospitals", "odd.csv"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    age, day = shown.err.splitlines()
    assert age.startswith("warning: odd.csv: column 'age' holds '810' at row 0 (counted from 0), outside of its bounds")
    assert day.startswith("warning: odd.csv: column 'admitted' holds '2031-01-01' at row 0")
    assert main(["predict", "results/hospitals", "new.csv"]) == 0
    assert capsys.readouterr().err == ""


def test_new_rows_that_do_not_fit_are_one_sentence(hospitals, capsys):
    assert main(["run", "run.toml", "iterations=2", "--quiet"]) == 0
    Path("bad.csv").write_text("age,sex,admitted,creatinin\nold,f,2020-01-01,1\n,f,,2\n")
    assert main(["predict", "results/hospitals", "bad.csv"]) == 2
    said = capsys.readouterr().err
    assert has_all(said, "error: bad.csv", "column 'creatinine'", "schema", "column")
    for words in (
        "'creatinin' that the schema does not know",
        "column 'age' holds 'old'",
        "column 'admitted' has a gap",
    ):
        assert words in said
    assert said.count("\n") == 1
    predictor = up.load("results/hospitals")
    import pandas as pd

    frame = pd.read_csv("new.csv")
    assert predictor.predict(frame.drop(columns="patient")).shape == (2,)
    card = Path("results/hospitals/seed-0/model.json")
    card.write_text(card.read_text().replace("110.0", "111.0"))
    with pytest.raises(up.InputError, match=r"schema.*model.*trained"):
        up.load("results/hospitals")

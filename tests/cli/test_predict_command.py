"""``upcycled predict``: from a results folder and a file of new samples to answers."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

import upcycled as up
from tests.experiments.small import everything_under
from tests.wording import has_all
from upcycled.cli.main import main

CONFIG = """\
name = "visits"
iterations = 3
engine = "sequential"

[data]
source = "csv"
path = "visits.csv"
client = "site"
label = "ill"
label_names = ["no", "yes"]
test_fraction = 0.2

[algorithm]
name = "pfedme"
inner_steps = 2
"""
HEADER = ["site", "age", "dose", "ill"]


def visits(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).round(3)
    return [["abc"[i % 3], *map(float, row), "yes" if row.sum() > 0 else "no"] for i, row in enumerate(x)]


def write_csv(path, header, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A finished run on a table."""
    folder = tmp_path_factory.mktemp("ran")
    write_csv(folder / "visits.csv", HEADER, visits())
    (folder / "visits.toml").write_text(CONFIG)
    results = f"results={json.dumps(str(folder / 'results'))}"
    assert main(["run", str(folder / "visits.toml"), results, "--quiet"]) == 0
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seed_of(ran):
    return str(ran / "results" / "visits" / "seed-0")


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def said(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_every_row_gets_its_class_by_name_and_the_probability_of_each(ran, here, capsys):
    new = visits(9, seed=4)
    # Columns in another order, one that training knew as the label, and none that said whose a row is.
    write_csv(here / "new.csv", ["ill", "dose", "age"], [[ill, dose, age] for _, age, dose, ill in new])
    assert main(["predict", seed_of(ran), "new.csv", "-o", "out/answers.csv"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "9 answers: out/answers.csv\n")
    answers = rows_of((here / "out" / "answers.csv").read_text())
    loaded = up.load(seed_of(ran))
    x = np.array([[age, dose] for _, age, dose, _ in new])
    assert list(answers[0]) == ["row", "prediction", "probability_no", "probability_yes"]
    assert [row["row"] for row in answers] == [str(i) for i in range(9)]
    assert [row["prediction"] for row in answers] == loaded.predict(x).tolist()
    # Every digit is written.
    found = [[float(row["probability_no"]), float(row["probability_yes"])] for row in answers]
    assert np.array_equal(found, loaded.predict_proba(x))
    assert {row["prediction"] for row in answers} == {"no", "yes"}


def test_without_a_file_answers_stand_on_standard_output(ran, here, capsys):
    rows = [["007", 0.1, 0.2], ["NA", 1.0, 2.0]]
    write_csv(here / "new.csv", ["patient", "age", "dose"], rows)
    assert main(["predict", seed_of(ran), "new.csv", "--id", "patient"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [row["patient"] for row in rows_of(out)] == ["007", "NA"]
    assert main(["predict", seed_of(ran), "new.csv", "--id", "patient", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["prediction"] for row in document["answers"]] == [row["prediction"] for row in rows_of(out)]
    assert document["samples"] == 2


def test_the_very_table_of_training_is_answered_as_it_is(ran, here, capsys):
    assert main(["predict", seed_of(ran), str(ran / "visits.csv")]) == 0
    assert len(rows_of(capsys.readouterr().out)) == 60


def test_parquet_and_npz_give_the_same_answers(ran, here, capsys):
    pandas = pytest.importorskip("pandas")
    x = np.array([row[1:3] for row in visits(6, seed=2)])
    pandas.DataFrame({"dose": x[:, 1], "age": x[:, 0]}).to_parquet(here / "new.parquet")
    np.savez(here / "plain.npz", x=x)
    np.savez(here / "named.npz", x=x[:, ::-1], feature_names=np.array(["dose", "age"]))
    parts = {"s_train_x": x[:4], "s_test_x": x[4:], "t_train_x": x[:1]}
    np.savez(here / "parts.npz", **parts)
    given = [["new.parquet"], ["plain.npz"], ["named.npz"], ["parts.npz", "--name", "s"]]
    for words in given:
        assert main(["predict", seed_of(ran), *words]) == 0
    outs = capsys.readouterr().out.split("row,prediction")[1:]
    assert len(outs) == 4
    assert len(set(outs)) == 1


def test_a_client_has_answers_of_its_own_model(ran, here, capsys):
    write_csv(here / "new.csv", ["age", "dose"], [[0.1, -0.05], [1.0, 2.0]])
    assert main(["predict", seed_of(ran), "new.csv", "--client", "b"]) == 0
    found = [float(row["probability_yes"]) for row in rows_of(capsys.readouterr().out)]
    x = np.array([[0.1, -0.05], [1.0, 2.0]])
    personal = up.load(seed_of(ran)).personal("b")
    assert found == personal.predict_proba(x)[:, 1].tolist() != up.load(seed_of(ran)).predict_proba(x)[:, 1].tolist()
    assert main(["predict", seed_of(ran), "new.csv", "--client", "z"]) == 2
    assert has_all(said(capsys), "client", "'z'", "personal model")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["new.csv"], r"new\.csv.*column 'dose'.*model.*trained.*did you mean 'doze'\?"),
        (["more.csv"], r"more\.csv.*column 'height'.*model.*trained"),
        (["text.csv"], r"text\.csv.*columns.*'dose'"),
        (["hole.csv"], r"hole\.csv.*nan.*row 1, column 'dose'"),
        (["empty.csv"], r"empty\.csv.*rows"),
        (["good.csv", "--id", "patient"], r"good\.csv: \bid\b.*'patient'.*column"),
        (["good.csv", "--name", "s"], r"name.*'s'.*\.npz"),
        (["good.csv", "-o", "out.parquet"], r"--output.*'out\.parquet'.*\.csv"),
        (["wide.npz"], r"wide\.npz.*shape \(2, 3\).*\(samples, 2\)"),
        (["none.npz"], r"none\.npz.*array.*train_x"),
        (["nowhere.csv"], r"nowhere\.csv.*exist"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_files_are_one_sentence_and_nothing_is_written(ran, here, capsys, words, wrong):
    write_csv(here / "good.csv", ["age", "dose"], [[1.0, 2.0]])
    write_csv(here / "new.csv", ["age", "doze"], [[1.0, 2.0]])
    write_csv(here / "more.csv", ["age", "dose", "height"], [[1.0, 2.0, 3.0]])
    write_csv(here / "text.csv", ["age", "dose"], [[1.0, "much"]])
    write_csv(here / "hole.csv", ["age", "dose"], [[1.0, 2.0], [1.0, ""]])
    write_csv(here / "empty.csv", ["age", "dose"], [])
    np.savez(here / "wide.npz", x=np.zeros((2, 3)))
    np.savez(here / "none.npz", y=np.zeros(2))
    before = everything_under(here)
    output = [] if "-o" in words else ["-o", "out.csv"]
    assert main(["predict", seed_of(ran), *words, *output]) == 2
    assert re.search(wrong, said(capsys))
    assert everything_under(here) == before


def test_a_folder_of_several_seeds_lists_them(ran, here, capsys):
    write_csv(here / "new.csv", ["age", "dose"], [[1.0, 2.0]])
    assert main(["predict", str(ran / "results"), "new.csv"]) == 0
    capsys.readouterr()
    for seed in (0, 1):
        shutil.copytree(seed_of(ran), here / "several" / f"seed-{seed}")
    assert main(["predict", "several", "new.csv"]) == 2
    assert has_all(said(capsys), "several", "2 models", "several/seed-0, several/seed-1")


def test_a_table_for_a_model_without_names_must_have_as_many_columns(here, capsys):
    data = up.data.synthetic("iid", clients=2, sizes=20, dim=2, seed=0)
    result = up.train(data, algorithm=up.FedAvg(), iterations=1, engine="sequential", progress=False)
    result.save("model")
    write_csv(here / "new.csv", ["client", "a", "b", "label"], [["x", 1.0, 2.0, 0]])
    assert main(["predict", "model", "new.csv"]) == 0
    assert rows_of(capsys.readouterr().out)[0]["prediction"] == str(up.load("model").predict([[1.0, 2.0]])[0])
    write_csv(here / "new.csv", ["a", "b", "c"], [[1.0, 2.0, 0]])
    assert main(["predict", "model", "new.csv"]) == 2
    assert has_all(said(capsys), "new.csv", "shape (1, 3)", "(samples, 2)")


def test_numbers_have_a_column_each_and_labels_two(here, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2)).astype(np.float32)
    np.savez("new.npz", x=x[:3])
    for targets, y, columns in (
        ("numbers", x[:, 0], ["row", "prediction"]),
        ("numbers", x, ["row", "prediction_0", "prediction_1"]),
        ("labels", (x > 0) * 1, ["row", *(f"{what}_{k}" for what in ("prediction", "probability") for k in (0, 1))]),
    ):
        data = up.FederatedData.from_arrays([x], [y], targets=targets)
        up.train(data, algorithm=up.FedAvg(), iterations=1, engine="sequential", progress=False).save("model")
        assert main(["predict", "model", "new.npz"]) == 0
        rows = rows_of(capsys.readouterr().out)
        assert list(rows[0]) == columns
        answers = up.load("model").predict(x[:3]).reshape(3, -1)
        assert [[float(row[c]) for c in columns if "prediction" in c] for row in rows] == answers.tolist()


def test_code_that_a_model_is_made_by_is_found_by_its_folder(here, capsys, monkeypatch):
    (here / "code").mkdir()
    (here / "code" / "own_net_of_tests.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    (here / "own.toml").write_text(
        'name = "own"\niterations = 1\nengine = "sequential"\n[model]\nkind = "own_net_of_tests:make"\n'
        '[data]\nsource = "synthetic"\nalpha = "iid"\nclients = 2\ndim = 2\nsizes = 20\n[algorithm]\nname = "fedavg"\n'
    )
    assert main(["run", "own.toml", "--path", "code", "--quiet"]) == 0
    monkeypatch.delitem(sys.modules, "own_net_of_tests")
    capsys.readouterr()
    np.savez("new.npz", x=np.zeros((1, 2)))
    assert main(["predict", "results/own", "new.npz"]) == 2
    assert has_all(said(capsys), "allow='own_net_of_tests' (--allow own_net_of_tests", "command line)")
    assert main(["predict", "results/own", "new.npz", "--path", "code"]) == 2
    assert "expected code" in said(capsys)
    assert "own_net_of_tests" not in sys.modules
    assert main(["predict", "results/own", "new.npz", "--allow", "own_net_of_tests"]) == 2
    assert "module 'own_net_of_tests'" in said(capsys)
    assert main(["predict", "results/own", "new.npz", "--allow", "own_net_of_tests", "--path", "code"]) == 0
    assert len(rows_of(capsys.readouterr().out)) == 1

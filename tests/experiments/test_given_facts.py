"""Runs with real noise are told what is public; simulations read it off and say so."""

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

import upcycled as up
from tests.wording import has_all
from upcycled.audit.explain import explain
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.experiments.batch import run_experiment
from upcycled.models.prepare import prepare_model
from upcycled.report.collect import Part, Seed
from upcycled.report.settings import data_words
from upcycled.training.plan import make_plan
from upcycled.training.spec import RunSpec

CLIPPED = up.privacy.ModelClipping(1.0, 1.0)
X = [np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(3, 2)]
Y = [np.array([0, 1, 1, 0]), np.array([1, 0, 1])]
TOKENS = [x.astype(np.int64) for x in X]
PUBLIC = ", but a run with noise='system' must be told what is public, or that the data are (public=True; in a file "
PUBLIC += "data.public = true)"

FILE = """\
name = "given"
iterations = 2
results = "{results}"
[data]
source = "csv"
path = "{path}"
test_fraction = 0.3
[algorithm]
name = "fedavg"
[privacy]
mechanism = "model_clipping"
clip_norm = 1
noise_std = 1
"""
ROWS = [("a", 1, 2, 0), ("a", 2, 1, 1), ("a", 0, 1, 1), ("a", 3, 3, 0), ("b", 1, 1, 1), ("b", 2, 2, 0), ("b", 0, 3, 1)]


def planned(data, model="logistic", **more):
    return make_plan(data, RunSpec(algorithm=up.FedAvg(), model=model, privacy=CLIPPED, **{"noise": "system"} | more))


def refused(data, model="logistic", **more):
    with pytest.raises(InputError) as error:
        planned(data, model, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def file_of(folder, rows=ROWS):
    text = "client,f,g,label\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / "set.csv").write_text(text)
    (folder / "a.toml").write_text(FILE.format(path=folder / "set.csv", results=folder / "results"))
    return folder / "a.toml"


def test_a_run_with_real_noise_refuses_what_was_read_off_in_one_sentence():
    data = up.FederatedData.from_arrays(X, Y)
    assert refused(data) == (
        "data were looked at to find the number of classes (give num_classes or label_names; a file has both in "
        "[data])" + PUBLIC
    )
    split = up.FederatedData.from_arrays(X, Y, num_classes=2).split(0.4)
    assert "how many samples are held out (give repair=True, or has_copies=False before the split" in refused(split)
    listed = up.FederatedData.from_arrays([x.tolist() for x in X], Y, num_classes=2)
    assert has_all(refused(listed), "features", "repair=True")
    both = up.FederatedData.from_arrays([x.tolist() for x in X], Y)
    assert has_all(refused(both), "number", "classes")
    assert "whether features" in refused(both)


def test_a_run_with_real_noise_refuses_tables_that_nobody_has_described(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["client", "f", "g", "label"])
    words = "what their columns mean (give schema; in a file data.schema; 'upcycled data schema' drafts one)"
    assert words in refused(up.data.load(frame, num_classes=2, repair=True))
    up.data.save(up.data.load(frame, num_classes=2, repair=True), tmp_path / "a.npz")
    assert words in refused(up.data.load(tmp_path / "a.npz"))
    assert planned(up.data.load(frame, num_classes=2, public=True)).facts.classes == 2
    columns = {"client": {"kind": "client"}, "label": {"kind": "label", "classes": ["0", "1"]}}
    columns |= {name: {"kind": "number", "bounds": [0, 3]} for name in ("f", "g")}
    told = up.data.load(frame, schema={"columns": columns})
    assert planned(told).facts.classes == 2
    up.data.save(told, tmp_path / "a.npz")
    assert up.data.load(tmp_path / "a.npz").schema == told.schema
    columns["f"]["from_data"] = ["bounds"]
    drafted = up.data.load(frame, schema={"columns": columns})
    assert has_all(refused(drafted), "schema marks", "from_data", "public", "place")
    assert planned(drafted, noise="seeded").facts.classes == 2
    assert planned(up.data.load(frame, schema={"columns": columns}, public=True)).facts.classes == 2


def test_given_public_and_simulated_data_are_taken():
    assert planned(up.FederatedData.from_arrays(X, Y, num_classes=2)).facts.classes == 2
    assert planned(up.FederatedData.from_arrays(X, Y, public=True)).facts.classes == 2
    assert planned(up.FederatedData.from_arrays(X, Y), noise="seeded").facts.classes == 2
    assert planned(up.data.synthetic(0.5, 0.5, clients=2, sizes=10)).facts.classes == 2
    without = make_plan(up.FederatedData.from_arrays(X, Y), RunSpec(algorithm=up.FedAvg(), noise="system"))
    assert without.facts.classes == 2


def test_a_vocabulary_is_given_where_a_model_takes_tokens():
    data = up.FederatedData.from_arrays(TOKENS, Y, num_classes=2)
    words = "the number of token ids (give vocabulary; in a file data.vocabulary or model.vocabulary)"
    embedding = torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    assert words in refused(data, "lstm")
    assert words in refused(data, embedding)
    assert planned(data).facts.vocabulary is None
    assert planned(data, torch.nn.Linear(2, 2)).facts.vocabulary is None
    given = up.FederatedData.from_arrays(TOKENS, Y, num_classes=2, vocabulary=9)
    assert planned(given, "lstm", model_options={"hidden": 2}).module.embedding.num_embeddings == 9
    assert planned(given, embedding).facts.vocabulary == 9


def test_a_private_sample_is_not_what_a_model_is_tried_on():
    # Only token 0 is in the data; the embedding has three of the nine ids, which must not first be met in training.
    tokens = [np.zeros_like(x) for x in TOKENS]
    short = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    data = up.FederatedData.from_arrays(tokens, Y, num_classes=2, vocabulary=9)
    assert has_all(refused(data, short), "model", "samples", "shape (2,)")
    facts = Facts((2,), np.dtype(np.int64), 2, np.array([4]), 1, vocabulary=1)
    model = torch.nn.Sequential(torch.nn.Embedding(1, 2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    prepare_model(model, facts, up.losses.CrossEntropy(), 0)


@pytest.mark.parametrize(
    "last",
    [("b", 0, 3, 7), ("b", "", 3, 1), ("b", "yes", 3, 1), ("b", 3.5, 3, 1), ("b", 2, 2, 0), ("b", "nan", "inf", "x")],
    ids=["label", "gap", "word", "type", "copy", "all"],
)
def test_a_restricted_file_reads_any_record_alike(tmp_path, last):
    told = ["privacy.noise=system", "data.num_classes=3"]
    one = load_config(file_of(tmp_path), told).build_data()
    other = load_config(file_of(tmp_path, [*ROWS[:-1], last]), told).build_data()
    for data in (one, other):
        assert (data.train.x.dtype, data.num_classes, data.inferred) == (np.float32, 3, frozenset())
        assert (data.sizes.tolist(), data.test.sizes.tolist()) == ([2, 2], [2, 1])
    assert not one.notes


def test_an_unrestricted_file_refuses_what_is_wrong_as_ever(tmp_path):
    path = file_of(tmp_path, [*ROWS[:-1], ("b", "nan", 3, 1)])
    for told in (["data.num_classes=3"], ["privacy.noise=system", "data.public=true"]):
        with pytest.raises(InputError, match=r"nan.*row 2, column 'f'"):
            load_config(path, told).build_data()


def test_a_restricted_file_without_its_classes_is_refused_and_nothing_is_written(tmp_path):
    experiment = load_config(file_of(tmp_path), ["privacy.noise=system"])
    with pytest.raises(InputError, match=r"a.toml: data.*classes .give num_classes"):
        run_experiment(experiment, "a.toml")
    assert not (tmp_path / "results").exists()
    public = load_config(file_of(tmp_path), ["privacy.noise=system", "data.public=true"])
    assert run_experiment(public, "a.toml").is_complete


def test_names_of_labels_in_a_file(tmp_path):
    rows = [(*row[:3], "no" if row[3] == 0 else "yes") for row in ROWS]
    told = ["privacy.noise=system", 'data.label_names=["no", "yes"]']
    data = load_config(file_of(tmp_path, rows), told).build_data()
    assert (data.num_classes, data.label_names) == (2, ("no", "yes"))
    with pytest.raises(InputError, match=r"data.label_names.*2.*3 classes"):
        load_config(file_of(tmp_path, rows), [*told, "data.num_classes=3"]).build_data()
    with pytest.raises(InputError, match=r"data.label_names.*\['no'\].*classes"):
        load_config(file_of(tmp_path, rows), ['data.label_names=["no"]'])


@pytest.mark.parametrize("key", ["data.vocabulary=9", "model={kind='lstm', hidden=2, vocabulary=9}"])
def test_a_file_gives_its_vocabulary_as_the_datas_or_the_models(tmp_path, key):
    told = ["privacy.noise=system", "data.num_classes=2", "model={kind='lstm', hidden=2}", key]
    experiment = load_config(file_of(tmp_path, [*ROWS[:-1], ("b", 70, 2.5, 1)]), told)
    data = experiment.build_data()
    assert (data.train.x.dtype, data.vocabulary) == (np.int64, 9)
    assert make_plan(data, experiment.spec(0)).module.embedding.num_embeddings == 9


@pytest.mark.parametrize("source", ["femnist", "sent140"])
def test_published_sets_are_declared_public_before_any_is_read(tmp_path, source):
    text = file_of(tmp_path).read_text()
    start, end = text.index("[data]"), text.index("[algorithm]")
    path = tmp_path / "b.toml"
    path.write_text(f'{text[:start]}[data]\nsource = "{source}"\npath = "nowhere"\n{text[end:]}')
    with pytest.raises(InputError, match=rf"data.public.*False.*noise.*{source}"):
        load_config(path, ["privacy.noise=system"]).build_data()
    with pytest.raises(InputError, match="a file or a folder that exists"):
        load_config(path, ["privacy.noise=system", "data.public=true"]).build_data()


def test_a_simulation_says_what_it_read_off(tmp_path):
    experiment = load_config(file_of(tmp_path))
    outcome = run_experiment(experiment, "a.toml")
    about = json.loads((outcome.seeds[0].folder / "summary.json").read_text())["data"]
    assert about["inferred"] == ["classes", "dtype", "sizes", "vocabulary"]
    part = Part("given", ".", {}, (Seed(".", outcome.seeds[0].summary),))
    assert dict(data_words(part))["classes"] == "2 (from the data)"
    remarks = explain(experiment, "a.toml").remarks
    assert remarks[-1].startswith("Read off the data: classes, dtype, sizes, vocabulary. A simulation may;")
    columns = {"client": {"kind": "client"}, "label": {"kind": "label", "classes": ["0", "1"]}}
    columns |= {name: {"kind": "number", "bounds": [0, 3]} for name in ("f", "g")}
    (tmp_path / "schema.toml").write_text(tomli_w.dumps({"columns": columns}))
    told = load_config(file_of(tmp_path), ["privacy.noise=system", "data.schema=schema.toml"])
    assert not any("Read off" in words for words in explain(told, "a.toml").remarks)

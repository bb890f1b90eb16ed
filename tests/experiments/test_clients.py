"""clients.jsonl, personal.safetensors, and what other tools read of the results."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import upcycled as up
from tests.experiments.small import small_file
from tests.wording import has_all
from upcycled.config.experiment import load_config
from upcycled.experiments.batch import Options, run_experiment
from upcycled.experiments.evaluation import final_model
from upcycled.experiments.results import client_rows, to_parquet
from upcycled.training.history import SCALARS


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def run(*overrides, **options):
    experiment = load_config("small.toml", ["seeds=[0]", *overrides])
    return experiment, run_experiment(experiment, "small.toml", Options(**options)).seeds[0].folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def scores_by_hand(module, x, y):
    """Accuracy and cross-entropy from the definition, sample by sample."""
    right, loss = 0, 0.0
    for sample, label in zip(x, y, strict=True):
        logits = module(torch.from_numpy(sample[None])).detach().double()[0]
        right += int(logits.argmax()) == label
        loss += float(torch.logsumexp(logits, 0) - logits[label])
    return right / len(y), loss / len(y)


@pytest.mark.parametrize("algorithm", [[], ["algorithm={name='pfedme', inner_steps=3}"]], ids=["fedprox", "pfedme"])
def test_every_client_has_a_line_with_its_own_scores_and_work(here, algorithm):
    experiment, folder = run("iterations=3", *algorithm)
    rows, data = lines(folder / "clients.jsonl"), experiment.build_data()
    result = up.train(data, experiment.spec(0), progress=False)
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    for client, row in enumerate(rows):
        personal = result.personal_models
        module = personal[client] if personal is not None and client in personal else result.model
        accuracy, loss = scores_by_hand(module, *data.test.client(client))
        assert row["accuracy"] == pytest.approx(accuracy)
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        assert row["train_samples"] == data.train.sizes[client] == 18
        assert row["test_samples"] == data.test.sizes[client] == 2
        took_part = [r for r in result.history if client in r.clients]
        assert row["data_rounds"] == len(took_part)
        # 18 samples in batches of 8 are 3 steps an epoch, for 2 epochs; pFedMe's have three inner ones each.
        each = 6 if personal is None else 6 * 3
        assert row["gradient_steps"] == each * len(took_part)
        assert "epsilon" not in row
    assert sum(row["gradient_steps"] for row in rows) == sum(result.history.column("gradient_steps"))


def test_personal_models_are_kept_under_their_clients_numbers(here):
    experiment, folder = run("iterations=1", "algorithm={name='pfedme'}")
    result = up.train(experiment.build_data(), experiment.spec(0), progress=False)
    kept = load_file(folder / "personal.safetensors")
    # Half of four clients took part in the only round.
    assert sorted(kept) == sorted(map(str, result.personal_models)) != ["0", "1", "2", "3"]
    assert len(kept) == 2
    for client in result.personal_models:
        assert torch.equal(kept[str(client)], result.personal_models.params(client))


def private(noise):
    return f"privacy={{mechanism='model_clipping', clip_norm=1.0, noise_std=1.0, noise='{noise}'}}"


def test_a_simulated_private_run_has_scores_that_are_labelled_and_an_epsilon_each(here):
    experiment, folder = run(private("seeded"))
    summary = json.loads((folder / "summary.json").read_text())
    result = up.train(experiment.build_data(), experiment.spec(0), progress=False)
    rows = lines(folder / "clients.jsonl")
    assert [row["epsilon"] for row in rows] == pytest.approx(result.privacy.epsilon(1e-5).tolist())
    assert all(row["accuracy"] is not None for row in rows)
    assert "which epsilon does not cover" in summary["privacy"]["not_covered"]


def test_with_real_noise_nothing_computed_from_clients_own_data_is_written(here):
    _, folder = run(private("system"), "algorithm={name='pfedme'}")
    for row in lines(folder / "clients.jsonl"):
        assert sorted(row) == ["client", "data_rounds", "epsilon", "gradient_steps", "train_samples"]
    assert not (folder / "personal.safetensors").exists()


def test_clients_of_a_file_keep_their_names_and_may_have_no_test_samples():
    xs = [np.ones((3, 2), dtype=np.float32), np.zeros((2, 2), dtype=np.float32)]
    test = ([xs[0][:1], xs[1][:0]], [[1], []])
    data = up.FederatedData.from_arrays(xs, [[0, 1, 1], [0, 1]], test=test, client_names=["Basel", "Bern"])
    result = up.train(data, algorithm=up.FedAvg(), iterations=1, progress=False)
    rows = client_rows(data, result, final_model(data, result, None), None)
    assert [(row["client"], row["name"], row["test_samples"]) for row in rows] == [(0, "Basel", 1), (1, "Bern", 0)]
    assert np.isnan(rows[1]["accuracy"])
    assert np.isnan(rows[1]["loss"])


def test_a_run_without_test_data_says_so_with_null(here):
    _, folder = run("data.test_fraction=0.0")
    assert [(row["accuracy"], row["test_samples"]) for row in lines(folder / "clients.jsonl")] == [(None, 0)] * 4


def test_pandas_polars_and_duckdb_read_the_metrics(here):
    import duckdb
    import pandas
    import polars

    _, folder = run("eval_every=2", parquet=True)
    rows = lines(folder / "metrics.jsonl")
    losses = [row["loss"] for row in rows]
    assert losses[0] is None
    assert losses[1] is not None

    def same(found):
        # pandas reads the last digit of a JSON number as it likes.
        known = [None if value is None or value != value else pytest.approx(value, rel=1e-14) for value in found]
        assert losses == known

    jsonl, parquet = str(folder / "metrics.jsonl"), str(folder / "metrics.parquet")
    for frame in (pandas.read_json(jsonl, lines=True), pandas.read_parquet(parquet)):
        assert list(frame.columns) == list(SCALARS)
        same(frame["loss"].tolist())
    for frame in (polars.read_ndjson(jsonl), polars.read_parquet(parquet)):
        assert frame.columns == list(SCALARS)
        same(frame["loss"].to_list())
        assert frame["kind"].to_list() == ["data", "upcycled", "data", "upcycled"]
    for reader, path in (("read_json_auto", jsonl), ("read_parquet", parquet)):
        query = f"select loss, bytes_up from {reader}('{path}') order by iteration"
        found = duckdb.sql(query).fetchall()
        same([row[0] for row in found])
        assert [row[1] for row in found] == [row["bytes_up"] for row in rows]


def test_clients_are_read_by_pandas_and_duckdb_too(here):
    import duckdb
    import pandas

    _, folder = run()
    path = str(folder / "clients.jsonl")
    assert pandas.read_json(path, lines=True)["train_samples"].tolist() == [18] * 4
    assert duckdb.sql(f"select sum(test_samples) from read_json_auto('{path}')").fetchall() == [(8,)]


def test_parquet_has_the_same_types_whatever_is_unknown():
    import io

    import pyarrow.parquet

    row = dict.fromkeys(SCALARS) | {"iteration": 1, "kind": "data", "moved": 0.5}
    schema = pyarrow.parquet.read_schema(io.BytesIO(to_parquet([row])))
    types = {name: str(schema.field(name).type) for name in schema.names}
    assert (types["iteration"], types["kind"], types["accuracy"]) == ("int64", "string", "double")
    assert types["moved"] == "double"


def test_parquet_without_pyarrow_is_one_sentence_before_anything_is_run(here, monkeypatch, capsys):
    import sys

    from upcycled.cli.main import main

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["run", "small.toml", "--parquet"]) == 2
    assert has_all(capsys.readouterr().err, "error: --parquet", "'.[data]'")
    assert not (here / "results").exists()

"""The best iterate on validation data beside the last: which it is, that it survives, and where it is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import upcycled as up
from tests.experiments.small import small_file
from upcycled.cli.main import main
from upcycled.training.loop import Chooser

DATA = up.data.synthetic(0.5, 0.5, clients=5, dim=4, sizes=30, seed=0).with_validation(0.3, seed=1)
# A rate that is too large, so that the last iterate is not the best.
ASKED = {"algorithm": up.FedAvg(), "local": up.LocalSGD(lr=2.0, epochs=3, batch_size=4), "upcycle": 0.9}
ASKED |= {"participation": 0.4, "iterations": 9, "seed": 4, "progress": False}


class Iterates:
    """Keeps every global model."""

    def __init__(self):
        self.seen = {}

    def record(self, record, run):
        self.seen[record.iteration] = run.state.server.model.copy()


def by_hand(model, by):
    """Softmax regression on the validation samples, in float64."""
    weight, bias = model[:8].reshape(2, 4).astype(float), model[8:].astype(float)
    logits = DATA.validation.x.astype(float) @ weight.T + bias
    if by == "accuracy":
        return float((logits.argmax(1) == DATA.validation.y).mean())
    log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return float(-log_probabilities[np.arange(len(logits)), DATA.validation.y].mean())


@pytest.mark.parametrize("engine", ["sequential", "fused"])
@pytest.mark.parametrize(("by", "eval_every"), [("loss", 1), ("accuracy", 1), ("loss", 4)])
def test_the_best_of_all_that_were_scored_is_kept(by, eval_every, engine):
    watching = Iterates()
    result = up.train(DATA, **ASKED, keep_best=by, eval_every=eval_every, engine=engine, callbacks=[watching])
    scored = [i for i in range(1, 10) if i % eval_every == 0 or i == 9]
    scores = {i: by_hand(watching.seen[i], by) for i in scored}
    sign = 1 if by == "loss" else -1
    first = min(scored, key=lambda i: (sign * scores[i], i))
    assert (result.best.iteration, result.best.score) == (first, pytest.approx(scores[first], rel=1e-5))
    assert first != 9
    assert torch.equal(result.best.params, torch.from_numpy(watching.seen[first]))
    flat = torch.cat([p.detach().reshape(-1) for p in result.best.model.parameters()])
    assert torch.equal(flat, result.best.params)
    assert not torch.equal(result.params, result.best.params)
    column = result.history.column(f"validation_{by}")
    assert [i for i, value in enumerate(column, start=1) if value is not None] == scored
    plain = up.train(DATA, **ASKED, eval_every=eval_every, engine=engine)
    assert torch.equal(plain.params, result.params)
    assert plain.best is None


def test_a_resumed_run_keeps_the_best_of_all_iterations(tmp_path):
    def stop_after(iteration):
        return lambda record: up.STOP if record.iteration == iteration else None

    asked = ASKED | {"keep_best": "loss", "checkpoint": tmp_path / "cut"}
    whole = up.train(DATA, **ASKED | {"keep_best": "loss"})
    up.train(DATA, **asked, callbacks=[stop_after(whole.best.iteration + 1)])
    resumed = up.train(DATA, **asked)
    assert resumed.best.iteration == whole.best.iteration
    assert resumed.best.score == whole.best.score
    assert torch.equal(resumed.best.params, whole.best.params)
    again = up.train(DATA, **asked)
    assert torch.equal(again.best.params, whole.best.params)
    with pytest.raises(up.InputError, match="validation data"):
        up.train(replace(DATA, validation=replace(DATA.validation, y=1 - DATA.validation.y)), **asked)


def test_running_statistics_are_those_of_the_iterate_that_is_scored():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    found = up.train(DATA, **ASKED | {"model": model, "keep_best": "loss", "participation": 1.0})
    scored = found.best.model.eval()(torch.from_numpy(DATA.validation.x))
    loss = torch.nn.functional.cross_entropy(scored, torch.from_numpy(DATA.validation.y).long())
    assert found.best.score == pytest.approx(loss.item(), rel=1e-5)
    assert found.best.score == found.history.column("validation_loss")[found.best.iteration - 1]


def test_a_score_that_is_no_number_is_never_the_best():
    run = SimpleNamespace(state=SimpleNamespace(iteration=2, server=SimpleNamespace(model=None), statistics=None))
    for by, worse in (("loss", 9.0), ("accuracy", -9.0)):
        chooser = Chooser(by, None, None)
        assert chooser.better(None, run, math.nan) is None
        first = chooser.better(None, run, worse)
        assert chooser.better(first, run, math.nan) is first
        assert chooser.better(first, run, 0.5).score == 0.5


def test_a_loss_that_knows_no_right_answers_gives_no_accuracy_to_choose_by(monkeypatch):
    monkeypatch.setattr("upcycled.training.loop.score_module", lambda *given: SimpleNamespace(loss=1.0, accuracy=None))
    state = SimpleNamespace(statistics=None, server=SimpleNamespace(model=None))
    assert Chooser("loss", None, None).score(state) == 1.0
    with pytest.raises(up.InputError, match=r"keep_best.*'accuracy'.*loss"):
        Chooser("accuracy", None, None).score(state)


def test_where_there_is_nothing_to_choose_on_it_is_refused():
    clipping = up.privacy.ModelClipping(1.0, 1.0)
    without = up.data.synthetic("iid", clients=4, seed=0)
    given = up.FederatedData.from_arrays([np.eye(4)] * 2, [[0.5, 1, 2, 3]] * 2, targets="numbers").with_validation(0.5)
    for data, asked, words in (
        (without, {"keep_best": "loss"}, "keep_best is 'loss', but the data have no validation samples to choose on"),
        (DATA, {"keep_best": "auc"}, "keep_best is 'auc', but it must be known (known: loss, accuracy)"),
        (
            DATA,
            {"keep_best": "loss", "privacy": clipping, "noise": "system"},
            "may not choose by scores on private samples",
        ),
        (given, {"keep_best": "accuracy"}, "keep_best is 'accuracy', but right answers have no meaning for the loss"),
    ):
        with pytest.raises(up.InputError, match=r"^keep_best is") as raised:
            up.train(data, algorithm=up.FedAvg(), progress=False, **asked)
        assert words in str(raised.value)


def test_a_file_keeps_the_best_beside_the_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path, ("sizes = 20", "sizes = 20\nvalidation_fraction = 0.2"), ("seeds = [0, 1]", "seeds = [0]"))
    words = ["run", "small.toml", "keep_best=loss", "iterations=6", "local.lr=3.0", "--quiet", "--json"]
    assert main(words) == 0
    best = json.loads(capsys.readouterr().out)["seeds"][0]["best"]
    rows = [json.loads(line) for line in Path("results/small/seed-0/metrics.jsonl").read_text().splitlines()]
    losses = [row["validation_loss"] for row in rows]
    assert best == {"by": "loss", "iteration": 1 + int(np.argmin(losses)), "score": min(losses)}
    kept, last = (load_file(f"results/small/seed-0/{name}.safetensors") for name in ("best", "model"))
    assert kept.keys() == last.keys()
    swept = ["sweep", "small.toml", "keep_best=loss", "sweep={'local.lr' = [0.1]}", "results=swept", "--quiet"]
    assert main(swept) == 0
    assert list(Path("swept").rglob("chosen-*/seed-0/best.safetensors"))
    assert len(list(Path("swept").rglob("best.safetensors"))) == 1

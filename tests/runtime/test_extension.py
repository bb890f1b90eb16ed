"""A kept run goes on to more iterations, and is then the longer run; where that cannot be, it is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import upcycled as up
from tests.experiments.small import everything_under, small_file
from upcycled.cli.main import main

DATA = up.data.synthetic(0.5, 0.5, clients=5, dim=4, sizes=20, seed=0)
SGD = up.LocalSGD(lr=0.1, epochs=2, batch_size=8)
COMPARED = ("iteration", "kind", "data_round", "accuracy", "loss", "coefficient", "messages", "gradient_steps")


def run(folder, iterations, **asked):
    usual = {"algorithm": up.FedProx(mu=0.5), "local": SGD, "participation": 0.6, "engine": "sequential"}
    return up.train(DATA, **usual | asked, iterations=iterations, checkpoint=folder, progress=False)


def kept_in(folder):
    """Return all files but the lock's, which says who looked last."""
    return {name: content for name, content in everything_under(folder).items() if ".lock" not in name}


def rows(result):
    return [[getattr(record, name) for name in COMPARED] for record in result.history]


SAME = {
    "vanilla": {},
    "upcycled": {"upcycle": 0.5},
    "a memory of clients": {"algorithm": up.Scaffold(), "upcycle": 0.3},
    "scored now and then": {"upcycle": 0.5, "eval_every": 4},
    "steps that count rounds done": {"local": up.LocalSGD(up.schedules.StepDecay(0.1, every=2), batch_size=8)},
    "warmup": {"local": up.LocalAdam(up.schedules.Warmup(0.1, warmup=2))},
    "open-ended": {"upcycle": up.coefficients.Decaying(0.5, open_ended=True)},
    "a rule": {"upcycle": up.coefficients.Repeated(up.coefficients.Trend(), times=2)},
    "clipping": {"upcycle": 0.5, "privacy": up.privacy.ModelClipping(1.0, 0.5)},
    "minimisers": {"local": None, "privacy": up.privacy.ErmOutput(norm_bound=1.0, noise_std=0.5)},
    "coins": {"privacy": up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=1.0)},
    "budget": {"privacy": up.privacy.ModelClipping(1.0, 4.0), "budget": up.Budget(4.0, 1e-3)},
}


# An accountant's epsilon of sampled releases takes its time.
@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c == "coins" else c for c in SAME])
def test_an_extended_run_is_the_longer_run(case, tmp_path):
    asked = SAME[case]
    run(tmp_path / "kept", 5, **asked)
    if case in ("upcycled", "clipping"):
        run(tmp_path / "kept", 7, **asked)  # extended more than once
    extended, longer = run(tmp_path / "kept", 10, **asked), run(None, 10, **asked)
    assert torch.equal(extended.params, longer.params)
    assert rows(extended) == rows(longer)
    if longer.privacy is not None:
        assert extended.privacy.epsilon(1e-3).tolist() == longer.privacy.epsilon(1e-3).tolist()
        read = up.privacy.Ledger.read(tmp_path / "kept" / "ledger.jsonl", head=extended.privacy.head)
        assert read.epsilon(1e-3).tolist() == longer.privacy.epsilon(1e-3).tolist()
        assert (read.planned, read.chain) == (longer.privacy.planned, "anchored")
        raised = 2 if case == "clipping" else 1
        assert sum(entry.kind == "extended" for entry in read) == raised
        if longer.privacy.budget is None:
            assert f"raised {raised} times (to {read.planned} data rounds)" in read.statement(1e-3)


class HalfOfAll:
    """A coefficient of one's own: it looks at how many rounds there are."""

    def rho(self, data_round, horizon):
        return 0.5 / horizon


class AnyRule:
    depth, per_round, uses_spread = 2, 1, False

    def start(self):
        return {}

    def move(self, own, seen, moves):
        return up.Move(seen.iterates[-1], 0.0), own


@dataclass(frozen=True)
class MoreForLonger:
    """A mechanism of one's own: its noise grows with the rounds, and it was given no epsilon."""

    name = "own"

    def fit(self, setting):
        return up.privacy.ModelClipping(1.0, noise_std=0.1 * setting.data_rounds).fit(setting)


REFUSED = {
    "own mechanism": ({"privacy": MoreForLonger()}, "what a round of the mechanism charges depends on how many there"),
    "cosine": ({"local": up.LocalSGD(up.schedules.Cosine(0.1))}, "the schedule of local.lr depends on how many"),
    "precision": (
        {"aggregation": "precision", "privacy": up.privacy.UpdateClipping(1.0, noise_std=0.1)},
        "the weighting of releases depends on",
    ),
    "decaying": ({"upcycle": up.coefficients.Decaying(0.5)}, "the coefficient of upcycled iterations depends on"),
    "own coefficient": ({"upcycle": HalfOfAll()}, "the coefficient of upcycled iterations depends on how many"),
    "own rule": ({"upcycle": AnyRule()}, "the coefficient of upcycled iterations depends on how many there are"),
    "epsilon": (
        {"privacy": up.privacy.ModelClipping(1.0, epsilon=2.0, delta=1e-3)},
        "the noise, which is calibrated to its epsilon, depends on how many",
    ),
    "scores": (
        {"privacy": up.privacy.ModelClipping(1.0, 1.0), "charged_scores": up.privacy.ChargedScores(8.0, every=3)},
        "when there are charged scores depends on how many",
    ),
    "budget": (
        {"privacy": up.privacy.ModelClipping(1.0, 4.0), "budget": up.Budget(10.0, 1e-3), "noise": "system"},
        "what the budget sets aside for the sampling of noise depends on how many",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_depends_on_its_length_is_not_extended(case, tmp_path):
    asked, words = REFUSED[case]
    run(tmp_path, 5, **asked)
    before = kept_in(tmp_path)
    with pytest.raises(up.InputError) as raised:
        run(tmp_path, 9, **asked)
    assert str(raised.value).startswith("iterations is 9, but checkpoint folder")
    assert f"holds a run that was planned with 5, and {words}" in str(raised.value)
    assert kept_in(tmp_path) == before
    assert len(run(tmp_path, 5, **asked).history) == 5


def test_a_run_is_not_made_shorter_and_not_changed_besides(tmp_path):
    run(tmp_path, 5)
    with pytest.raises(up.InputError, match="iterations is 3, but checkpoint folder"):
        run(tmp_path, 3)
    with pytest.raises(up.InputError, match="seed is 1, but checkpoint folder"):
        run(tmp_path, 9, seed=1)


def test_real_noise_is_charged_on(tmp_path):
    asked = {"privacy": up.privacy.ModelClipping(1.0, 4.0), "noise": "system", "participation": 1.0}
    short = run(tmp_path, 2, **asked).privacy
    longer = run(tmp_path, 5, **asked).privacy
    assert (short.rounds.tolist(), longer.rounds.tolist()) == ([2] * 5, [5] * 5)
    assert longer.run == short.run
    kinds = [entry.kind for entry in longer]
    assert [(kind, len(list(same))) for kind, same in itertools.groupby(kinds)] == [
        ("data", 2),
        ("extended", 1),
        ("data", 3),
    ]


def test_a_line_that_extends_nothing_is_damage(tmp_path):
    ledger = run(tmp_path, 2, privacy=up.privacy.ModelClipping(1.0, 4.0)).privacy
    run(tmp_path, 4, privacy=up.privacy.ModelClipping(1.0, 4.0))
    path = tmp_path / "ledger.jsonl"
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"extended"' in line)
    path.write_text("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n")
    with pytest.raises(up.InputError, match=r"its round is 3, and the run has 2"):
        up.privacy.Ledger.read(path)
    path.write_text("\n".join([*lines[:at], lines[at].replace('"round":4', '"round":2')]) + "\n")
    with pytest.raises(up.InputError, match=r"it plans 2 data rounds, and the run has 2"):
        up.privacy.Ledger.read(path)
    assert ledger.planned == 2


def command(capsys, *words):
    code = main(["run", "small.toml", *words, "--quiet", "--json"])
    return code, capsys.readouterr()


def test_a_results_folder_is_extended_by_raised_iterations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    assert command(capsys, "eval_every=3")[0] == 0
    code, said = command(capsys, "eval_every=3", "iterations=7")
    assert code == 0, said.err
    assert [seed["status"] for seed in json.loads(said.out)["seeds"]] == ["finished", "finished"]
    assert command(capsys, "eval_every=3", "iterations=7", "results=whole")[0] == 0
    for name in ("config.toml", "model.safetensors", "clients.jsonl", "metrics.jsonl", "summary.json"):
        found, whole = (Path(where, "small/seed-1", name).read_bytes() for where in ("results", "whole"))
        if name in ("metrics.jsonl", "summary.json"):
            found, whole = (_without_seconds(text) for text in (found, whole))
        assert found == whole.replace(b'results = "whole"', b'results = "results"') if name == "config.toml" else True
        assert name == "config.toml" or found == whole
    code, said = command(capsys, "eval_every=3", "iterations=7")
    assert [seed["status"] for seed in json.loads(said.out)["seeds"]] == ["reused", "reused"]
    code, said = command(capsys, "eval_every=3", "iterations=4")
    assert code == 2
    assert "iterations is 4, but" in said.err


def _without_seconds(text):
    lines = [json.loads(line) for line in text.decode().split("\n") if line] if b"\n{" in text else [json.loads(text)]
    return [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]


@pytest.mark.parametrize("change", ["upcycle={kind = 'decaying', c = 0.5}", "local.lr={kind = 'cosine', lr = 0.1}"])
def test_a_results_folder_whose_run_depends_on_its_length_is_left_alone(change, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    assert command(capsys, change)[0] == 0
    before = kept_in(tmp_path)
    code, said = command(capsys, change, "iterations=7")
    assert code == 2
    assert said.err.startswith("error: small.toml: iterations is 7, but results/small/seed-0 holds a run that was")
    assert said.err.count("\n") == 1
    assert kept_in(tmp_path) == before


def test_without_checkpoints_raised_iterations_are_another_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    assert command(capsys)[0] == 0
    for path in tmp_path.rglob("iteration-*.safetensors"):
        path.unlink()
    code, said = command(capsys, "iterations=7")
    assert code == 2
    assert "iterations is 7, but results/small/seed-0 holds a run with 4, so the name" in said.err


def test_a_results_folder_on_other_data_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "client,x,label\n" + "".join(f"{i % 3},{i},{i % 2}\n" for i in range(12))
    Path("set.csv").write_text(text)
    small = small_file(tmp_path).read_text()
    table = small[small.index("[data]") : small.index("[algorithm]")]
    small_file(tmp_path, (table, '[data]\nsource = "csv"\npath = "set.csv"\n\n'))
    assert command(capsys)[0] == 0
    Path("set.csv").write_text(text.replace("0,3,", "0,4,"))
    before = kept_in(tmp_path)
    code, said = command(capsys, "iterations=7")
    assert code == 2
    assert "holds a run with other training data" in said.err
    assert kept_in(tmp_path) == before

"""``upcycled audit``: the report, and the exit code that says whether a claim is broken."""

from __future__ import annotations

import json
import re

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path, ("iterations = 4", 'iterations = 4\nengine = "sequential"'))
    with (tmp_path / "small.toml").open("a") as file:
        file.write('\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 2.0\n')
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_sound_file_passes_with_the_bound_beside_the_claim(capsys):
    assert main(["audit", "small.toml", "--replays", "200"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "model_clipping: two worlds, client 0 (n = 18), 200 replays of each" in out
    assert "claimed (proven)" in out
    assert "upcycled iterations: the same bits under both neighbours" in out
    assert out.splitlines()[-1] == "the proven claim, epsilon 4.377 for this round, is not refuted by this attack"


@pytest.mark.usefixtures("here")
def test_a_broken_claim_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add", lambda self, values, clients, source: values)
    assert main(["audit", "small.toml", "--replays", "20", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["broken"]
    assert document["noiseless"]
    assert document["sentences"][-1].endswith("is BROKEN")


@pytest.mark.usefixtures("here")
def test_the_papers_claim_breaks_the_audit_only_where_it_is_the_one_tested(capsys):
    words = ["audit", "small.toml", "privacy.noise_std=1.0", "--replays", "300"]
    assert main([*words, "--claim", "paper"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("the paper claim, epsilon 0.2")
    assert main(words) == 0
    assert "the paper's number, 0.2" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_the_power_is_said_first_and_alone_if_asked(capsys):
    assert main(["audit", "small.toml", "--power", "--json"]) == 0
    power = json.loads(capsys.readouterr().out)
    assert power["level"] < 0.01
    assert {"noise: scale", "noise: rounds", "canaries", "charges", "replay", "clipping"} <= {
        one["probe"] for one in power["power"]
    }
    assert main(["audit", "small.toml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.index("what it can find") < out.index("what it found")
    assert out.splitlines()[-1].endswith("is not refuted by this audit")
    assert main(["audit", "small.toml", "--power", "--replays", "9"]) == 2
    assert has_all(capsys.readouterr().err, "--replays", "9", "--power")


@pytest.mark.usefixtures("here")
def test_the_whole_audit_of_a_broken_claim_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add", lambda self, values, clients, source: values)
    assert main(["audit", "small.toml", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["broken"]
    assert next(one for one in document["findings"] if one["probe"] == "noise: scale")["wrong"] is not None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--replays", "1"], r"--replays.*1.*integer >= 4"),
        (["--claim", "proof"], r"--claim.*'proof'"),
        (["--delta", "0.5"], r"small\.toml: --delta.*0\.5.*1/n"),
        (["privacy.delta=0.5", "privacy.epsilon=1.0"], r"small\.toml: "),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys):
    assert main(["audit", "small.toml", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(sentence, err)
    assert err.count("\n") == 1


def test_a_file_without_privacy_is_wrong_use(tmp_path, capsys):
    assert main(["audit", str(small_file(tmp_path))]) == 2
    assert has_all(capsys.readouterr().err, "privacy", "missing", "audit", "claim")

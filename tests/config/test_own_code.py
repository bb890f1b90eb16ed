"""Code from outside the package, named in a file: an algorithm, a coefficient, a mechanism, a sampler, a callback."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.wording import has_all
from upcycled.cli.main import main

CODE = '''
"""One's own parts, as a user would write them."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

import upcycled as up


@dataclass(frozen=True)
class HalfWay:
    """An algorithm: the server goes a part of the way to the clients' mean."""

    part: float = 0.5

    name: ClassVar[str] = "half_way"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False

    def start(self, model):
        return up.Server(model)

    def solver(self, local):
        return local

    def problem(self, server, memory):
        return up.Problem()

    def server_step(self, server, memory, arrived):
        return up.Server(server.model + np.float32(self.part) * (arrived.mean - server.model)), memory


@dataclass(frozen=True)
class Fading:
    """A coefficient: rho_m = c / m."""

    c: float = 0.5

    def coefficient_at(self, data_round, horizon):
        return self.c / data_round


@dataclass(frozen=True)
class EveryOther:
    """A sampler: even clients in even rounds, odd ones in odd rounds."""

    fraction: float = 0.5
    name: ClassVar[str] = "every_other"

    def draw(self, seed, round, num_clients, attempt):
        return np.arange(round % 2, num_clients, 2)


@dataclass(frozen=True)
class Rounded:
    """A mechanism: clipped models with a fixed noise, by the package's own clipping."""

    clip_norm: float = 1.0
    name: ClassVar[str] = "rounded"

    def fit(self, setting):
        return up.privacy.ModelClipping(clip_norm=self.clip_norm, noise_std=2.0).fit(setting)


def note(record):
    with Path("noted.txt").open("a") as file:
        file.write(f"{record.iteration} {record.clients.tolist()}\\n")


class StopAtFour:
    def record(self, record, run):
        return up.STOP if record.iteration == 4 else None


def fail_once(record):
    if record.iteration == 4 and not Path("failed.txt").exists():
        Path("failed.txt").touch()
        raise ValueError("the network is down")
'''

FILE = """
name = "own"
iterations = 6
seeds = [0, 1]
callbacks = ["own_parts:note"]

[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 4
sizes = 20
dim = 3

[algorithm]
name = "own_parts:HalfWay"
part = 0.25

[upcycle]
kind = "own_parts:Fading"
c = 0.4

[clients]
participation = 0.5
sampling = "own_parts:EveryOther"

[privacy]
mechanism = "own_parts:Rounded"
clip_norm = 2.0
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_parts.py").write_text(CODE)
    (tmp_path / "own.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    return tmp_path


def asked(capsys, *words):
    code = main([*words])
    return code, capsys.readouterr()


def test_own_parts_run_are_recognised_compared_and_reported(here, capsys):
    code, said = asked(capsys, "run", "own.toml", "--path", "code", "--json", "--quiet")
    assert code == 0, said.err
    found = json.loads(said.out)
    assert [seed["status"] for seed in found["seeds"]] == ["finished", "finished"]
    assert found["config"]["algorithm"] == {"name": "own_parts:HalfWay", "part": 0.25}
    summary = found["seeds"][0]
    # 2 of 4 clients in each of 3 data rounds, each twice: down and up.
    assert (summary["data_rounds"], summary["messages"]) == (3, 12)
    assert summary["privacy"]["epsilon"]["max"] > 0
    rows = [json.loads(line) for line in Path("results/own/seed-0/metrics.jsonl").read_text().splitlines()]
    assert [row["coefficient"] for row in rows] == [None, 0.4, None, 0.2, None, pytest.approx(0.4 / 3)]
    noted = [line for line in Path("noted.txt").read_text().splitlines() if line.startswith(("1 ", "3 "))]
    assert sorted(set(noted)) == ["1 [1, 3]", "3 [0, 2]"]

    code, said = asked(capsys, "run", "own.toml", "--path", "code", "--json", "--quiet")
    assert [seed["status"] for seed in json.loads(said.out)["seeds"]] == ["reused", "reused"]
    code, said = asked(capsys, "compare", "own.toml", "--path", "code", "--json", "--quiet")
    assert code == 0, said.err
    assert json.loads(said.out)["rows"][0]["algorithm"] == "own_parts:HalfWay"
    code, said = asked(capsys, "report", "results/own")
    assert code == 0, said.err
    assert "own_parts:HalfWay" in Path("results/own/report.html").read_text()
    code, said = asked(capsys, "privacy", "explain", "own.toml", "--path", "code", "--json")
    assert code == 0, said.err


def test_a_run_with_own_parts_goes_on_from_its_checkpoint(here, capsys):
    """One that broke off after iteration 4 and goes on ends in the numbers of one that never did."""
    usual = ["run", "own.toml", "seeds=[0]", "--path", "code", "--json", "--quiet"]
    whole = json.loads(asked(capsys, *usual, "results=whole")[1].out)
    broken = [*usual, "results=cut", "callbacks=['own_parts:fail_once', 'own_parts:note']"]
    code, said = asked(capsys, *broken)
    assert code == 70
    log = Path(said.err.split("its traceback is in ")[1].split(": ")[0])
    assert "ValueError: the network is down" in log.read_text()
    log.unlink()
    Path("noted.txt").unlink()
    code, said = asked(capsys, *broken)
    assert code == 0, said.err
    assert json.loads(said.out)["seeds"][0]["loss"] == whole["seeds"][0]["loss"]
    assert [line[0] for line in Path("noted.txt").read_text().splitlines()] == ["5", "6"]


def test_a_callback_that_stops_a_run_ends_it_with_the_result_so_far(here, capsys):
    words = ["run", "own.toml", "callbacks=['own_parts:StopAtFour']", "--path", "code", "--json", "--quiet"]
    code, said = asked(capsys, *words)
    assert code == 0, said.err
    assert [seed["iterations"] for seed in json.loads(said.out)["seeds"]] == [4, 4]
    # Without it the run would be another one.
    code, said = asked(capsys, "run", "own.toml", "--path", "code", "--quiet")
    assert code == 2
    assert has_all(said.err, "callbacks", "['own_parts:note']")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algorithm.name=own_parts:Missing", r"own\.toml: algorithm\.name.*'own_parts:Missing'.*module 'own_parts'"),
        ("algorithm.name=nowhere:FedNova", r"module 'nowhere'.*packages"),
        ("algorithm.name=own_parts:note", r"algorithm\.name.*'own_parts:note'"),
        ("algorithm.prat=1", r"algorithm\.prat.*1.*\[algorithm\].*'own_parts:HalfWay'.*key"),
        ("algorithm.part=half", r"algorithm\.part.*'half'"),
        ("callbacks=['note']", r"own\.toml: callbacks.*\['note'\]"),
        ("clients.sampling=own_parts:Nobody", r"sampling.*'own_parts:Nobody'.*module 'own_parts'.*'Nobody'"),
        ("upcycle.kind=json:dumps", r"upcycle\.kind.*'json:dumps'"),
        ("data.source=own_parts:make", r"data\.source.*'own_parts:make'.*'synthetic'"),
    ],
)
def test_wrong_names_of_code_are_told_in_one_sentence(here, capsys, change, words):
    code, said = asked(capsys, "run", "own.toml", change, "--path", "code", "--quiet")
    assert code == 2
    assert re.search(words, said.err)
    assert said.err.count("\n") == 1
    assert not Path("results").exists()


def test_code_is_looked_up_where_path_says_and_not_beside_the_command(here, capsys):
    (here / "own_parts.py").write_text(CODE)
    code, said = asked(capsys, "run", "own.toml", "--quiet")
    assert code == 2
    assert "module 'own_parts'" in said.err
    code, said = asked(capsys, "run", "own.toml", "--path", "missing", "--quiet")
    assert (code, said.err) == (2, "error: --path is 'missing', but it must be a folder with Python modules\n")

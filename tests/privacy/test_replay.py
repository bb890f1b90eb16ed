"""What everybody sees of a private run is a function of its releases, to the last byte.

Two sites hold neighbouring data. The second answers every round with what the first released, recorded, while all the
rest of the code works on its own records. Whatever then differs (a file, its name or size, a word on standard output or
error, an exit code) tells the records apart without having been charged.

A central mechanism's release is the aggregate; who took part in a secret draw is drawn anew at the second site, and
must not show either.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import struct
import sys
import uuid
from dataclasses import replace

import numpy as np
import pytest

from tests.trackers.test_trackers import FROM_ELSEWHERE
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.privacy import MECHANISMS
from upcycled.privacy.charged_scores import FittedScores
from upcycled.training import executor
from upcycled.training import progress as batch_progress
from upcycled.training import progress as run_progress
from upcycled.training import round as loop

pytestmark = [pytest.mark.filterwarnings(line) for line in FROM_ELSEWHERE]

CLIENTS, ROWS, FEATURES = 4, 12, 3
FILE = """\
name = "replayed"
iterations = 4
seeds = [0, 1]
engine = "sequential"

[data]
source = "csv"
path = "records.csv"
test_fraction = 0.25
GIVEN

[algorithm]
ALGORITHM

[upcycle]
coefficient = 0.5

[clients]
COHORTS

[privacy]
noise = "system"
MECHANISM
"""
SCHEMA = """\
schema.columns.client = { kind = "client" }
schema.columns.a = { kind = "number", bounds = [-4, 5] }
schema.columns.b = { kind = "number", bounds = [-4, 5], gap = 0 }
schema.columns.c = { kind = "number", bounds = [-4, 5] }
schema.columns.label = { kind = "label", classes = ["0", "1"] }"""
FEDPROX, EVERYBODY, FEW = 'name = "fedprox"\nmu = 0.5', "participation = 1.0", "participation = 0.5"
CASES = {
    "model_clipping": (FEDPROX, EVERYBODY, "clip_norm = 1.0\nnoise_std = 0.5"),
    "update_clipping": (FEDPROX, FEW, "clip_norm = 1.0\nnoise_std = 0.5"),
    "scores": (
        FEDPROX,
        FEW,
        "clip_norm = 1.0\nepsilon = 8.0\ndelta = 1e-3\n"
        'scores = { noise_std = 3.0, every = 2, counts = "histogram", bins = 4, loss_bound = 2.0 }',
    ),
    "personal": ('name = "pfedme"\nlam = 2.0', FEW, "clip_norm = 1.0\nnoise_std = 0.5"),
    "erm_output": (FEDPROX, EVERYBODY, "norm_bound = 1.0\nnoise_std = 0.5"),
    "bolt_on_sgd": ('name = "fedavg"', EVERYBODY, "norm_bound = 1.0\nnoise_std = 0.5"),
    "objective_perturbation": (FEDPROX, EVERYBODY, "norm_bound = 1.0\nalpha = 5.0"),
    "precision": (
        'name = "feddyn"\nalpha = 0.5',
        FEW,
        'norm_bound = 1.0\nepsilon = 8.0\ndelta = 1e-3\n\n[aggregation]\nkind = "precision"',
    ),
    "reuse": (
        FEDPROX,
        FEW,
        'norm_bound = 1.0\nnoise_std = 0.02\n\n[aggregation]\nkind = "precision"',
    ),
    "adaptive": (FEDPROX, FEW, "clip_norm = 1.0\nnoise_std = 0.1\nfill = 0.5"),
    "adaptive central": ('name = "fedavg"', FEW, "clip_norm = 1.0\nnoise_multiplier = 0.5\nquantile = 0.5"),
    "dpsgd": ('name = "fedavg"', EVERYBODY, "clip_norm = 1.0\nnoise_multiplier = 1.0"),
    "central_dp_fedavg": ('name = "fedavg"', FEW, "clip_norm = 1.0\nnoise_multiplier = 1.0"),
    "secret": (
        'name = "fedavg"',
        f'{FEW}\nsampling = "poisson"',
        "clip_norm = 1.0\nnoise_multiplier = 1.0\nsecret_sampling = true",
    ),
}
"""Algorithm, cohorts and mechanism; some have another name than their mechanism's."""
NAMED = {
    "scores": "update_clipping",
    "personal": "model_clipping",
    "precision": "erm_output",
    "reuse": "erm_output",
    "adaptive": "update_clipping",
    "adaptive central": "central_dp_fedavg",
    "secret": "central_dp_fedavg",
}


def test_every_mechanism_is_replayed():
    assert {NAMED.get(case, case) for case in CASES} == set(MECHANISMS)


def records(change=lambda rows: None):
    """Return a table of samples as the text of a file, one of them changed."""
    rng = np.random.default_rng(7)
    rows = [
        [str(client), *(f"{value:.3f}" for value in rng.normal(client / 2, 1, FEATURES)), str(rng.integers(2))]
        for client in range(CLIENTS)
        for _ in range(ROWS)
    ]
    change(rows)
    return "\n".join(",".join(row) for row in [["client", "a", "b", "c", "label"], *rows]) + "\n"


def put(row, column, word):
    def change(rows):
        rows[row][column] = word

    return change


def copy_a_record(rows):
    rows[5] = list(rows[4])


def all_whole_but_one(word):
    def change(rows):
        for row in rows:
            row[1:4] = [str(round(float(value))) for value in row[1:4]]
        rows[0][1] = word

    return change


TRAINING, HELD_OUT = 0, 2
"""Where a record of the first client lies that is trained on, and one that is held out of training."""


def another_label(rows, row=TRAINING):
    rows[row][-1] = "1" if rows[row][-1] == "0" else "0"


PAIRS = {
    "another label": (lambda rows: None, another_label),
    "another label of a held-out record": (lambda rows: None, lambda rows: another_label(rows, HELD_OUT)),
}
PAIRS |= {
    "a label that is no class": (lambda rows: None, put(0, -1, "7")),
    "not a number": (lambda rows: None, put(0, 1, "nan")),
    "a gap": (lambda rows: None, put(0, 2, "")),
    "a value beyond all bounds": (lambda rows: None, put(0, 1, "1e39")),
    "a duplicate": (lambda rows: None, copy_a_record),
    "another type": (all_whole_but_one("1"), all_whole_but_one("0.5")),
}


class Counted:
    """A bound that follows what is on the tape: the noisy count is a release too, of which the scale is a function."""

    def __init__(self, tape, own):
        self.tape, self.own = tape, own

    def at(self, fitted, scale):
        return fitted

    def after(self, scale, release, sent, noise):
        return self.tape._kept(self.own.after(scale, release, sent, noise))


class Tape:
    """Records what is released, and gives it again."""

    def __init__(self, monkeypatch):
        self.released, self.is_replaying, self.replayed = [], False, 0
        answer, take = loop.answer, loop.take

        def answer_by_tape(plan, engine, asked, noise, ledger=None):
            answered = answer(plan, engine, asked, noise, ledger)
            if plan.mechanism.is_central:
                return answered
            return replace(answered, release=self._kept(answered.release))

        def take_by_tape(plan, run, asked, answered, noise):
            if plan.mechanism.is_central:
                own = plan.mechanism.at(asked.clip_scale)

                def aggregate(release, sent, noise):
                    return self._kept(own.aggregate(release, sent, noise))

                adaptive = None if own.adaptive is None else Counted(self, own.adaptive)
                plan = replace(plan, mechanism=replace(own, aggregate=aggregate, adaptive=adaptive))
            return take(plan, run, asked, answered, noise)

        release = FittedScores.release
        monkeypatch.setattr(FittedScores, "release", lambda *given: self._kept(release(*given)))
        monkeypatch.setattr(loop, "answer", answer_by_tape)
        monkeypatch.setattr(loop, "take", take_by_tape)

    def _kept(self, value):
        if self.is_replaying:
            self.replayed += 1
            return self.released[self.replayed - 1]
        self.released.append(value)
        return value


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder to work in; random names and keys, which no record has a part in, are the same at both sites."""
    folder = tmp_path / "site"
    # Libraries draw names of their own when they are first used: names are counted for each that draws them.
    counted = {}

    def drawn(kind):
        counted[kind] = counted.get(kind, 0) + 1
        return counted[kind]

    def anew():
        counted.clear()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        monkeypatch.chdir(folder)
        return folder

    monkeypatch.setattr(secrets, "token_hex", lambda n=16: f"{drawn('hex'):0{2 * n}x}")
    monkeypatch.setattr(secrets, "token_bytes", lambda n=32: drawn("bytes").to_bytes(n, "big"))
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=drawn(sys._getframe(1).f_globals["__name__"]) + (4 << 76)))
    # One run after the other, here: the tape is in this process.
    monkeypatch.setattr(
        executor, "_together", lambda jobs, table: (one for job in jobs for one in executor._alone([job], table))
    )
    # Lines that are said by the clock are a matter of arrival times.
    for display in (run_progress, batch_progress):
        monkeypatch.setattr(display, "QUIET_SECONDS", 1e6)
    return anew


def file_of(case):
    algorithm, cohorts, mechanism = CASES[case]
    given = {
        "GIVEN": SCHEMA,
        "ALGORITHM": algorithm,
        "COHORTS": cohorts,
        "MECHANISM": f'mechanism = "{NAMED.get(case, case)}"\n{mechanism}',
    }
    text = re.sub("|".join(given), lambda found: given[found[0]], FILE)
    return text.replace("coefficient = 0.5", 'kind = "signal"') if case == "reuse" else text


def everything_public(folder):
    """Return all names below a folder with their content, but for private/ and who works there since when."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if "private" in name.parts or path.name in (".lock", "records.csv"):
            continue
        content = path.read_bytes() if path.is_file() else b"a folder"
        if path.name.startswith("events.out.tfevents"):
            name, content = name.with_name("events"), without_first_event(content)
        if path.name == "meta.yaml":
            content = re.sub(rb"(creation|last_update)_time: .*", b"", content)
        found[str(name)] = content
    return found


def without_first_event(content):
    """TensorBoard's first event says when the file was begun: no record has a part in that."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 + 4 + length + 4 :]


def replayed(site, tape, capsys, case, pair, *commands):
    """Return what both sites show of some commands: exit codes, standard output and error, public files."""
    shown = []
    for change in PAIRS[pair]:
        folder = site()
        (folder / "records.csv").write_text(records(change))
        (folder / "replayed.toml").write_text(file_of(case))
        codes = [main(list(words)) for words in commands]
        shown.append((codes, *capsys.readouterr(), everything_public(folder)))
        tape.is_replaying = True
    assert tape.replayed == len(tape.released) > 0, shown[1][:3]
    return shown


def check_same(shown):
    (codes, out, err, files), (other_codes, other_out, other_err, other_files) = shown
    assert codes == other_codes
    assert out == other_out
    assert err == other_err
    assert sorted(files) == sorted(other_files)
    assert [name for name in files if files[name] != other_files[name]] == []
    assert files


RUN = ("run", "replayed.toml", "seeds=[0]")


def test_the_changed_records_lie_where_they_are_said_to(site):
    folder = site()
    (folder / "records.csv").write_text(records())
    (folder / "replayed.toml").write_text(file_of("model_clipping"))
    data = load_config("replayed.toml").build_data()
    for row, part in ((TRAINING, data.train), (HELD_OUT, data.test)):
        sample = np.array(records().splitlines()[1 + row].split(",")[1:4], dtype=np.float64)
        scaled = (2 * (sample + 4) / 9 - 1).astype(np.float32)  # by the schema's bounds
        assert (part.client(0)[0][:, [0, 1, 3]] == scaled).all(axis=1).any()


PRODUCT = [
    # How data are read is no matter of the mechanism: the whole product is for the patient.
    pytest.param(case, pair, marks=[] if pair == "another label" or case == "scores" else pytest.mark.slow)
    for pair in PAIRS
    for case in CASES
]


def every_case(*quick):
    """All of them; those that are not named are for the patient."""
    return [pytest.param(case, marks=[] if case in quick else pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("case", "pair"), PRODUCT)
def test_a_run_shows_nothing_but_releases(site, monkeypatch, capsys, case, pair):
    shown = replayed(site, Tape(monkeypatch), capsys, case, pair, RUN, ("report", "results/replayed"))
    assert shown[0][0] == [0, 0]
    check_same(shown)
    rows = shown[0][3]["results/replayed/seed-0/metrics.jsonl"].splitlines()
    scored = [row["iteration"] for row in map(json.loads, rows) if row.get("noisy_auroc") is not None]
    assert scored == ([2, 4] if case == "scores" else [])


@pytest.mark.slow
@pytest.mark.parametrize("case", every_case("update_clipping", "scores", "secret"))
def test_trackers_and_parquet_show_nothing_but_releases(site, monkeypatch, capsys, case):
    registry = pytest.importorskip("mlflow.tracking._tracking_service.registry")
    pytest.importorskip("tensorboard")

    def forgetful(anew=site):
        # MLflow remembers folders that it has made.
        registry.TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
        return anew()

    trackers = ("--parquet", "--tracker", "tensorboard", "--tracker", "mlflow")
    shown = replayed(forgetful, Tape(monkeypatch), capsys, case, "another label", (*RUN, *trackers))
    assert any("mlruns" in name and "bytes_up" in name for name in shown[0][3]) != (case == "secret")
    assert shown[0][0] == [0]
    check_same(shown)


@pytest.mark.slow
@pytest.mark.parametrize("case", every_case("model_clipping", "scores", "personal", "dpsgd"))
def test_a_comparison_shows_nothing_but_releases(site, monkeypatch, capsys, case):
    shown = replayed(site, Tape(monkeypatch), capsys, case, "another label", ("compare", "replayed.toml"))
    assert shown[0][0] == [0]
    assert "are the data holder's own" in shown[0][1]
    check_same(shown)


@pytest.mark.parametrize("case", every_case(*CASES))
def test_a_sweep_is_refused_and_shows_nothing(site, capsys, case):
    shown = []
    for change in PAIRS["another label"]:
        folder = site()
        (folder / "records.csv").write_text(records(change))
        (folder / "replayed.toml").write_text(file_of(case) + '\n[sweep]\n"local.lr" = [0.1, 0.2]\n')
        codes = [main(["sweep", "replayed.toml"])]
        shown.append((codes, *capsys.readouterr(), everything_public(folder)))
    assert shown[0][0] == [2]
    assert not (folder / "results").exists()
    check_same(shown)


def test_json_shows_nothing_but_releases(site, monkeypatch, capsys):
    commands = ((*RUN, "--json"), ("compare", "replayed.toml", "--json"))
    check_same(replayed(site, Tape(monkeypatch), capsys, "personal", "another label", *commands))


@pytest.mark.parametrize("case", ["update_clipping", "secret"])
def test_a_run_asked_for_again_with_other_data_shows_nothing_of_it(site, monkeypatch, capsys, case):
    tape, shown = Tape(monkeypatch), []
    for change in (lambda rows: None, another_label):
        folder = site()
        (folder / "records.csv").write_text(records())
        (folder / "replayed.toml").write_text(file_of(case))
        codes = [main(list(RUN))]
        (folder / "records.csv").write_text(records(change))
        codes.append(main(list(RUN)))
        shown.append((codes, *capsys.readouterr(), everything_public(folder)))
        notes = (folder / "results/replayed/seed-0/private/notes.jsonl").read_text()
        tape.is_replaying = True
    assert shown[0][0] == [0, 0]
    check_same(shown)
    # The holder is told.
    assert has_all(notes, "asked", "data")


@pytest.mark.parametrize("case", ["update_clipping", "dpsgd"])
@pytest.mark.parametrize("largest", ["49", "7000"], ids=["within the vocabulary", "beyond it"])
def test_the_largest_token_shows_nothing(site, monkeypatch, capsys, case, largest):
    """A vocabulary that were read off the tokens would be the size of the embedding."""
    tape, shown, rng = Tape(monkeypatch), [], np.random.default_rng(3)
    rows = [[str(i // ROWS), *map(str, rng.integers(0, 9, 3)), str(rng.integers(2))] for i in range(CLIENTS * ROWS)]
    tokens = '[model]\nkind = "lstm"\nhidden = 2\nembedding = 2\n\n[algorithm]'
    file = file_of(case).replace(SCHEMA, "num_classes = 2\nvocabulary = 50").replace("[algorithm]", tokens)
    for word in ("8", largest):
        folder = site()
        rows[0][1] = word
        table = [["client", "a", "b", "c", "label"], *rows]
        (folder / "records.csv").write_text("\n".join(map(",".join, table)) + "\n")
        (folder / "replayed.toml").write_text(file)
        codes = [main(list(RUN)), main(["report", "results/replayed"])]
        shown.append((codes, *capsys.readouterr(), everything_public(folder)))
        tape.is_replaying = True
    assert shown[0][0] == [0, 0]
    assert tape.replayed == len(tape.released) > 0
    check_same(shown)

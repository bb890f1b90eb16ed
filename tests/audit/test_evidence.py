"""Evidence: what is stated, recomputed by another library alone, and what it means for people."""

from __future__ import annotations

import hashlib
import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import upcycled as up
from tests.privacy.runs import QUIET, chained, wide
from tests.wording import has_all
from upcycled.audit.evidence import verify
from upcycled.audit.evidence.claims import claim_of_account, claim_of_run, recomputed
from upcycled.audit.evidence.folder import write_evidence
from upcycled.audit.evidence.texts import paragraph
from upcycled.cli.main import main
from upcycled.privacy import Account, Ledger
from upcycled.privacy.accounting import gdp_epsilon
from upcycled.privacy.ledger.joint import joint_epsilon

DELTA = 1e-5
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ethics-board.md"
FILES = {
    *("BOARD.md", "STATEMENT.md", "VERIFY.md", "config.toml", "curve.csv", "curve.png", "events.json", "head.json"),
    *("ledger.jsonl", "verify.py", "versions.json"),
}
EXPERIMENT = """
name = "small"
iterations = 4
[data]
source = "synthetic"
alpha = "iid"
clients = 3
[algorithm]
name = "fedprox"
[privacy]
mechanism = "erm_output"
norm_bound = 1.0
noise_std = 0.5
noise = "system"
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """An account that paid for three studies with different mechanisms, and for a retry."""
    folder = tmp_path_factory.mktemp("studies")
    account, data = Account.open(folder / "account", epsilon=4.0, delta=DELTA), wide()
    common = {"noise": "system", "account": account.folder, **QUIET}
    erm = up.privacy.ErmOutput(norm_bound=1.0, noise_std=4.0)
    up.train(data, algorithm=up.FedProx(mu=0.5), privacy=erm, iterations=4, **common)
    pure = up.privacy.ObjectivePerturbation(0.5, norm_bound=1.0)
    up.train(data, algorithm=up.FedProx(mu=2.0), privacy=pure, iterations=3, **common)

    def breaks_off(record):
        raise RuntimeError("gone")

    local = {"local": up.LocalSGD(batch_size=6), "algorithm": up.FedAvg(), "privacy": up.privacy.DPSGD(1.0, 8.0)}
    kept = {"checkpoint": folder / "kept", "checkpoint_every": 10, **local, "iterations": 3, **common}
    with pytest.raises(RuntimeError):
        up.train(data, callbacks=[breaks_off], **kept)
    shutil.rmtree(folder / "kept")  # nothing is left but what the account knows: the retry pays in full
    up.train(data, **kept)
    return Account.read(account.folder)


def test_an_account_is_never_below_what_dp_accounting_gives_and_not_far_above(studies):
    claim = claim_of_account(studies, "it")
    assert len(studies.studies) == 4
    assert [one.entry.round for one in studies.charges] == [1, 2, 3, 4, 1, 2, 3, 1, 1, 2, 3]
    for client in claim.clients:
        theirs = recomputed(client, claim.delta)
        assert theirs <= client.epsilon <= studies.terms.epsilon
    # One fixed order costs up to a tenth of mu where the budget is nearly spent.
    worst = claim.worst
    assert studies.share(worst.names[0]) > 0.5
    assert recomputed(worst, claim.delta) > 0.75 * worst.epsilon


def test_a_fourth_study_that_cannot_pay_is_refused_before_training(studies, monkeypatch):
    before = studies.content
    monkeypatch.setattr("upcycled.engines.sequential.Sequential.train", None)
    erm = up.privacy.ErmOutput(norm_bound=1.0, noise_std=2.0)
    with pytest.raises(up.InputError, match=r"budget.*\(.*\).*\d+.*400 data rounds"):
        up.train(wide(), algorithm=up.FedProx(), privacy=erm, iterations=400, noise="system", account=studies.folder)
    assert Account.read(studies.folder).content == before


def verified(folder, monkeypatch, capsys, *words):
    """Run the folder's own script; return its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["verify.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "verify.py"), run_name="__main__")
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


@pytest.mark.slow
def test_the_evidence_of_an_account_is_recomputed_by_its_script(studies, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "evidence"
    evidence = write_evidence(studies.folder, folder)
    assert set(evidence.files) == FILES - {"config.toml", "ledger.jsonl"} | {"account.jsonl"}
    assert (evidence.claim.epsilon, evidence.claim.delta) == (4.0, DELTA)
    assert evidence.tip == studies.head.tip
    code, said = verified(folder, monkeypatch, capsys, "--head", evidence.tip)
    assert code == 0
    assert "epsilon 4 at delta 1e-05: consistent with the charges" in said
    document = json.loads((folder / "events.json").read_text())
    kinds = {event["event"] for one in document["clients"] for event in one["events"]}
    assert kinds == {"GaussianDpEvent", "RandomizedResponseDpEvent", "PoissonSampledDpEvent"}
    # The study that broke off is there with all that it planned.
    assert {sum(event["count"] for event in one["events"]) for one in document["clients"]} != {4 + 3 + 3}
    # The holder's own stays where it is.
    assert not any("hmac" in (folder / name).read_bytes().decode(errors="ignore") for name in evidence.files
                   if name.endswith(".jsonl"))  # fmt: skip


@pytest.fixture
def seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    assert main(["run", "small.toml", "--quiet"]) == 0
    return tmp_path / "results" / "small" / "seed-0"


def test_the_evidence_of_a_run_needs_nothing_of_the_holders_own(seed, tmp_path, monkeypatch, capsys):
    shutil.rmtree(seed / "private")
    (tmp_path / "audit.json").write_text('{"epsilon_lower": 0.1}')
    words = ["privacy", "evidence", str(seed), "-o", "evidence", "--audit", "audit.json", "--json"]
    capsys.readouterr()
    assert main(words) == 0
    found, folder = json.loads(capsys.readouterr().out), tmp_path / "evidence"
    assert set(found["files"]) == FILES | {"audit.json"} == {path.name for path in folder.iterdir()}
    stated = json.loads((seed / "summary.json").read_text())["privacy"]["epsilon"]["max"]
    assert found["epsilon"] == stated
    code, said = verified(folder, monkeypatch, capsys)
    assert code == 0
    assert f"epsilon {stated:.6g} at delta 1e-05: consistent with the charges" in said
    assert "head not compared" in said
    tip = json.loads((seed / "summary.json").read_text())["privacy"]["head"]["tip"]
    assert found["tip"] == tip
    assert verified(folder, monkeypatch, capsys, "--head", tip)[0] == 0
    assert verified(folder, monkeypatch, capsys, "--head", "0" * 64) == (
        1,
        "inconsistent: these are not the charges of the head that was given\n",
    )
    # The chain, as VERIFY.md says it.
    tip = "0" * 64
    for line in (folder / "ledger.jsonl").read_text().splitlines():
        text, _, value = line.rpartition(',"chain":"')
        tip = hashlib.sha256((tip + text + "}").encode()).hexdigest()
        assert value == f'{tip}"}}'
    assert json.loads((folder / "head.json").read_text())["tip"] == tip
    rows = np.loadtxt(folder / "curve.csv", delimiter=",", skiprows=1)
    assert np.interp(stated, rows[:, 0], np.log(rows[:, 1])) == pytest.approx(math.log(DELTA), abs=0.05)
    for name in ("STATEMENT.md", "BOARD.md", "VERIFY.md"):
        assert "epsilon" in (folder / name).read_text()
    assert "which no key was asked about" in (folder / "STATEMENT.md").read_text()


def sealed(folder):
    """Make the hashes of events.json anew, as anybody can."""
    document = json.loads((folder / "events.json").read_text())
    document["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in document["files"]}
    (folder / "events.json").write_text(json.dumps(document))


def restated(folder, change, epsilon=0.5):
    """Forge what events.json states, and claim less."""
    document = json.loads((folder / "events.json").read_text())
    for client in document["clients"]:
        change(client)
    (folder / "events.json").write_text(json.dumps(document | {"claimed_epsilon": epsilon}))


def halve_counts(folder):
    def change(client):
        client["stated_epsilon"] = 0.5
        client["events"] = [event | {"count": 1} for event in client["events"]]

    restated(folder, change)


def no_clients(folder):
    document = json.loads((folder / "events.json").read_text())
    (folder / "events.json").write_text(json.dumps(document | {"clients": [], "claimed_epsilon": 0.5}))


def truncate(folder, ends=False):
    """Cut ledger and head together, and state what the rest gives."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()][:2]
    if ends:
        lines.append({"kind": "ended", "iteration": 1, "round": 1, "attempt": 0, "clients": [], "cost": 0})
    text = chained(lines)
    (folder / "ledger.jsonl").write_text(text)
    head = {"lines": len(lines), "tip": json.loads(text.splitlines()[-1])["chain"], "mac": None}
    (folder / "head.json").write_text(json.dumps(head))
    halve_counts(folder)


def null_head(folder):
    (folder / "head.json").write_text("null")
    (folder / "ledger.jsonl").write_text("garbage\n")


FORGERIES = {
    "event counts reduced": (halve_counts, "its events are not those of its charges"),
    "stated epsilon null": (lambda folder: restated(folder, lambda c: c.update(stated_epsilon=None)), "no epsilon"),
    "delta for events 0.3": (lambda folder: restated(folder, lambda c: c.update(delta_for_events=0.3)), "delta"),
    "no clients": (no_clients, "the clients of events.json are not those of the charges"),
    "ledger and head truncated": (truncate, "its events are not those of its charges"),
    "and said to have ended": (lambda folder: truncate(folder, ends=True), "planned charges are missing"),
    "null head over garbage": (null_head, "not a JSON object"),
    "a smaller claim": (lambda folder: restated(folder, lambda c: None), "not what the charges give"),
    "a smaller statement": (
        lambda folder: restated(folder, lambda c: c.update(stated_epsilon=0.5)),
        "the stated epsilon is too small",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("has_hashes", [True, False])
def test_the_script_refuses_forgeries_with_and_without_a_head(seed, tmp_path, name, has_hashes):
    folder = tmp_path / "evidence"
    tip = write_evidence(seed, folder).tip
    forge, words = FORGERIES[name]
    forge(folder)
    if has_hashes:
        sealed(folder)
    for head in (None, tip):
        with pytest.raises(verify.Inconsistent, match=words if has_hashes else None):
            verify.check(folder, head)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("ledger.jsonl", '"noise_std":[^]]+', '"noise_std":[9, 9, 9', r"chain.*broken"),
        ("head.json", '"lines": [0-9]+', '"lines": 1', r"head.*charges"),
        ("STATEMENT.md", "[0-9.]+ for the worst", "0.5 for the worst", r"states.*epsilon"),
        ("STATEMENT.md", "run [0-9a-f]+", "run 0123456789abcdef", "is not about run"),
        ("BOARD.md", "epsilon [0-9.]+ and", "epsilon 0.5 and", r"states.*epsilon"),
        ("BOARD.md", "1e-05", "1e-06", r"states.*delta"),
    ],
)
def test_the_script_refuses_evidence_that_was_changed(seed, tmp_path, file, old, new, said):
    write_evidence(seed, tmp_path / "evidence")
    path = tmp_path / "evidence" / file
    changed, times = re.subn(old, new, path.read_text())
    assert times
    path.write_text(changed)
    with pytest.raises(verify.Inconsistent, match=rf"{file}.*events.json"):
        verify.check(tmp_path / "evidence")
    sealed(tmp_path / "evidence")
    with pytest.raises(verify.Inconsistent, match=said):
        verify.check(tmp_path / "evidence")


def test_all_attempts_at_a_seed_are_in_its_evidence(seed, tmp_path, monkeypatch, capsys):
    one = Ledger.read(seed / "ledger.jsonl").max_epsilon(DELTA)
    shutil.rmtree(seed / "private")
    (seed / "summary.json").unlink()
    assert main(["run", "small.toml", "--quiet"]) == 0
    capsys.readouterr()
    both = [Ledger.read(seed / name) for name in ("ledger.jsonl", "ledger-2.jsonl")]
    assert both[1].header.previous == both[0].head.tip
    together = joint_epsilon(both, DELTA).max()
    assert together > 1.3 * one
    folder = tmp_path / "evidence"
    evidence = write_evidence(seed, folder)
    assert evidence.claim.epsilon == together
    assert f"{together:.6g} for the worst client" in (folder / "STATEMENT.md").read_text()
    assert "all 2 attempts at this run together" in (folder / "STATEMENT.md").read_text()
    code, said = verified(folder, monkeypatch, capsys, "--head", evidence.tip)
    assert (code, f"epsilon {together:.6g} at delta" in said) == (0, True)
    # Neither attempt can be left out.
    for name in ("ledger.jsonl", "ledger-2.jsonl"):
        fewer = tmp_path / f"without {name}"
        shutil.copytree(folder, fewer)
        (fewer / name).unlink()
        document = json.loads((fewer / "events.json").read_text())
        del document["files"][name]
        (fewer / "events.json").write_text(json.dumps(document))
        with pytest.raises(verify.Inconsistent, match=r"does not follow the attempt|not the head of these charges"):
            verify.check(fewer)


def test_an_attempt_that_was_killed_is_there_with_all_that_it_planned(seed, tmp_path):
    path = seed / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:-20])  # two rounds, and a line that a kill cut off
    shutil.rmtree(seed / "private")
    (seed / "summary.json").unlink()
    assert main(["run", "small.toml", "--quiet"]) == 0
    folder = tmp_path / "evidence"
    evidence = write_evidence(seed, folder)
    assert (folder / "ledger.jsonl").read_bytes() == b"".join(lines[:3])
    whole = Ledger.read(seed / "ledger-2.jsonl")
    squares = 2 * 4 * np.square(next(iter(whole)).charge.sensitivity / 0.5)
    assert evidence.claim.epsilon == pytest.approx(gdp_epsilon(mu=math.sqrt(squares.max()), delta=DELTA), rel=1e-3)
    verify.check(folder, evidence.tip)


def test_the_evidence_of_a_stopped_run_is_that_of_its_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stops = 'callbacks = ["tests.privacy.test_planned:StopsAtTwo"]\n[data]'
    (tmp_path / "small.toml").write_text(EXPERIMENT.replace("[data]", stops))
    assert main(["run", "small.toml", "--quiet"]) == 0
    evidence = write_evidence("results/small/seed-0", tmp_path / "evidence")
    ledger = Ledger.read("results/small/seed-0/ledger.jsonl")
    assert evidence.claim.epsilon == ledger.max_epsilon(DELTA) > 1.3 * ledger.spent_epsilon(DELTA)
    verify.check(tmp_path / "evidence", evidence.tip)
    assert (
        "stopped after 2 of 4 data rounds; stated for the planned 4"
        in (tmp_path / "evidence" / "STATEMENT.md").read_text()
    )


def test_a_pure_run_at_delta_zero_has_evidence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = EXPERIMENT[: EXPERIMENT.index("mechanism")]
    pure = 'mechanism = "objective_perturbation"\nnorm_bound = 1.0\nepsilon = 2.0\ndelta = 0.0\nnoise = "system"\n'
    (tmp_path / "small.toml").write_text(text + pure)
    assert main(["run", "small.toml", "--quiet"]) == 0
    evidence = write_evidence("results/small/seed-0", tmp_path / "evidence")
    assert (evidence.claim.delta, evidence.claim.epsilon) == (0.0, pytest.approx(2.0, rel=1e-6))
    verify.check(tmp_path / "evidence", evidence.tip)


def test_a_results_folder_stands_for_its_only_seed_and_several_are_named(seed, tmp_path, capsys):
    assert main(["privacy", "evidence", str(seed.parent), "-o", "evidence"]) == 0
    assert (tmp_path / "evidence" / "ledger.jsonl").read_bytes() == (seed / "ledger.jsonl").read_bytes()
    # The one thing of the holder's own that is looked at.
    assert "which the holder's key made" in (tmp_path / "evidence" / "STATEMENT.md").read_text()
    shutil.copytree(seed, seed.parent / "seed-1")
    assert main(["privacy", "evidence", str(seed.parent), "-o", "other"]) == 2
    assert has_all(capsys.readouterr().err, "2", "seeds", "ledger", seed)


def test_what_gives_no_evidence_is_refused_in_a_sentence(seed, tmp_path, capsys):
    assert main(["privacy", "evidence", "results", "-o", "evidence"]) == 2
    assert main(["privacy", "evidence", str(seed), "-o", "results"]) == 2
    assert main(["privacy", "evidence", str(seed), "-o", "evidence", "--audit", "small.toml"]) == 2
    lines = (seed / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (seed / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert main(["privacy", "evidence", str(seed), "-o", "evidence"]) == 2
    assert "by its head" in capsys.readouterr().err
    assert not (tmp_path / "evidence").exists()


def forged(seed, times):
    """Write a ledger anew with more noise in every line, its chain whole again, and put its tip into the summary."""
    tip, lines = "0" * 64, []
    for line in (seed / "ledger.jsonl").read_text().splitlines():
        content = json.loads(line)
        del content["chain"]
        if "noise_std" in content:
            content["noise_std"] = [times * std for std in content["noise_std"]]
        text = json.dumps(content, separators=(",", ":"))
        tip = hashlib.sha256((tip + text).encode()).hexdigest()
        lines.append(f'{text[:-1]},"chain":"{tip}"}}\n')
    (seed / "ledger.jsonl").write_text("".join(lines))
    summary = json.loads((seed / "summary.json").read_text())
    summary["privacy"]["head"]["tip"] = tip
    (seed / "summary.json").write_text(json.dumps(summary))


def test_a_ledger_that_was_written_anew_is_no_evidence(seed, tmp_path, capsys):
    forged(seed, 10)
    capsys.readouterr()
    # The holder has the key that the head was made with; anybody else has what the run stated when it ended.
    assert main(["privacy", "evidence", str(seed), "-o", "evidence"]) == 2
    assert "key" in capsys.readouterr().err
    shutil.rmtree(seed / "private")
    assert main(["privacy", "evidence", str(seed), "-o", "evidence"]) == 2
    assert "run's summary" in capsys.readouterr().err
    assert main(["report", str(seed.parent)]) == 0
    assert "one of them is not what the run wrote" in (seed.parent / "report.html").read_text()
    assert not (tmp_path / "evidence").exists()


def test_the_boards_table_is_the_gaussians_trade_off_and_groups_grow_with_mu(tmp_path):
    clipping = up.privacy.ErmOutput(norm_bound=1.0, noise_std=1.0)
    asked = {"algorithm": up.FedProx(mu=0.5), "privacy": clipping, "iterations": 5, **QUIET}
    up.train(wide(), **asked, ledger=tmp_path / "ledger.jsonl")
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    claim = claim_of_run([ledger], DELTA, "it")
    charge = next(iter(ledger)).charge
    mu = math.sqrt(5) * float((charge.sensitivity / charge.noise_std).max())
    for wrongly, misses in claim.least_misses():
        exact = norm.cdf(norm.ppf(1 - wrongly) - mu)
        assert exact - 0.02 < misses <= exact + 1e-6
    for k, epsilon, delta in claim.groups():
        assert (epsilon, delta) == (pytest.approx(gdp_epsilon(mu=k * mu, delta=DELTA), rel=2e-3), DELTA)
    assert claim.is_simulation
    clipped = up.train(wide(), **asked | {"privacy": up.privacy.ModelClipping(1.0, 20.0)}).privacy
    assert len({epsilon for _, epsilon, _ in claim_of_run([clipped], DELTA, "it").groups()}) == 1


QUOTED = "\n".join(line.removeprefix(">").strip() for line in PAGE.read_text().splitlines() if line.startswith(">"))


def test_the_boards_page_is_the_paragraph_of_the_documentation_filled_in(seed, tmp_path):
    """Whatever stands in brackets there is filled in, in its order; every other word is the same."""
    account = Account.open(tmp_path / "account", epsilon=4.0, delta=DELTA)
    (tmp_path / "paid.toml").write_text(EXPERIMENT.replace('"small"', '"paid"') + f'account = "{account.folder}"\n')
    assert main(["run", "paid.toml", "--quiet"]) == 0
    write_evidence("results/paid/seed-0", tmp_path / "evidence")
    board = (tmp_path / "evidence" / "BOARD.md").read_text()
    shown, not_covered = (" ".join(part.split()) for part in QUOTED.split("\n\n"))
    words = [re.escape(part) for part in re.split(r"\[[^]]*\]", shown)]
    filled = re.search("(.+)".join(words), board)
    assert filled is not None
    ledger = Ledger.read("results/paid/seed-0/ledger.jsonl")
    worst = ledger.max_epsilon(DELTA)
    # 20 features and a bias for two classes; three clients, four data rounds.
    right = math.ceil(1000 * (math.exp(worst) + DELTA) / (1 + math.exp(worst))) / 10
    assert filled.groups() == ("3", "4", "42", f"{worst:.3f}", "1e-05", f"{right:.1f}", "4")
    assert not_covered in board

    write_evidence(seed, tmp_path / "alone")
    alone = (tmp_path / "alone" / "BOARD.md").read_text()
    assert "No account holds all studies" in alone
    assert "held to epsilon" not in alone


def test_the_boards_page_of_an_account_is_about_all_its_studies(studies, tmp_path):
    write_evidence(studies.folder, tmp_path / "evidence")
    board = (tmp_path / "evidence" / "BOARD.md").read_text()
    assert f"The records stay at {len(studies.clients)} sites. In each of at most 11 data rounds a site sends" in board
    assert (
        "all studies together satisfy differential privacy with epsilon 4.000 and delta 1e-05 for each single" in board
    )


def test_the_boards_paragraph_names_a_trusted_server_whole_clients_and_noisy_scores():
    usual = {"sites": "3", "rounds": "4", "numbers": None, "epsilon": "1", "delta": "0.01", "guesses": "74"}
    central = paragraph(**usual, account=None, unit="client", sees="aggregates")
    assert "to a server that is trusted with it" in central
    assert "for all records of a site together" in central
    assert "but not against the server" in central
    assert "including the organisers" not in central
    scored = paragraph(**usual, account=None, has_scores=True)
    assert "nothing else that is computed from records leaves it but noisy counts" in scored


def test_a_model_that_cannot_be_read_is_no_length_of_what_was_sent(seed, tmp_path):
    (seed / "model.safetensors").write_bytes(b"no model")
    with pytest.raises(up.InputError, match=r"damaged.*numbers"):
        write_evidence(seed, tmp_path / "evidence")
    (seed / "model.safetensors").unlink()
    write_evidence(seed, tmp_path / "evidence")
    assert "a site sends one vector, the result" in (tmp_path / "evidence" / "BOARD.md").read_text()


def test_a_sampled_run_states_groups_by_the_rule_that_always_holds(tmp_path):
    sampled = {"privacy": up.privacy.DPSGD(1.0, 4.0), "local": up.LocalSGD(batch_size=6), "algorithm": up.FedAvg()}
    ledger = up.train(wide(), **sampled, iterations=1, **QUIET).privacy
    claim = claim_of_run([ledger], 1e-3, "it")
    one, two, *_ = claim.groups()
    assert two[1] == pytest.approx(2 * one[1])
    assert two[2] == pytest.approx(1e-3 * (math.exp(2 * one[1]) - 1) / (math.exp(one[1]) - 1))


@pytest.mark.slow
def test_the_evidence_is_verified_where_nothing_but_dp_accounting_is_installed(studies, tmp_path):
    write_evidence(studies.folder, tmp_path / "evidence")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    got = subprocess.run([python, "-m", "pip", "install", "-q", "dp-accounting==0.6.0"], check=False)
    if got.returncode:
        pytest.skip("pip cannot install dp-accounting here")
    assert subprocess.run([python, "-Ic", "import upcycled"], check=False, cwd=tmp_path).returncode
    command = [python, "-I", "verify.py"]
    said = subprocess.run(command, cwd=tmp_path / "evidence", check=True, capture_output=True, text=True)
    assert "head not compared" in said.stdout

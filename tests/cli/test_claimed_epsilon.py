"""An epsilon that rests on somebody's own mechanism is called its claim wherever it is stated, and nowhere proven."""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest

import upcycled as up
from upcycled.audit.findings import Audit, AuditedClaim
from upcycled.cli.main import main
from upcycled.privacy.mechanisms import MECHANISMS, claim_word

CODE = """
from dataclasses import dataclass

import upcycled as up


@dataclass(frozen=True)
class Borrowed:
    epsilon: float
    delta: float
    name = "borrowed"

    def fit(self, setting):
        return up.privacy.ErmOutput(norm_bound=1.0, epsilon=self.epsilon, delta=self.delta).fit(setting)
"""
FILE = """
name = "own"
iterations = 4
[data]
source = "synthetic"
alpha = "iid"
clients = 3
[algorithm]
name = "fedprox"
mu = 0.5
[privacy]
mechanism = "borrowed_parts:Borrowed"
epsilon = 1.0
delta = 1e-5
noise = "system"
account = "account"
"""
CLAIM = "claimed by borrowed, not proven by this package"
ABOUT_THE_SAMPLER = "sampled up to a proven error"


def is_called_proven(text):
    return re.search(r"(?<!not )proven", text.replace(ABOUT_THE_SAMPLER, ""), re.IGNORECASE) is not None


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run with a mechanism of one's own, charged to an account: its folder, and what each command says."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "borrowed_parts.py").write_text(CODE)
    (folder / "own.toml").write_text(FILE)
    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delitem(sys.modules, "borrowed_parts", raising=False)
        for name, words in {
            "open": "privacy account open account --epsilon 4 --delta 1e-5",
            "explain": "privacy explain own.toml --path .",
            "run": "run own.toml --path . --quiet",
            "report": "report results/own",
            "ledger": "privacy ledger results/own/seed-0/ledger.jsonl",
            "account": "privacy account show account",
            "evidence": "privacy evidence results/own/seed-0 -o evidence",
            "account's evidence": "privacy evidence account -o evidence-of-account",
        }.items():
            out = StringIO()
            with redirect_stdout(out):
                assert main(words.split()) == 0, words
            said[name] = out.getvalue()
    return folder, said


@pytest.mark.parametrize("command", ["explain", "run", "ledger", "account", "evidence", "account's evidence"])
def test_every_command_that_states_its_epsilon_says_whose_claim_it_is(done, command):
    said = " ".join(done[1][command].replace("│", " ").split())  # cells of a table go over several lines
    assert CLAIM in said
    assert not is_called_proven(said)


def test_the_rows_of_explain_say_so_too(done):
    said = done[1]["explain"]
    assert f"epsilon ({CLAIM}): 1 for the worst client" in said
    assert f"the worst client's, {CLAIM})" in said  # in plain words


@pytest.mark.parametrize("folder", ["evidence", "evidence-of-account"])
@pytest.mark.parametrize("file", ["BOARD.md", "STATEMENT.md", "VERIFY.md"])
def test_the_evidence_says_it_in_every_text(done, folder, file):
    text = (done[0] / folder / file).read_text()
    assert CLAIM in text
    assert not is_called_proven(text)


def test_the_page_says_it_at_its_top_and_calls_no_number_proven(done):
    page = (done[0] / "results" / "own" / "report.html").read_text()
    assert f"<dt>Worst ε of a run, {CLAIM}</dt>" in page
    assert f"Epsilon is {CLAIM} for what the code did" in page
    assert f"ε is {CLAIM}." in page
    assert f"Epsilon ({CLAIM}) over clients" in page
    assert not is_called_proven(page)


def test_files_and_values_say_it(done):
    summary = json.loads((done[0] / "results/own/seed-0/summary.json").read_text())["privacy"]
    assert (summary["mechanism"], summary["claim"]) == ("borrowed", CLAIM)
    ledger = up.privacy.Ledger.read(done[0] / "results/own/seed-0/ledger.jsonl")
    assert ledger.claim == up.privacy.Account.read(done[0] / "account").claim == CLAIM
    assert ledger.worst_in_words.endswith(f", {CLAIM}")
    assert f"epsilon ({CLAIM}): 1 for the worst client" in str(up.load(done[0] / "results/own/seed-0").privacy)


def test_an_audit_calls_it_what_it_is():
    own = Audit("it", AuditedClaim(1.0, 1e-5, word=claim_word("borrowed")), "proven", 0.5, {})
    assert own.sentences[-1] == f"what is {CLAIM}, epsilon 1 for this round, is not refuted by this attack"
    assert own.claim.title == CLAIM


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_the_packages_is_proven_and_one_foreign_study_makes_the_sum_a_claim(name):
    assert claim_word(name) == claim_word(*MECHANISMS) == "proven"
    assert claim_word(name, "b", "a") == "claimed by a and b, not proven by this package"

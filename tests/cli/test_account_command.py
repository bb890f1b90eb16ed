"""``upcycled privacy account``, and files whose runs are charged to one."""

from __future__ import annotations

import json

import pytest

from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.privacy import Account
from upcycled.training.charging import new_to_account

FILE = """
name = "{name}"
iterations = {iterations}
seeds = [0, 1]
results = "results"
[data]
source = "synthetic"
alpha = "iid"
clients = 3
validation_fraction = 0.2
[algorithm]
name = "fedavg"
[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 20.0
noise = "{noise}"
account = "account"
"""


@pytest.fixture
def account(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["privacy", "account", "open", "account", "--epsilon", "4", "--delta", "1e-5"]) == 0
    capsys.readouterr()
    return tmp_path / "account"


SWEEP = """
scores = { noise_std = 60.0, every = 4 }
[sweep]
"local.lr" = [0.01, 0.1]
"""


def written(name="first", iterations=4, noise="system", more=""):
    with open(f"{name}.toml", "w") as file:
        file.write(FILE.format(name=name, iterations=iterations, noise=noise) + more)
    return f"{name}.toml"


def document(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_account_that_was_rolled_back_is_refused_by_a_head_that_was_kept(account, tmp_path, capsys):
    assert main(["run", written(), "--quiet"]) == 0
    capsys.readouterr()
    (tmp_path / "kept.json").write_text(json.dumps(document(capsys, "privacy", "account", "show", str(account))))
    head = ["--head", str(tmp_path / "kept.json")]
    assert document(capsys, "privacy", "account", "show", str(account), *head)["charges"] == 8
    lines = (account / "account.jsonl").read_bytes().splitlines(keepends=True)
    (account / "account.jsonl").write_bytes(b"".join(lines[:-3]))
    left = [json.loads(line)["kind"] for line in lines[:-3]].count("charge")  # seeds run at the same time
    assert document(capsys, "privacy", "account", "show", str(account))["charges"] == left < 8
    assert main(["privacy", "account", "show", str(account), *head]) == 2
    assert "does not hold all that its head says" in capsys.readouterr().err
    assert main(["privacy", "account", "show", str(account), "--head", "first.toml"]) == 2
    assert has_all(capsys.readouterr().err, "expected", "head")


def test_an_account_that_could_never_pay_is_not_opened(tmp_path, capsys):
    words = [
        "privacy",
        "account",
        "open",
        str(tmp_path / "a"),
        "--epsilon",
        "30",
        "--delta",
        "1e-5",
        "--kind",
        "gaussian",
    ]
    assert main(words) == 2
    assert has_all(capsys.readouterr().err, "pays", "noise")
    assert not (tmp_path / "a").exists()


def test_an_account_is_opened_shown_and_closed(account, capsys):
    shown = document(capsys, "privacy", "account", "show", str(account))
    assert (shown["epsilon"], shown["delta"], shown["closed"], shown["clients"]) == (4.0, 1e-5, False, [])
    assert main(["privacy", "account", "show", str(account)]) == 0
    assert shown["id"] in capsys.readouterr().out
    assert document(capsys, "privacy", "account", "close", str(account))["closed"]
    assert main(["run", written(), "--quiet"]) == 2
    assert "is closed" in capsys.readouterr().err


def test_pots_of_the_command_line(tmp_path, capsys):
    words = ["privacy", "account", "open", str(tmp_path / "a"), "--pot", "gaussian:1.5:1e-6", "--pot", "pure:0.5:0"]
    found = document(capsys, *words)
    assert (found["epsilon"], found["delta"]) == (2.0, 1e-6)
    assert [pot["kind"] for pot in found["pots"]] == ["gaussian", "pure"]
    for wrong in (["--pot", "gaussian:1"], ["--pot", "pure:1:0", "--kind", "pure"], []):
        assert main(["privacy", "account", "open", str(tmp_path / "b"), *wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_seeds_charge_the_account_once_and_what_is_reused_or_simulated_does_not(account, capsys):
    file = written()
    found = document(capsys, "run", file, "--quiet")
    # Two seeds of four data rounds.
    assert Account(account).rounds("0") == 8
    spent = found["seeds"][0]["privacy"]
    assert spent["account"]["id"] == Account(account).id
    assert Account(account).id in spent["scope"]
    assert main(["run", file, "--quiet"]) == 0
    assert Account(account).id in capsys.readouterr().out
    assert main(["run", written("simulated", noise="seeded"), "--quiet"]) == 0
    assert "this run only" in capsys.readouterr().out
    assert Account(account).rounds("0") == 8


def test_seeds_that_do_not_fit_together_are_refused_before_anything_is_written(account, capsys, tmp_path):
    left = int(Account(account).terms.pots[0].limit / (Account(account).terms.pots[0].order * 0.1**2 / 2))
    assert main(["run", written(iterations=left // 2 + 1), "--quiet"]) == 2
    assert has_all(capsys.readouterr().err, "2", "together: client '0'", "100", "budget", left)
    assert not (tmp_path / "results").exists()
    assert not Account(account).studies


def test_the_report_says_what_an_epsilon_is_about(account, capsys, tmp_path):
    assert main(["run", written(), "--quiet"]) == 0
    assert main(["report", "results/first"]) == 0
    assert Account(account).id in (tmp_path / "results" / "first" / "report.html").read_text()


def test_a_sweep_with_real_noise_says_the_sum_first_and_charges_every_trial(account, capsys):
    file = written(more=SWEEP)
    assert main(["sweep", file, "--seeds", "0", "--metric", "accuracy"]) == 2
    assert has_all(capsys.readouterr().err, "one", "charged")
    assert main(["sweep", file, "--seeds", "0", "--json"]) == 0
    shown = capsys.readouterr()
    found, (first, *_) = json.loads(shown.out), shown.err.splitlines()
    # Two points of one seed, and the chosen one with both of the file's.
    assert first.startswith(f"2 trials will be charged to account {Account(account).id}")
    assert Account(account).rounds("0") == (2 + 2) * 4
    scores = [one for one in Account(account).charges if one.entry.kind == "scores"]
    assert len(scores) == 4
    means = [row["score"]["mean"] for row in found["ranking"]]
    assert means == sorted(means, reverse=True)
    assert main(["sweep", file, "--seeds", "0", "--quiet"]) == 0
    assert Account(account).rounds("0") == 16  # all of it is there already


def test_the_sum_of_a_sweep_is_what_it_then_costs(account, capsys):
    assert main(["sweep", written(more=SWEEP), "--quiet"]) == 0
    spent = Account(account).share("0")
    assert main(["sweep", written("again", more=SWEEP)]) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert f"{100 * spent:.0f} % of the worst" in said
    assert Account(account).share("0") == pytest.approx(2 * spent)


def test_a_sweep_that_nobody_pays_for_or_that_does_not_fit_is_refused(account, capsys, tmp_path):
    file = written(more=SWEEP)
    for words, sentence in (
        (["iterations=16"], "trials and the chosen settings together"),
        (["iterations=1000"], "these 4 runs together"),
        (["--optuna", "3"], "known before the first"),
    ):
        assert main(["sweep", file, *words]) == 2
        assert sentence in capsys.readouterr().err
    text = (tmp_path / file).read_text()
    for line, sentence in (
        ('account = "account"', "must name an account"),
        ("scores = { noise_std = 60.0, every = 4 }", "privacy.scores is missing"),
    ):
        (tmp_path / "other.toml").write_text(text.replace(line, ""))
        assert main(["sweep", "other.toml"]) == 2
        assert sentence in capsys.readouterr().err
    assert not Account(account).studies
    public = text.replace('account = "account"', "").replace("clients = 3", "clients = 3\npublic = true")
    (tmp_path / "public.toml").write_text(public)
    assert main(["sweep", "public.toml", "--quiet"]) == 0


TABLES = """
name = "{name}"
iterations = 2
[data]
source = "table"
path = "sites"
schema.columns.age = {{ kind = "number", bounds = [0, 100] }}
schema.columns.ill = {{ kind = "label", classes = ["no", "yes"] }}
[algorithm]
name = "fedavg"
[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 20.0
noise = "system"
account = "account"
"""


def test_clients_that_an_account_does_not_know_are_named_before_it_is_charged(account, tmp_path, capsys):
    (tmp_path / "sites").mkdir()
    for site in ("kings", "lyon", "site1"):
        (tmp_path / "sites" / f"{site}.csv").write_text("age,ill\n" + "70,yes\n20,no\n" * 10)
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.toml").write_text(TABLES.format(name=name))
    for file in ("first.toml", "second.toml"):  # nobody has paid yet; then everybody is known
        assert main(["privacy", "explain", file]) == 0
        assert main(["run", file, "--quiet"]) == 0
        shown = capsys.readouterr()
        assert "ew to account" not in shown.out + shown.err
    for old, new in (("kings", "Kings"), ("lyon", "lyon_2026"), ("site1", "site2")):
        (tmp_path / "sites" / f"{old}.csv").rename(tmp_path / "sites" / f"{new}.csv")
    sentence = (
        f"ew to account {Account(account).id}: 'Kings' (nearly 'kings', which it knows), 'lyon_2026' (nearly 'lyon', "
        "which it knows), 'site2'; a client that was renamed starts at zero there, and its records may be charged "
        "twice over"
    )
    assert main(["privacy", "explain", "third.toml"]) == 0
    assert f"\nN{sentence}.\n" in capsys.readouterr().out
    assert main(["run", "third.toml", "seeds=[0, 1]", "--quiet"]) == 0  # said, not refused
    said = capsys.readouterr().err
    assert said.count(f"note: n{sentence}\n") == 1
    assert main(["run", "third.toml", "seeds=[2]", "--quiet"]) == 0  # it knows them by now
    assert "ew to account" not in capsys.readouterr().err


def test_of_many_new_clients_those_with_a_known_name_are_listed_first(account, tmp_path, capsys):
    assert main(["run", written(), "--quiet"]) == 0
    capsys.readouterr()
    found = new_to_account(Account(account), ["0", *(f"site{i}" for i in range(6)), " 1", "2"])
    assert found[0].split(": ")[1].split(";")[0] == (
        "' 1' (nearly '1', which it knows), 'site0', 'site1', 'site2', 'site3' and 2 more"
    )

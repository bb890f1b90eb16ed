"""A site's own file, and a federation's folder and invitations: what they must say, and who may read them."""

import json
import re
from pathlib import Path

import pytest
import tomli_w

import upcycled as up
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.data.schema.schema import as_schema
from upcycled.federation.certificates import public_line, read_invitation, site_key
from upcycled.federation.folder import invite, let_in, make_folder, open_folder
from upcycled.federation.site.join_checks import check_joining
from upcycled.federation.site.policy import account_of, policy_of, read_policy, site_data
from upcycled.federation.site.site import open_site
from upcycled.federation.transport import REQUIREMENT

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
ROWS = "patient,age,sex,admitted,creatinine,diagnosis\np1,40,f,2020-01-01,90,ill\np2,,m,2021-01-01,80,well\n"
POLICY = {"name": "bern", "data": {"path": "site.csv", "schema": str(EXAMPLE / "schema.toml")}}


@pytest.fixture
def folder(tmp_path):
    experiment = load_config(EXAMPLE / "experiment.toml")
    return make_folder(experiment, tmp_path / "study", ["bern", "lyon"], "study.example", 18100, "127.0.0.1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../bern"}, r"name.*'\.\./bern'.*letters"),
        ({"data": {}}, r"experiment.*client"),
        ({"data": {"experiment": "x.toml"}}, r"experiment.*client"),
        ({"privacy": {"least_noise": 0.0}}, r"privacy\.least_noise.*0\.0.*0"),
        ({"privacy": {"mechanism": "dpsgd"}}, r"privacy\.mechanism.*'dpsgd'.*\[privacy\].*key"),
        ({"account": {"epsilon": 1.0}}, r"account\.delta.*missing.*>= 0.*1"),
        ({"budget": 1}, r"file.*key"),
    ],
)
def test_what_is_wrong_in_a_policy_is_one_sentence(changes, words, tmp_path):
    with pytest.raises(up.InputError) as refused:
        policy_of(POLICY | changes, tmp_path)
    assert re.search(words, str(refused.value))


def test_what_a_policy_does_not_say_protects_more(tmp_path):
    policy = policy_of(POLICY, tmp_path)
    limits = policy.privacy
    assert (limits.mechanisms, limits.evaluations, limits.trusts_server, limits.code) == ((), False, False, ())
    assert not policy.simulation
    assert policy.account is None


def test_the_examples_policy_is_one_and_paths_are_beside_it():
    policy = read_policy(EXAMPLE / "policy.toml")
    assert policy.data.path == str(EXAMPLE / "site.csv")
    assert read_policy(EXAMPLE / "policy.toml", "elsewhere.csv").data.path == str(Path("elsewhere.csv").absolute())


def test_a_sites_table_is_one_client_with_the_policys_name(tmp_path):
    (tmp_path / "site.csv").write_text(ROWS)
    data = site_data(policy_of(POLICY, tmp_path))
    assert (data.num_clients, data.name_of(0), data.train.num_rows) == (1, "bern", 2)
    assert data.inferred == frozenset()


def test_a_check_calls_labels_that_are_no_class_wrong_and_tells_every_note(folder, tmp_path):
    # Another site's invitation: nothing is asked of the network, and columns are looked at all the same.
    invitation, policy = read_invitation(invite(folder, "lyon")), policy_of(POLICY, tmp_path)

    def told(rows):
        (tmp_path / "site.csv").write_text(rows)
        (found,) = [one for one in check_joining(invitation, policy, tmp_path) if one.what == "columns"]
        return found

    wrong = told(ROWS.replace("ill", "ILL").replace("well", "WELL"))
    assert not wrong.is_right
    assert has_all(wrong.said, "'ILL'", "row 0", "1", "'ill'")
    # A run takes them all the same: whether it did would tell what is in them.
    assert "label column" in open_site(policy, tmp_path).notes[0]
    head, *rows = ROWS.splitlines()
    right = told("\n".join([head, *rows * 10, "p3,400,f,2020-01-01,9999,Ill"]) + "\n")
    assert right.is_right
    assert [line.split()[1] for line in right.said.splitlines()[1:]][:1] == ["label"]
    assert right.said.count("note: ") == 4


def test_a_table_without_a_schema_anywhere_is_refused(tmp_path):
    (tmp_path / "site.csv").write_text(ROWS)
    with pytest.raises(up.InputError, match=r"data.schema.*missing.*schema.*invitation"):
        site_data(policy_of({"name": "bern", "data": {"path": "site.csv"}}, tmp_path))


def test_a_client_of_an_experiment_has_its_rows_and_nobody_elses(tmp_path):
    experiment = load_config(EXAMPLE.parent / "synthetic.toml")
    whole = experiment.build_data()
    said = {"experiment": str(EXAMPLE.parent / "synthetic.toml"), "client": 2}
    data = site_data(policy_of({"name": "two", "data": said}, tmp_path))
    assert data.sizes.tolist() == [whole.sizes[2]]
    assert (data.train.x == whole.train.client(2)[0]).all()
    with pytest.raises(up.InputError, match=r"data.client.*999"):
        site_data(policy_of({"name": "two", "data": said | {"client": 999}}, tmp_path))


def test_an_accounts_terms_are_fixed_by_the_first_policy(tmp_path):
    account = {"epsilon": 3.0, "delta": 1e-5}
    first = account_of(policy_of(POLICY | {"account": account}, tmp_path), tmp_path)
    assert first.terms.epsilon == 3.0
    assert first.folder.stat().st_mode & 0o777 == 0o700
    assert account_of(policy_of(POLICY | {"account": account}, tmp_path), tmp_path).id == first.id
    with pytest.raises(up.InputError, match=r"epsilon 3.*delta 1e-05"):
        account_of(policy_of(POLICY | {"account": account | {"epsilon": 9.0}}, tmp_path), tmp_path)


def test_a_federations_keys_are_its_operators_alone(folder):
    assert folder.private.stat().st_mode & 0o777 == 0o700
    secret = [path.name for path in folder.private.iterdir() if path.stat().st_mode & 0o777 == 0o600]
    assert sorted(secret) == ["ca.key", "federation.key", "server.key"]
    assert open_folder(folder.path).address == "study.example:18100"
    with pytest.raises(up.InputError, match="federation already"):
        make_folder(folder.experiment(), folder.path, ["bern"], "study.example", 18100, "127.0.0.1")


def test_an_invitation_has_what_a_site_needs_and_no_secret(folder, tmp_path):
    path = invite(folder, "bern")
    found = read_invitation(path)
    assert (found.federation, found.site, found.address) == ("hospitals", "bern", "study.example:18100")
    assert as_schema(found.schema).fingerprint == up.data.Schema.read(EXAMPLE / "schema.toml").fingerprint
    assert "PRIVATE" not in path.read_text()
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace(found.fingerprint, "0" * 64))
    with pytest.raises(up.InputError, match=r"one.*fingerprint"):
        read_invitation(other)
    with pytest.raises(up.InputError, match=r"SITE.*'rome'.*federation's sites"):
        invite(folder, "rome")


def test_a_sites_key_is_made_once_and_only_its_public_part_is_shown(folder, tmp_path):
    key = site_key(tmp_path / "node.key")
    assert site_key(tmp_path / "node.key") == key
    assert (tmp_path / "node.key").stat().st_mode & 0o777 == 0o600
    line = public_line(key)
    assert line.startswith("ecdsa-sha2-nistp384 ")
    let_in(folder, "bern", line)
    assert folder.keys() == {"bern": line}
    with pytest.raises(up.InputError, match=r"key.*site 'bern'"):
        let_in(folder, "bern", public_line(site_key(tmp_path / "another")))
    with pytest.raises(up.InputError, match="site's public key"):
        let_in(folder, "lyon", "ssh-rsa AAAA")
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(up.InputError, match=r"others.*owner"):
        site_key(tmp_path / "node.key")


def test_the_command_makes_a_folder_and_invitations(tmp_path, capsys):
    place = str(tmp_path / "study")
    assert main(["federation", "init", str(EXAMPLE / "experiment.toml"), place, "--sites", "bern,lyon"]) == 0
    assert capsys.readouterr().out == f"{place}: a federation of 2 sites (bern, lyon)\n"
    assert main(["federation", "invite", place, "lyon"]) == 0
    assert capsys.readouterr().out.strip() == f"{place}/invitations/lyon.toml"
    assert main(["federation", "invite", place, "rome"]) == 2
    assert main(["federation", "down", place]) == 0
    assert capsys.readouterr().out == "nothing was up\n"
    assert main(["federation", "status", str(tmp_path)]) == 2
    assert "`upcycled federation init`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('keep_best = "loss"', r"keep_best.*'loss'.*federation's server.*samples"),
        ('metrics = ["auroc"]', "metrics is"),
    ],
)
def test_what_needs_samples_at_the_server_is_refused_when_a_folder_is_made(more, words, tmp_path, capsys):
    text = (EXAMPLE.parent / "synthetic.toml").read_text()
    (tmp_path / "file.toml").write_text(f"{more}\n{text}")
    assert main(["federation", "init", str(tmp_path / "file.toml"), str(tmp_path / "study")]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "study").exists()


def test_without_flower_the_commands_say_what_installs_it(folder, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "flwr", None)
    for words in (["up"], ["status"], ["run"]):
        assert main(["federation", *words, str(folder.path)]) == 2
        assert "install '.[flower]'" in capsys.readouterr().err


def test_charged_scores_are_refused_in_a_sentence_that_says_the_files_key(tmp_path, capsys):
    text = (EXAMPLE / "experiment.toml").read_text().replace('"schema.toml"', f'"{EXAMPLE}/schema.toml"')
    (tmp_path / "file.toml").write_text(f"{text}\n[privacy.scores]\nnoise_std = 10.0\nevery = 5\n")
    assert main(["federation", "init", str(tmp_path / "file.toml"), str(tmp_path / "study"), "--sites", "bern"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "privacy.scores is " in line
    assert "charged scores are not offered over a federation" in line
    assert not (tmp_path / "study").exists()


COMMANDS = ["up F", "up F --server", "run F", "status F", "invite F bern --key K"]
COMMANDS += ["join I --policy P", "check I --policy P"]
"""All that meet Flower: `init`, `invite` without a key, and `down` do not."""


@pytest.mark.parametrize(
    ("command", "version"), [*((command, "1.43.0") for command in COMMANDS), ("run F", "1.39.2"), ("run F", "next")]
)
def test_another_version_of_flower_is_one_sentence(command, version, folder, monkeypatch, capsys, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")
    monkeypatch.setattr("upcycled.federation.transport.metadata.version", lambda name: version)
    (tmp_path / "key").write_text(public_line(site_key(tmp_path / "node.key")))
    (tmp_path / "policy.toml").write_text(tomli_w.dumps(POLICY))
    places = {"F": folder.path, "I": invite(folder, "bern"), "K": tmp_path / "key", "P": tmp_path / "policy.toml"}
    assert main(["federation", *(str(places.get(word, word)) for word in command.split())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"flwr {version} is installed" in line
    assert line.endswith(f"pip install '{REQUIREMENT}'")


def test_a_status_line_is_json_too(folder, monkeypatch, capsys):
    monkeypatch.setattr(
        "upcycled.federation.local.status", lambda found: [("server", "answers"), ("bern", "connected")]
    )
    assert main(["federation", "status", str(folder.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"server": "answers", "bern": "connected"}


def test_the_process_that_is_connected_loads_nothing_that_local_work_needs():
    """It is started at every site, beside a worker: what it does not load is what starting takes no time for."""
    import subprocess
    import sys

    asked = "import sys, upcycled.federation.site.node; print('torch' in sys.modules, 'pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]

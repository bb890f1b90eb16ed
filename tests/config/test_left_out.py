"""Every file has its twins: keys are unset, and options that a new kind does not have go, with a word."""

from __future__ import annotations

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all, only_line
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError

TEXT = """\
name = "twin"
iterations = 4
loss = "cross_entropy"

[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 4

[algorithm]
name = "fedprox"
mu = 0.5

[upcycle]
coefficient = 0.7

[local]
lr = { kind = "cosine", lr = 0.1, final = 0.01 }

[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 2.0
budget = { epsilon = 2.0, delta = 1e-5 }

[sweep]
"algorithm.mu" = [0.1, 1.0]
"privacy.noise_std" = [1.0, 2.0]
upcycle.coefficient = [0.3, 0.6]
"""


@pytest.fixture
def file(tmp_path):
    return small_file(tmp_path, text=TEXT)


def loaded(file, *overrides):
    said: list[str] = []
    return load_config(file, overrides, said.append), said


def test_a_table_is_unset_with_what_was_swept_in_it(file):
    found, said = loaded(file, "~upcycle", "~privacy")
    assert found.upcycle is None
    assert found.privacy is None
    assert list(found.sweep) == ["algorithm.mu"]
    assert said == [
        'upcycle is unset: sweep."upcycle.coefficient" of the file goes with it',
        'privacy is unset: sweep."privacy.noise_std" of the file goes with it',
    ]


def test_a_key_in_a_table_is_unset_and_has_its_default_again(file):
    found, said = loaded(file, "~privacy.budget", "~iterations")
    assert found.privacy.budget is None
    assert found.privacy.noise_std == 2.0
    assert found.iterations == 100
    assert said == []


def test_the_rest_of_the_file_is_as_it_was(file):
    found, _ = loaded(file, "~upcycle")
    whole, _ = loaded(file)
    differing = {key for key, value in whole.resolved().items() if found.resolved().get(key) != value}
    assert differing == {"upcycle", "sweep"}


def test_what_the_file_does_not_have_is_unset_already_and_what_no_file_has_is_refused(file):
    assert loaded(file, "~keep_best", "~upcycle.kind")[0] == loaded(file)[0]
    with pytest.raises(InputError, match=r"key.*did you mean 'upcycle'"):
        load_config(file, ["~upcylce"])
    with pytest.raises(InputError, match=r"~algorithm\.nu.*key.*did you mean 'mu'"):
        load_config(file, ["~algorithm.nu"])
    for word in ("~", "~a=1"):
        with pytest.raises(InputError, match="form ~key"):
            load_config(file, [word])
    with pytest.raises(InputError, match=r"algorithm.*missing"):
        load_config(file, ["~algorithm"])


def test_what_is_unset_and_given_is_what_is_given(file):
    found, _ = loaded(file, "algorithm.name=scaffold", "~algorithm")
    assert found.algorithm.model_dump() == {"name": "scaffold", "server_lr": 1.0}


def test_a_changed_name_drops_the_options_it_does_not_have_and_says_so(file):
    found, said = loaded(file, "algorithm.name=fedavg")
    assert found.algorithm.name == "fedavg"
    assert "algorithm.mu" not in found.sweep
    assert said == ["algorithm.name is 'fedavg' now: algorithm.mu, sweep.\"algorithm.mu\" of the file are left out"]


def test_options_that_the_new_kind_has_stay(file):
    found, said = loaded(file, "privacy.mechanism=update_clipping")
    assert (found.privacy.clip_norm, found.privacy.noise_std, found.privacy.budget.epsilon) == (1.0, 2.0, 2.0)
    assert said == []


def test_an_option_that_is_given_with_the_name_is_never_dropped(file):
    with pytest.raises(InputError, match=r"algorithm\.mu.*0\.3.*key"):
        load_config(file, ["algorithm.name=fedavg", "algorithm.mu=0.3"])


def test_a_misspelt_name_is_still_refused(file):
    with pytest.raises(InputError, match=r"algorithm\.name.*'fedagv'.*did you mean"):
        load_config(file, ["algorithm.name=fedagv"])


def test_a_kind_within_a_table_changes_too(file):
    found, said = loaded(file, "local.lr.kind=warmup", "local.lr.warmup=2")
    assert found.local.lr.model_dump() == {"kind": "warmup", "lr": 0.1, "warmup": 2}
    assert said == ["local.lr.kind is 'warmup' now: local.lr.final of the file is left out"]


def test_the_command_line_says_it_in_one_line_on_standard_error(file, capsys):
    assert main(["run", str(file), "--show-config", "~upcycle", "~sweep", "algorithm.name=fedavg"]) == 0
    out, err = capsys.readouterr()
    assert has_all(only_line(err), "algorithm.name", "'fedavg' now: algorithm.mu")
    assert "[upcycle]" not in out
    assert "mu" not in out.split("[algorithm]")[1].split("[")[0]

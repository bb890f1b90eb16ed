"""Kept runs belong to the user's code that made them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

import upcycled as up
from tests.experiments.small import small_file
from upcycled.config.experiment import load_config
from upcycled.experiments import batch, run_in_folder
from upcycled.experiments.batch import Options, run_experiment
from upcycled.training.checkpoint.checkpointer import own_code

FILE = """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    def coefficient_at(self, data_round, horizon):
        return 0.5
"""
OWN = ("[upcycle]\ncoefficient = 0.7\n", "[upcycle]\nkind = 'edited_rule:Mine'\n")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of two edits within a second it would be believed
    small_file(tmp_path, OWN, ("seeds = [0, 1]", "seeds = [0]"))
    (tmp_path / "edited_rule.py").write_text(FILE)
    (tmp_path / "edited_model.py").write_text(
        "from torch import nn\n\nclass Part(nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n"
    )
    sys.modules.pop("edited_rule", None)
    yield tmp_path
    sys.modules.pop("edited_rule", None)
    sys.modules.pop("edited_model", None)


def test_code_without_a_source_has_no_hash(here, monkeypatch):
    import edited_rule

    spec = up.RunSpec(algorithm=up.FedAvg(), upcycle=edited_rule.Mine())
    assert set(own_code(spec)) == {"edited_rule"}
    compiled = ModuleType("edited_rule")
    compiled.__file__ = "edited_rule.so"
    for other in (compiled, ModuleType("edited_rule")):  # the second as what is typed into a prompt
        monkeypatch.setitem(sys.modules, "edited_rule", other)
        assert own_code(spec) == {}
    monkeypatch.delitem(sys.modules, "edited_rule")
    assert own_code(spec) == {}


def test_a_model_of_a_class_without_a_name_is_known_by_its_other_parts(here):
    from edited_model import Part

    class Nameless(torch.nn.Sequential):
        pass

    assert set(own_code(up.RunSpec(algorithm=up.FedAvg(), model=Nameless(Part())))) == {"edited_model"}


def edit(folder):
    """Write the rule anew, and forget it as a new process would."""
    (folder / "edited_rule.py").write_text(FILE.replace("0.5", "0.25"))
    sys.modules.pop("edited_rule", None)
    importlib.invalidate_caches()


def run(*overrides, anyway=False):
    return run_experiment(load_config("small.toml", overrides), "small.toml", Options(resume_anyway=anyway))


def test_a_run_from_before_an_edit_is_neither_reused_nor_continued_unasked(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_in_folder, "drop_checkpoint", lambda *args, **kwargs: None)
        patch.setattr(batch, "drop_checkpoint", lambda *args, **kwargs: None)
        before = run()
        assert run().seeds[0].status == "reused"
        edit(here)
        with pytest.raises(up.InputError, match=r"module 'edited_rule'"):
            run()
        assert run(anyway=True).seeds[0].summary.loss == before.seeds[0].summary.loss
    (before.seeds[0].folder / "summary.json").unlink()  # not finished: it would go on from its checkpoint
    with pytest.raises(up.InputError, match=r"module 'edited_rule'"):
        run()
    assert run(anyway=True).seeds[0].summary.loss == before.seeds[0].summary.loss
    assert run("name=other").seeds[0].summary.loss != before.seeds[0].summary.loss


def test_after_an_edit_nobody_is_advised_to_remove_the_ledger_of_real_noise(here):
    private = ['privacy.mechanism="model_clipping"', "privacy.clip_norm=1", "privacy.noise_std=4"]
    private += ['privacy.noise="system"', "data.public=true"]
    run(*private)
    edit(here)
    with pytest.raises(up.InputError, match=r"edited.*results") as refused:
        run(*private)
    assert "remove" not in str(refused.value)


def test_a_result_that_python_kept_is_not_given_back_after_an_edit(here):
    def kept():
        rule = importlib.import_module("edited_rule").Mine()
        data = up.data.synthetic("iid", clients=3, sizes=20, dim=3, seed=0)
        return up.train(data, algorithm=up.FedAvg(), upcycle=rule, iterations=2, progress=False, results="kept")

    assert (kept().params == kept().params).all()
    edit(here)
    with pytest.raises(up.InputError, match="module 'edited_rule'"):
        kept()


def test_a_process_runs_the_code_that_it_loaded_until_it_loads_it_anew(here):
    module = importlib.import_module("edited_rule")
    first = own_code(up.RunSpec(algorithm=up.FedAvg(), upcycle=module.Mine()))
    (here / "edited_rule.py").write_text(FILE.replace("0.5", "0.25"))
    assert own_code(up.RunSpec(algorithm=up.FedAvg(), upcycle=module.Mine())) == first
    module = importlib.reload(module)
    assert own_code(up.RunSpec(algorithm=up.FedAvg(), upcycle=module.Mine())) != first


def test_a_script_is_known_by_the_text_of_what_it_passes_and_a_network_by_its_class(here):
    script = importlib.import_module("edited_rule")
    sys.modules["__main__"], main = script, sys.modules["__main__"]
    try:
        script.Mine.__module__ = "__main__"
        found = own_code(up.RunSpec(algorithm=up.FedAvg(), upcycle=script.Mine()))
    finally:
        sys.modules["__main__"] = main
    assert list(found) == ["__main__:Mine"]
    (here / "edited_rule.py").write_text("from torch import nn\n\nclass Net(nn.Linear):\n    pass\n")
    sys.modules.pop("edited_rule")
    importlib.invalidate_caches()
    net = importlib.import_module("edited_rule").Net(2, 2)
    assert list(own_code(up.RunSpec(algorithm=up.FedAvg(), model=net))) == ["edited_rule"]

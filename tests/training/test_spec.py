"""RunSpec: the one form of a run, its plain values and its fingerprint."""

import json
import pickle
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from upcycled.training.checkpoint.fingerprint import as_words, plain_form
from upcycled.training.spec import ARGUMENTS, RunArguments, SharedArguments

SPEC = up.RunSpec(algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=8, seed=3, progress=False)


def test_train_takes_a_spec_or_its_arguments_and_arguments_change_a_spec(federation):
    arguments = {name: getattr(SPEC, name) for name in ARGUMENTS}
    one, two = up.train(federation, SPEC), up.train(federation, **arguments)
    assert torch.equal(one.params, two.params)
    assert one.spec == SPEC
    three = up.train(federation, SPEC, seed=4)
    assert three.spec == SPEC.replace(seed=4)
    assert not torch.equal(one.params, three.params)


def test_a_batch_takes_pairs_and_dicts(federation):
    pair, named = up.train_many([(federation, SPEC), {"data": federation, "spec": SPEC, "seed": 4}], progress=False)
    assert torch.equal(pair.params, up.train(federation, SPEC).params)
    assert named.spec.seed == 4
    [failed] = up.train_many([(federation, {"seed": 1})], progress=False)
    assert isinstance(failed.error, up.InputError)


def test_a_misspelt_argument_is_named_like_any_functions(federation):
    with pytest.raises(TypeError, match=r"train\(\).*'algoritm'; did you mean 'algorithm'\?"):
        up.train(federation, algoritm=up.FedAvg())
    with pytest.raises(TypeError, match=r"'lr'; did you mean local=up.LocalSGD\(lr=...\)\?"):
        up.train(federation, algorithm=up.FedAvg(), lr=0.1)
    with pytest.raises(AttributeError, match=r"'Fedprox'\. Did.*mean: 'FedProx'"):
        up.Fedprox  # noqa: B018
    with pytest.raises(TypeError, match=r"missing.*'algorithm'"):
        up.train(federation)
    with pytest.raises(TypeError, match="argument 'observers'"):
        SPEC.replace(observers=[])


def test_the_typed_arguments_are_the_fields_of_a_spec():
    assert get_type_hints(RunArguments) == get_type_hints(up.RunSpec)
    shared = get_type_hints(SharedArguments).keys()
    assert RunArguments.__annotations__.keys() - shared == {"upcycle", "iterations", "seed", "progress"}


CALLS = """
import upcycled as up

data = up.data.synthetic("iid", clients=4, seed=0)
spec = up.RunSpec(algorithm=up.FedAvg(), participation=0.5)
up.train(data, spec, seed=4, results="here", keep_best="loss")
up.train(data, algorithm=up.FedAvg(), iterations=3)
up.compare(data, algorithm=up.FedAvg(), iterations=3, seeds=(0, 1), participation=0.5)
spec.replace(seed=4)
"""
MISSPELT = """
import upcycled as up

data = up.data.synthetic("iid", clients=4, seed=0)
up.train(data, iteratons=3)
up.train(data, iterations="3")
up.compare(data, sampeling="poisson")
up.RunSpec(algorithm=up.FedAvg()).replace(sead=3)
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_arguments(tmp_path):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    said = {}
    for name, text in (("right", CALLS), ("wrong", MISSPELT)):
        (tmp_path / f"{name}.py").write_text(text)
        words = ["--strict", "--no-pretty", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / f"{name}.py")]
        output, errors, status = api.run(words)
        said[name] = (status, re.findall(r":(\d+): error:", output), output + errors)
    assert said["right"][0] == 0, said["right"][2]
    assert said["wrong"][1] == ["5", "6", "7", "8"], said["wrong"][2]


OTHER = {
    "algorithm": up.FedProx(mu=0.25),
    "model": "mlp",
    "model_options": {"hidden": [3]},
    "upcycle": 0.6,
    "aggregation": "median",
    "iterations": 9,
    "local": up.LocalSGD(lr=0.2),
    "loss": "mse",
    "participation": 0.5,
    "sampling": "poisson",
    "stragglers": 0.5,
    "privacy": up.privacy.ModelClipping(1.0, 1.0),
    "noise": "system",
    "engine": "fused",
    "seed": 4,
    "eval_every": 2,
    "metrics": ["auroc"],
    "keep_best": "loss",
    "device": "cuda",
    "progress": True,
    "checkpoint": "kept",
    "checkpoint_every": 7,
    "resume_anyway": True,
    "callbacks": [print],
}


KEPT_OR_SHOWN = {
    "ledger",
    "ledger_key",
    "account",
    "checkpoint",
    "checkpoint_every",
    "resume_anyway",
    "progress",
    "callbacks",
}
"""What may differ between two runs of the same bits; said here once more, so that a slip there is seen."""


def test_the_fingerprint_covers_what_determines_bits_and_nothing_else():
    private = SPEC.replace(privacy=up.privacy.ModelClipping(1.0, 1.0))
    changed = {name: (SPEC, SPEC.replace(**{name: value})) for name, value in OTHER.items()}
    changed["budget"] = private, private.replace(budget=up.Budget(1.0, 1e-5))
    changed["charged_scores"] = private, private.replace(charged_scores=up.privacy.ChargedScores(1.0))
    changed["ledger"] = private, private.replace(ledger="ledger.jsonl")
    changed["account"] = private, private.replace(account="account")
    changed["ledger_key"] = changed["ledger"][1], changed["ledger"][1].replace(ledger_key="ledger.key")
    assert set(changed) == {f.name for f in fields(up.RunSpec)}, "a new argument belongs here"
    for name, (before, after) in changed.items():
        assert (before.fingerprint == after.fingerprint) == (name in KEPT_OR_SHOWN), name


def test_the_plain_form_is_json_and_knows_modules_by_structure_and_weights():
    torch.manual_seed(0)
    one, same, other = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
    same.load_state_dict(one.state_dict())
    prints = [SPEC.replace(model=model).fingerprint for model in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]
    with torch.no_grad():
        same.weight[0, 0] += 1e-3
    assert SPEC.replace(model=same).fingerprint != prints[0]
    assert json.loads(json.dumps(SPEC.replace(model=one).plain())) == SPEC.replace(model=one).plain()


class Kind(Enum):
    ONE = 1


def test_plain_forms_are_the_same_for_the_same_value_and_words_show_what_they_stand_for():
    assert plain_form([np.float32(0.5), np.int64(3), np.bool_(True)]) == plain_form([0.5, 3, True]) == [0.5, 3, True]
    assert plain_form({"kind": Kind.ONE, "at": Path("a") / "b"}) == {"kind": "Kind.ONE", "at": "a/b"}
    assert as_words(plain_form(schedule)) == f"{__name__}:schedule"
    assert as_words(plain_form(nn.Linear(3, 2))) == "Linear(in_features=3, out_features=2, bias=True)"
    assert as_words(plain_form(up.coefficients.LambdaHalf(schedule))) == f"LambdaHalf(lam={__name__}:schedule)"


def schedule(m):
    return 1 / m


def test_functions_are_known_by_their_names_and_a_lambda_has_none():
    named = SPEC.replace(upcycle=up.coefficients.LambdaHalf(schedule))
    assert named.is_reproducible
    assert named.plain()["upcycle"] == {"class": "LambdaHalf", "lam": {"function": f"{__name__}:schedule"}}
    nameless = SPEC.replace(upcycle=up.coefficients.LambdaHalf(lambda m: 1 / m))
    assert not nameless.is_reproducible
    assert "<lambda>" in nameless.unnamed[0]


def test_numbers_of_numpy_leave_no_trace():
    theirs = up.RunSpec(
        algorithm=up.FedProx(mu=np.float64(0.5)),
        upcycle=np.float64(0.7),
        iterations=np.int32(8),
        seed=np.uint8(3),
        participation=np.float64(1.0),
        progress=False,
    )
    assert theirs == SPEC
    assert repr(theirs) == repr(SPEC)
    assert theirs.fingerprint == SPEC.fingerprint


def test_a_spec_is_a_value():
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert SPEC.replace() == SPEC
    with pytest.raises(AttributeError):
        SPEC.seed = 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ledger": ""}, r"ledger.*''"),
        ({"budget": up.Budget(1.0, 1e-5)}, r"budget.*privacy"),
        ({"progress": "yes"}, r"progress.*'yes'.*True.*False"),
        ({"participation": "x" * 500}, r"finite.*0.*<= 1"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_when_the_spec_is_made(wrong, words):
    with pytest.raises(up.InputError, match=r"^[^\n]{1,250}$") as caught:
        SPEC.replace(**wrong)
    assert re.search(words, str(caught.value))

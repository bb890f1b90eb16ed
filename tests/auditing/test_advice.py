"""``advise``: public facts only, noise that the run really has, and a search that finds what is better."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tomli_w

import upcycled as up
from upcycled.auditing.advice.advising import advise
from upcycled.auditing.advice.candidates import ERM, OBJECTIVE, QUICK, REUSES, Candidate, Effort, Reuse, Target, grid
from upcycled.auditing.advice.mean_noise import noise_of
from upcycled.auditing.advice.public_facts import parsed_sizes, public_facts
from upcycled.auditing.advice.surrogates import Surrogate, epsilon_of_fewer, thinned, thinning_for
from upcycled.cli.main import main
from upcycled.config.experiment import Experiment, load_config, parse
from upcycled.core.errors import InputError
from upcycled.core.sampler import everybody
from upcycled.runtime.plan import make_plan, plan_of

SIZES = [20, 40, 60, 120]
FILE = {
    "name": "hospital",
    "iterations": 8,
    "data": {"source": "csv", "path": "/nowhere/patients.csv", "classes": 2},
    "algorithm": {"name": "fedprox", "mu": 0.5},
    "upcycle": {"kind": "constant", "coefficient": 0.5},
    "privacy": {"mechanism": "erm_output", "norm_bound": 1.0, "epsilon": 2.0, "delta": 5e-4, "steps": 2},
}
SMALL = Effort(terms=(0.5,), parts=(0.5, 1.0), steps=(1, 2), second=1, last=2)
TARGET = Target(2.0, 5e-4, 1.0)


def facts_of(file=FILE):
    return public_facts(parse(file), SIZES, 3)


def test_advice_opens_no_data(monkeypatch):
    def opened(*args, **options):
        raise AssertionError("the private data were opened")

    monkeypatch.setattr(Experiment, "build_data", opened)
    monkeypatch.setattr("upcycled.config.sources.federated.load", opened)
    found = advise(parse(FILE), "a.toml", facts_of(), SMALL)
    assert found.tried
    assert found.gain is not None


def test_the_sizes_of_a_generated_federation_follow_from_its_table():
    table = {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 7, "seed": 3, "validation_fraction": 0.2}
    for sizes in ({}, {"sizes": 30}, {"sizes": [11, 12, 13, 14, 15, 16, 17]}):
        experiment = parse({**FILE, "data": table | sizes})
        assert public_facts(experiment).sizes.tolist() == experiment.build_data().sizes.tolist()


def test_what_nobody_said_is_asked_for():
    for given, flag in (((), "--sizes"), ((SIZES,), "--features")):
        with pytest.raises(InputError, match=flag):
            public_facts(parse(FILE), *given)
    untold = {**FILE, "data": {"source": "csv", "path": "/nowhere/patients.csv"}}
    with pytest.raises(InputError, match="--classes"):
        public_facts(parse(untold), SIZES, 3)
    with pytest.raises(InputError, match="--sizes is 'many'"):
        parsed_sizes("20 many")


def test_the_noise_of_the_mean_is_what_its_weights_make_of_the_noise_of_releases():
    found = noise_of("own", plan_of(facts_of(), parse(FILE).spec(0)))
    # sensitivity 2 L/(n a) (1 - (1 - eta a)^2) with L = 2, eta = 1/1.5: 4/(0.5 n) (1 - 4/9) = 40/(9 n)
    sizes = np.array(SIZES, dtype=float)
    each = up.privacy.gaussian_noise_std(sensitivity=40 / (9 * 20), rounds=4, epsilon=2.0, delta=5e-4) * 20 / sizes
    assert found.release == pytest.approx(each, rel=1e-4)
    shares = sizes / sizes.sum()
    assert found.by_samples == pytest.approx(np.sqrt(((shares * each) ** 2).sum()), rel=1e-4)
    assert found.least == pytest.approx(1 / np.sqrt((each**-2).sum()), rel=1e-4)
    assert found.least < found.by_samples


@pytest.mark.parametrize("thinning", [1.0, 3.0])
def test_a_generated_federation_has_the_noise_of_the_real_one(thinning):
    facts = replace(facts_of(), sizes=np.array([30, 60, 90, 180]))
    surrogate = Surrogate(facts, thinning)
    content = Candidate(ERM, 0.5, 4, 2, Reuse()).applied(FILE, surrogate.target(TARGET))
    data = surrogate.federation(0)
    assert data.sizes.tolist() == thinned(facts.sizes, thinning).tolist()
    real = noise_of("", plan_of(facts, parse(FILE).spec(0)))
    ours = noise_of("", make_plan(data, parse(content).spec(0)))
    assert ours.release == pytest.approx(real.release, rel=1e-3)


def test_fewer_records_have_an_epsilon_whose_noise_is_as_much_smaller():
    raised = epsilon_of_fewer(1.0, 1e-5, 4.0)
    noise = [
        up.privacy.gaussian_noise_std(sensitivity=1, rounds=1, epsilon=epsilon, delta=1e-5) for epsilon in (1.0, raised)
    ]
    assert noise[0] / noise[1] == pytest.approx(4.0, rel=1e-6)


def test_effort_is_bounded_by_leaving_records_out():
    few, candidates = facts_of(), grid(QUICK, 40, [ERM], REUSES[0])
    many = replace(few, sizes=few.sizes * 10**6)
    assert thinning_for(few, candidates, QUICK) == 1.0
    steps = sum(one.rounds * one.steps for one in candidates)
    fewer = thinned(many.sizes, thinning_for(many, candidates, QUICK))
    assert steps * 4 * 2 * fewer.sum() == pytest.approx(QUICK.work, rel=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [({"name": "fedprox"}, "algorithm.mu"), ({"name": "feddyn"}, "algorithm.alpha"), ({"name": "fedavg"}, None)],
)
def test_an_improved_file_spends_the_same_epsilon_in_the_advised_way(algorithm, key):
    file = {**FILE, "algorithm": algorithm, "local": {"lr": 0.1}}
    chosen = Candidate(ERM, 0.7, 3, 5)
    content = chosen.applied(file, TARGET)
    plan = plan_of(facts_of(), parse(content).spec(0))
    assert plan.data_rounds == 3
    assert plan.setting.penalty + plan.mechanism.prox_mu == 0.7
    assert (content["algorithm"].get("mu") or content["algorithm"].get("alpha")) == (None if key is None else 0.7)
    assert content["privacy"]["epsilon"] == FILE["privacy"]["epsilon"]
    assert content["aggregation"] == {"kind": "precision"}
    assert content["data"] == FILE["data"]


def test_the_search_leaves_a_file_alone_that_is_the_best_of_all():
    best = Candidate(ERM, 0.5, 4, 2).applied(FILE, TARGET)
    only = Effort(terms=(0.5,), parts=(1.0,), steps=(2,), second=1, last=2)
    found = advise(parse(best), "a.toml", facts_of(), only)
    # With the same settings there is no gain, unless other weights or another step are better here.
    assert found.best is None or found.best.reuse != REUSES[0]
    assert (found.file is None) == (found.best is None)


def test_a_noisy_file_is_improved_by_the_search():
    facts = public_facts(parse(FILE), [60] * 12, 5)
    wasteful = {**FILE, "algorithm": {"name": "fedprox", "mu": 0.05}, "iterations": 40, "upcycle": {"coefficient": 0.9}}
    wasteful["privacy"] = FILE["privacy"] | {"epsilon": 0.5, "steps": 20}
    found = advise(parse(wasteful), "a.toml", facts, replace(SMALL, steps=(1,), last=4))
    assert found.best is not None
    assert found.gain.mean > 0.01
    assert parse(found.file).privacy.epsilon == 0.5


def test_pure_epsilon_stays_pure():
    pure = {**FILE, "privacy": {"mechanism": "objective_perturbation", "norm_bound": 1.0, "epsilon": 50.0}}
    found = advise(parse(pure), "a.toml", facts_of(), SMALL)
    assert {one.candidate.mechanism for one in found.tried} == {OBJECTIVE}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"kind": "mlp", "hidden": [4]}, "algorithm": {"name": "fedavg"},
          "privacy": {"mechanism": "update_clipping", "clip_norm": 1.0, "epsilon": 2.0, "delta": 5e-4}},
         "linear model"),
        ({"privacy": {"mechanism": "central_dp_fedavg", "clip_norm": 1.0, "epsilon": 2.0, "delta": 5e-4}},
         "whole clients"),
    ],
)  # fmt: skip
def test_where_nothing_can_be_tried_the_noise_is_shown_and_the_reason_said(changes, words):
    found = advise(parse({**FILE, **changes}), "a.toml", facts_of(), SMALL)
    assert words in found.sentences[0]
    assert found.noise[0].by_samples > 0
    assert found.file is None


def test_noise_that_was_given_counts_by_the_epsilon_it_comes_to():
    given = {**FILE, "privacy": {"mechanism": "erm_output", "norm_bound": 1.0, "noise_std": 2.0}}
    found = advise(parse(given), "a.toml", facts_of(), replace(SMALL, steps=(1,), parts=(1.0,)))
    plan = plan_of(facts_of(), parse(given).spec(0))
    charge = plan.mechanism.charge(everybody(4))
    worst = up.privacy.gaussian_epsilon(
        sensitivity=float(charge.sensitivity[0]), noise_std=2.0, rounds=4, delta=found.target.delta
    )
    assert found.target.epsilon == pytest.approx(worst, rel=1e-6)


def test_a_schema_says_features_and_classes_and_the_rest_is_asked_for_at_once():
    columns = {
        "age": {"kind": "number", "bounds": [0, 9], "gap": 4},
        "ill": {"kind": "label", "classes": ["a", "b", "c"]},
    }
    by_schema = {"source": "table", "path": "/nowhere", "schema": {"columns": columns}}
    facts = public_facts(parse({**FILE, "data": by_schema}), SIZES)
    assert (facts.shape, facts.classes) == ((2,), 3)
    without = {"source": "csv", "path": "/nowhere/patients.csv"}
    with pytest.raises(InputError, match=r"--sizes.*--features.*--classes"):
        public_facts(parse({**FILE, "data": without}))


def test_a_file_without_privacy_is_refused():
    public = {key: value for key, value in FILE.items() if key != "privacy"}
    with pytest.raises(InputError, match=r"a.toml: the file has no table \[privacy\]"):
        advise(parse(public), "a.toml", facts_of(), SMALL)


def test_the_command_writes_the_improved_file_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("upcycled.auditing.advice.candidates.QUICK", replace(SMALL, parts=(1.0,), steps=(1,)))
    source, better, picture = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "b.png"
    wasteful = {**FILE, "algorithm": {"name": "fedprox", "mu": 0.05}, "iterations": 40, "upcycle": {"coefficient": 0.9}}
    wasteful["privacy"] = FILE["privacy"] | {"epsilon": 0.5, "steps": 20}
    source.write_text(tomli_w.dumps(wasteful))
    words = ["privacy", "advise", str(source), "--sizes", "60x12", "--features", "5", "--quick", "--json"]
    assert main([*words, "-o", str(better), "--picture", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert found["facts"]["sizes"] == [60] * 12
    written = load_config(better)
    assert written.name == "hospital-advised"
    assert written.privacy.epsilon == 0.5
    assert written.iterations == found["advice"]["data_rounds"] * (1 if found["advice"]["upcycle"] is None else 2)
    assert main(words[:-1]) == 0
    assert "No data were opened" in capsys.readouterr().out

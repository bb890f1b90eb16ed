"""Experiment files that are right: what they mean, and that nothing is lost on the way to a complete file and back."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields
from typing import get_type_hints

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up
from tests.experiments.small import SMALL, small_file
from upcycled.algorithms import ALGORITHMS
from upcycled.coefficients import Constant, Decaying, LambdaHalf, Proximal
from upcycled.config.experiment import Experiment, load_config, parse
from upcycled.config.overrides import parse_override, parse_overrides
from upcycled.config.registry import TABLES, Choice
from upcycled.privacy import ModelClipping
from upcycled.privacy.mechanisms import MECHANISMS
from upcycled.training.plan import make_plan
from upcycled.training.spec import OPTIONS

DOCUMENTED = """\
name = "syn-half"
iterations = 160            # an upcycled run counts even iterations; compare halves it for vanilla
seeds = [0, 1, 2, 3]
results = "results"

[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 30
validation_fraction = 0.1

[model]
kind = "logistic"

[algorithm]
name = "fedprox"
mu = 0.5

[upcycle]
kind = "constant"
coefficient = 0.7

[local]
lr = 0.01
momentum = 0.5
epochs = 10
batch_size = 32

[clients]
participation = 0.3
sampling = "fixed"
stragglers = 0.9

[sweep]
"local.lr" = [0.001, 0.01, 0.1]
"upcycle.coefficient" = [0.3, 0.6, 0.9]
"""


def test_the_documented_file_means_the_documented_call(tmp_path):
    experiment = load_config(small_file(tmp_path, text=DOCUMENTED))
    expected = {
        "model": "logistic",
        "model_options": {"bias": True},
        "algorithm": up.FedProx(mu=0.5),
        "upcycle": up.coefficients.Constant(0.7),
        "iterations": 160,
        "local": up.LocalSGD(lr=0.01, momentum=0.5, epochs=10, batch_size=32),
        "participation": 0.3,
        "sampling": "fixed",
        "stragglers": 0.9,
        "privacy": None,
        "noise": "seeded",
        "engine": "auto",
        "seed": 3,
        "eval_every": 1,
    }
    assert experiment.spec(3) == up.RunSpec(**expected)
    assert experiment.sweep == {"local.lr": (0.001, 0.01, 0.1), "upcycle.coefficient": (0.3, 0.6, 0.9)}


def test_only_name_data_and_algorithm_are_needed_and_the_rest_is_as_in_train():
    minimal = {"name": "x", "data": {"source": "synthetic", "alpha": "iid"}, "algorithm": {"name": "fedavg"}}
    spec = parse(minimal).spec(0)
    assert spec.local == up.LocalSGD()
    assert (spec.iterations, spec.upcycle, spec.participation) == (100, None, 1.0)
    assert (spec.sampling, spec.stragglers, spec.eval_every) == ("fixed", 0.0, 1)


def made_values(made):
    """Some values for a dataclass's fields; required ones always, the others perhaps."""
    by_type = {
        float: st.floats(0.01, 0.9),
        float | None: st.floats(0.01, 0.9),
        int: st.integers(1, 9),
        bool: st.booleans(),
        str: st.sampled_from(["equal", "samples"]),  # FedDyn's weights
    }
    hints = get_type_hints(made)
    known = {f.name: by_type[hints[f.name]] for f in fields(made)}
    required = {f.name: known[f.name] for f in fields(made) if f.default is MISSING}
    return st.fixed_dictionaries(required, optional={k: v for k, v in known.items() if k not in required})


def named_tables(tag, table):
    return st.sampled_from(sorted(table)).flatmap(lambda name: made_values(table[name]).map(lambda v: {tag: name, **v}))


positive = st.floats(1e-6, 1e6)
schedule = positive | st.lists(positive, min_size=1, max_size=3)
upcycles = st.one_of(
    st.fixed_dictionaries({"coefficient": positive}, optional={"kind": st.just("constant")}),
    st.fixed_dictionaries({"kind": st.just("lambda_half"), "lam": schedule}),
    st.fixed_dictionaries({"kind": st.just("proximal"), "mu": positive}, optional={"lam": schedule}),
    st.fixed_dictionaries(
        {"kind": st.just("decaying"), "coefficient": positive}, optional={"open_ended": st.booleans()}
    ),
)
words = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8)
data_tables = st.one_of(
    st.fixed_dictionaries({"source": st.just("synthetic"), "alpha": st.just("iid")}),
    st.fixed_dictionaries(
        {"source": st.just("synthetic"), "alpha": positive, "beta": positive, "clients": st.just(2)},
        optional={"sizes": st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=2, max_size=2)},
    ),
    st.fixed_dictionaries(
        {"source": st.just("npz"), "path": words.map("/{}.npz".format)}, optional={"name": words, "client": words}
    ),
    st.fixed_dictionaries(
        {"source": st.just("csv"), "path": words.map("/{}.csv".format)},
        optional={"split": words, "features": st.lists(words, max_size=2), "test_fraction": st.floats(0, 0.9)},
    ),
)
models = st.one_of(
    st.fixed_dictionaries({"kind": st.just("logistic")}, optional={"bias": st.booleans()}),
    st.fixed_dictionaries({"kind": st.just("mlp"), "hidden": st.lists(st.integers(1, 9), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"kind": st.just("lstm")}, optional={"hidden": st.integers(1, 9), "dropout": st.just(0.5)}),
    st.just({"kind": "package.module:factory"}),
)
# Noise is given directly or by epsilon and delta: which fields go together is no matter of single fields.
noises = st.sampled_from([{"noise_std": 0.5}, {"epsilon": 2.0, "delta": 1e-5, "per_client": False}])
multipliers = st.sampled_from([{"noise_multiplier": 1}, {"epsilon": 2.0, "delta": 1e-5}])
MECHANISM_TABLES = {
    "model_clipping": noises.map(lambda noise: {"clip_norm": 1.5} | noise),
    "update_clipping": noises.map(lambda noise: {"clip_norm": 1} | noise),
    "erm_output": noises.map(lambda noise: {"norm_bound": 1, "prox_mu": 0.5, "steps": 10} | noise),
    "bolt_on_sgd": noises.map(lambda noise: {"norm_bound": 2.0} | noise),
    "objective_perturbation": st.sampled_from(
        [{"alpha": 10, "norm_bound": 1}, {"epsilon": 3.0, "norm_bound": 1.0}, {"alpha": 5.0, "paper_mode": True}]
    ),
    "dpsgd": multipliers.map(lambda noise: {"clip_norm": 1.0, "noise": "system"} | noise),
    "central_dp_fedavg": multipliers.map(lambda noise: {"clip_norm": 1.0, "secret_sampling": True} | noise),
}
mechanisms = st.sampled_from(sorted(MECHANISMS)).flatmap(
    lambda name: MECHANISM_TABLES[name].map(lambda table: {"mechanism": name} | table)
)
files = st.fixed_dictionaries(
    {"name": st.from_regex(r"[a-z0-9][a-z0-9_.+-]{0,5}x", fullmatch=True), "data": data_tables}
    | {"algorithm": named_tables("name", ALGORITHMS)},
    optional={
        "iterations": st.integers(1, 10**9),
        "seeds": st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True),
        "results": words,
        "eval_every": st.integers(1, 100),
        "model": models,
        "upcycle": upcycles,
        "local": st.fixed_dictionaries(
            {}, optional={"lr": positive, "batch_size": st.just("full") | st.integers(1, 99)}
        ),
        "clients": st.fixed_dictionaries({}, optional={"sampling": st.sampled_from(["fixed", "poisson"])}),
        "privacy": mechanisms,
        "sweep": st.fixed_dictionaries({}, optional={"local.lr": st.lists(positive, min_size=1, max_size=3)}),
    },
)


@settings(max_examples=25)
@given(files)
def test_the_complete_file_loads_back_to_an_equal_experiment(raw):
    experiment = parse(raw)
    again = parse(tomllib.loads(experiment.resolved_toml()))
    assert again == experiment
    assert again.resolved_toml() == experiment.resolved_toml()


def test_experiments_that_differ_in_one_value_are_not_equal():
    raw = tomllib.loads(SMALL)
    assert parse(raw) == parse(tomllib.loads(SMALL))
    assert parse(raw) != parse(parse_overrides(["algorithm.mu=0.6"]).applied(raw))
    assert parse(raw) != parse(parse_overrides(["data.seed=1"]).applied(raw))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_table_is_a_choice_with_its_own_defaults(name):
    raw = tomllib.loads(SMALL) | {"algorithm": {"name": name}}
    assert parse(raw).spec(0).algorithm == ALGORITHMS[name]()


@pytest.mark.parametrize(
    ("table", "coefficient"),
    [
        ({"coefficient": 0.3}, Constant(0.3)),
        ({"kind": "lambda_half", "lam": [1, 0.5]}, LambdaHalf((1.0, 0.5))),
        ({"kind": "proximal", "mu": 2}, Proximal(mu=2.0)),
        ({"kind": "proximal", "mu": 2, "lam": 1}, Proximal(mu=2.0, lam=1.0)),
        ({"kind": "decaying", "coefficient": 0.4, "open_ended": True}, Decaying(0.4, open_ended=True)),
    ],
)
def test_every_kind_of_coefficient_is_built(table, coefficient):
    built = parse(tomllib.loads(SMALL) | {"upcycle": table}).spec(0).upcycle
    assert built == coefficient
    assert [built.coefficient_at(m, 10) for m in (1, 2, 3)] == [coefficient.coefficient_at(m, 10) for m in (1, 2, 3)]


def test_a_mechanism_is_built_and_its_noise_is_said():
    table = {"mechanism": "model_clipping", "clip_norm": 10, "noise_std": 0.8}
    spec = parse(tomllib.loads(SMALL) | {"privacy": table}).spec(0)
    assert (spec.privacy, spec.noise) == (ModelClipping(clip_norm=10.0, noise_std=0.8), "seeded")


def test_full_batch_is_a_word_in_the_file_and_none_in_python():
    experiment = parse(parse_overrides(["local.batch_size=full"]).applied(tomllib.loads(SMALL)))
    assert experiment.spec(0).local.batch_size is None
    assert 'batch_size = "full"' in experiment.resolved_toml()


def test_every_key_says_what_it_must_be():
    tables = [Experiment]
    for kind in TABLES.values():
        tables += kind.tables.values() if isinstance(kind, Choice) else [kind]
    silent = [(t.__name__, key) for t in tables for key, field in t.model_fields.items() if not field.description]
    assert silent == []
    assert not [t for t in tables for field in t.model_fields.values() if field.description == "a fitting value"]


def test_a_path_of_data_is_relative_to_the_file_and_absolute_afterwards(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    data = SMALL[SMALL.index("[data]") : SMALL.index("[algorithm]")]
    file = small_file(tmp_path / "deep", (data, '[data]\nsource = "npz"\npath = "../set.npz"\n'))
    monkeypatch.chdir("/")
    assert load_config(file).data.path == str(tmp_path / "set.npz")


def test_validation_samples_leave_the_training_samples_and_not_the_test_samples():
    raw = tomllib.loads(SMALL)
    held_out = (parse_overrides([f"data.validation_fraction={f}"]).applied(raw) for f in (0, 0.5))
    plain, held = (parse(content).build_data() for content in held_out)
    assert plain.validation is None
    assert held.train.num_rows + held.validation.num_rows == plain.train.num_rows
    assert held.test.num_rows == plain.test.num_rows


def test_overrides_take_toml_values_bare_words_and_the_last_of_two():
    assert parse_override("a=1") == (("a",), 1)
    assert parse_override("a.b=1e-3") == (("a", "b"), 0.001)
    assert parse_override("a='1'") == (("a",), "1")
    assert parse_override("a=true") == (("a",), True)
    assert parse_override("a=[1, 2]") == (("a",), [1, 2])
    assert parse_override("a=results/my run") == (("a",), "results/my run")
    assert parse_override('sweep."local.lr"=[1]') == (("sweep", "local.lr"), [1])
    assert parse_overrides(["a.b=1", "a.c=2", "a.b=3"]).applied({}) == {"a": {"b": 3, "c": 2}}


def test_overrides_leave_what_they_were_given_alone():
    raw = {"local": {"lr": 0.1}}
    parse_overrides(["local.lr=0.2", "local.epochs=3"]).applied(raw)
    assert raw == {"local": {"lr": 0.1}}


def test_unquoted_keys_of_a_sweep_are_the_same_as_quoted_ones():
    quoted, unquoted = (
        parse(tomllib.loads(SMALL + f"\n[sweep]\n{key} = [0.1]\n")).sweep for key in ('"local.lr"', "local.lr")
    )
    assert quoted == unquoted == {"local.lr": (0.1,)}


def test_a_factory_gives_each_seed_weights_of_that_seed(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(3, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    experiment = parse(tomllib.loads(SMALL) | {"model": {"kind": "own_models:make"}})
    data, before = experiment.build_data(), torch.random.get_rng_state()
    first, again, other = (make_plan(data, experiment.spec(seed)).module.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_config(path).name == "small"


def table_file(folder, ending):
    """Two clients of four rows: columns who, what, a, b and part."""
    rows = {
        "who": [0, 0, 0, 0, 1, 1, 1, 1],
        "what": [0, 1, 0, 1, 0, 1, 0, 1],
        "a": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5],
        "b": [1.0] * 8,
        "part": ["train", "train", "train", "test"] * 2,
    }
    frame = pandas.DataFrame(rows)
    if ending == "csv":
        frame.to_csv(folder / "set.csv", index=False)
    else:
        frame.to_parquet(folder / "set.parquet")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_every_option_of_a_table_of_rows_reaches_the_data(ending, tmp_path):
    table_file(tmp_path, ending)
    table = {"source": ending, "path": str(tmp_path / f"set.{ending}"), "client": "who", "label": "what"}
    raw = tomllib.loads(SMALL)
    split = parse(raw | {"data": {**table, "split": "part", "features": ["a"]}}).build_data()
    assert split.train.x.ravel().tolist() == [0.5, 1.5, 2.5, 4.5, 5.5, 6.5]
    assert split.test.y.tolist() == [1, 1]
    held = [parse(raw | {"data": {**table, "features": ["a", "b"], "test_fraction": 0.5, "seed": s}}) for s in range(8)]
    parts = [experiment.build_data() for experiment in held]
    assert {data.train.sizes.tolist() == [2, 2] == data.test.sizes.tolist() for data in parts} == {True}
    assert len({data.train.x.tobytes() for data in parts}) > 1


def test_every_option_of_an_npz_reaches_the_data(tmp_path):
    x, who = np.arange(8, dtype=np.float32).reshape(8, 1), np.repeat([0, 1], 4)
    arrays = {"one_train_x": x, "one_train_kind": np.arange(8) % 2, "one_train_owner": who}
    np.savez(tmp_path / "set.npz", **arrays, two_train_x=x + 1, two_train_y=who, two_train_client=who)
    table = {"source": "npz", "path": str(tmp_path / "set.npz"), "name": "one", "client": "owner", "label": "kind"}
    data = parse(tomllib.loads(SMALL) | {"data": {**table, "test_fraction": 0.25}}).build_data()
    assert sorted([*data.train.x.ravel(), *data.test.x.ravel()]) == list(range(8))
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([3, 3], [1, 1])
    assert all(y == int(value) % 2 for value, y in zip(data.train.x.ravel(), data.train.y, strict=True))


def test_ranges_of_a_sweep_come_back_from_the_complete_file():
    table = """
[sweep]
local.lr = {low = 0.001, high = 0.1, log = true}
"local.epochs" = {low = 1, high = 5, integer = true}
"upcycle.coefficient" = [0.3, 0.6]
"""
    experiment = parse(tomllib.loads(SMALL + table))
    assert list(experiment.sweep) == ["local.lr", "local.epochs", "upcycle.coefficient"]
    assert experiment.sweep["local.lr"].log
    assert experiment.sweep["upcycle.coefficient"] == (0.3, 0.6)
    assert parse(tomllib.loads(experiment.resolved_toml())) == experiment


@pytest.mark.parametrize("every", ["10", "'2s'", "'0.5s'"])
def test_checkpoints_are_every_so_many_rounds_or_seconds(every):
    experiment = parse(tomllib.loads(f"checkpoint_every = {every}\n" + SMALL))
    assert parse(tomllib.loads(experiment.resolved_toml())) == experiment
    assert parse(tomllib.loads(SMALL)).checkpoint_every == "1s"


def test_scored_on_validation_the_held_out_samples_take_the_place_of_the_test_samples():
    text = SMALL.replace("sizes = 20", "sizes = 40\nvalidation_fraction = 0.25")
    plain, chosen = (parse(tomllib.loads(f'scored_on = "{on}"\n' + text)).build_data() for on in ("test", "validation"))
    assert plain.test is not None
    assert plain.validation is not None
    assert chosen.validation is None
    assert np.array_equal(chosen.test.x, plain.validation.x)
    assert np.array_equal(chosen.train.x, plain.train.x)
    # 40 samples: 4 for testing, a quarter of the other 36 for choosing.
    assert (plain.test.num_rows, plain.validation.num_rows) == (4 * 4, 4 * 9)


def in_a_file(option, value):
    return parse_overrides([f"{option.key}={value}"]).applied(tomllib.loads(SMALL))


def test_every_option_of_a_run_has_its_place_in_a_file():
    values = {
        "participation": ("0.25", 0.25),
        "sampling": ("poisson", "poisson"),
        "stragglers": ("0.5", 0.5),
        "engine": ("sequential", "sequential"),
        "metrics": ('["auroc"]', ("auroc",)),
        "keep_best": ("loss", "loss"),
        "device": ("meta", "meta"),
        "checkpoint_every": ("3", 3),
    }
    usual = {f.name: f.default for f in fields(up.RunSpec) if not OPTIONS[f.name].left_out and f.name != "seed"}
    values |= {name: (str(not x).lower(), not x) for name, x in usual.items() if isinstance(x, bool)}
    values |= {name: (str(x + 7), x + 7) for name, x in usual.items() if type(x) is int}
    elsewhere = {"model_options", "callbacks", "noise", "budget", "charged_scores", "account"}
    plain = {name for name in usual if not OPTIONS[name].is_table}
    assert set(values) == plain - elsewhere, "a new option that is no number or flag belongs here"
    for name, (text, value) in values.items():
        experiment = parse(in_a_file(OPTIONS[name], text))
        assert getattr(experiment.spec(0), name) == value
        assert f"{name} = " in experiment.resolved_toml()
        assert (experiment.fingerprint(0) == parse(tomllib.loads(SMALL)).fingerprint(0)) != OPTIONS[name].in_bits


def test_a_value_out_of_range_has_the_same_sentence_in_a_file_and_in_python():
    for name, wrong in (("iterations", 0), ("eval_every", -1), ("stragglers", 2.0)):
        with pytest.raises(up.InputError) as in_python:
            up.RunSpec(algorithm=up.FedAvg(), **{name: wrong})
        with pytest.raises(up.InputError) as in_file:
            parse(in_a_file(OPTIONS[name], wrong))
        assert str(in_file.value) == str(in_python.value.renamed(OPTIONS[name].key))


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.left_out])
def test_what_a_results_folder_has_a_place_for_is_in_no_file(name):
    with pytest.raises(up.InputError, match=f"{name} is 'here', but it must be left out: results has a place for it"):
        parse(in_a_file(OPTIONS[name], "here"))

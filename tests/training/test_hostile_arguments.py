"""Arguments that nobody means: each is answered by one sentence, and none by a traceback of somebody else's."""

from __future__ import annotations

import re

import numpy as np
import pytest

import upcycled as up
from upcycled.core import machine as allocation
from upcycled.core.errors import DivergedError, InputError, readable, shown, suggest
from upcycled.models.builtin import BYTES_EACH

DATA = up.data.synthetic("iid", clients=3, sizes=30, seed=0)


def trained(**arguments):
    return up.train(DATA, **({"algorithm": up.FedAvg(), "iterations": 2, "progress": False} | arguments))


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("device", "cuda", r"'cpu'.*device"),
        ("device", "meta", r"'cpu'.*device"),
        ("device", "abacus", r"'cpu'.*device"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorised"])
def test_an_argument_that_nobody_can_mean_is_refused_by_its_name(argument, value, words, engine):
    if argument == "device" and value == "cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is one here")
    privacy = up.privacy.ErmOutput(1.0, noise_std=0.1) if argument == "ledger" else None
    with pytest.raises(InputError) as error:
        trained(**({"engine": engine, "privacy": privacy} | {argument: value}))
    assert str(error.value).startswith(f"{argument} is ")
    assert re.search(words, str(error.value))


def test_numbers_of_numpys_are_taken():
    assert trained(seed=np.int64(3)).params.equal(trained(seed=3).params)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "mlp", "model_options": {"hidden": [10**13]}},
        {"model": "mlp", "model_options": {"hidden": [10**9, 10**9]}},
        {"model": "lstm", "model_options": {"hidden": 10**9, "vocabulary": 5}},
        {"model": "lstm", "model_options": {"vocabulary": 10**12}},
    ],
    ids=str,
)
def test_a_model_that_no_memory_can_hold_is_refused_before_it_is_made(options):
    tokens = up.FederatedData.from_arrays([[[1, 2], [0, 1]]], [[0, 1]], vocabulary=5)
    with pytest.raises(InputError, match=r"model (hidden|vocabulary).*\d+ GB.*memory"):
        up.train(tokens if options["model"] == "lstm" else DATA, algorithm=up.FedAvg(), **options)


def test_parameters_are_counted_as_the_model_has_them(monkeypatch):
    sizes = {"mlp": (20 + 1) * 7 + (7 + 1) * 2, "logistic": (20 + 1) * 2}
    for model, size in sizes.items():
        options = {"hidden": [7]} if model == "mlp" else {}
        monkeypatch.setattr(allocation, "memory_limit", lambda size=size: BYTES_EACH * size)
        assert trained(model=model, model_options=options).params.numel() == size
        monkeypatch.setattr(allocation, "memory_limit", lambda size=size: BYTES_EACH * size - 1)
        with pytest.raises(InputError, match=rf"model.*{size} parameters"):
            trained(model=model, model_options=options)


@pytest.mark.parametrize("engine", ["fused", "vectorised", "sequential"])
def test_a_model_whose_square_no_float_can_hold_has_diverged(engine):
    """Its loss is 1e29 and finite: a number, but of no use to anybody."""
    with pytest.raises(DivergedError, match=r"float32.*length.*iteration 1"):
        trained(engine=engine, local=up.LocalSGD(lr=1e30, epochs=1, batch_size=None))


def test_a_large_model_that_float32_can_square_goes_on():
    assert trained(local=up.LocalSGD(lr=1e15, epochs=1, batch_size=None)).error is None


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_values_are_shown_short_whatever_they_are():
    assert shown(nested(100_000)) == "a value nested too deeply to be written out"
    assert len(shown("x" * 10**6)) <= 80


def test_a_sentence_is_one_line_bounded_and_printable():
    words = str(InputError(f"has the user '{'a' * 10**5}' twice", field="\x1b[31m" + "f" * 10**4).at("w" * 10**4))
    assert words.isprintable()
    assert len(words) < 1000
    assert words.endswith("a' twice")
    assert len(readable("word " * 10**5)) <= 4000


def test_a_name_is_looked_for_among_names_and_not_among_a_million():
    assert suggest("x" * 10**6, ["fedavg"]) == " (known: fedavg)"
    words = suggest("c7", [f"c{i}" for i in range(10**6)])
    assert words.endswith("c58, c59 and 999940 more)")

"""NumPy's numbers are taken wherever numbers are, and leave no trace: equal objects, reprs, settings and results."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up
from upcycled.algorithms import ALGORITHMS
from upcycled.config.registry import CLIENTS, LOCALS, TABLES, UPCYCLES, Choice
from upcycled.core.errors import InputError, Limits, limits_of
from upcycled.core.sampling import SAMPLERS, Participation
from upcycled.privacy import MECHANISMS, Budget

KINDS = [*ALGORITHMS.values(), *MECHANISMS.values(), *(table.makes for table in UPCYCLES.values())]
KINDS += [up.LocalSGD, Participation, *SAMPLERS.values(), Budget]
FLOATS, INTEGERS = (np.float16, np.float32, np.float64, np.longdouble), (np.int8, np.int32, np.int64, np.uint16)


def sound(limits: Limits) -> st.SearchStrategy[float]:
    """Numbers within the limits that every type of NumPy's holds exactly."""
    if limits.integer:
        return st.integers(int(limits.at_least or 0), 100)
    low = max(bound for bound in (limits.above, limits.at_least, -8.0) if bound is not None)
    high = min(bound for bound in (limits.at_most, limits.below, 8.0) if bound is not None)
    eighths = st.integers(int(np.ceil(low * 8)), int(high * 8)).map(lambda n: n / 8)
    return eighths.filter(lambda x: x != limits.above and x != limits.below)


def plain_arguments(draw, kind):
    """Numbers for every declared field, but noise given once."""
    limits = limits_of(kind)
    drawn = {name: draw(sound(limit)) for name, limit in limits.items()}
    if kind is Participation:
        drawn["fraction"] = draw(sound(limits_of(SAMPLERS["fixed"])["fraction"]))
    if kind.__name__ == "ErmOutput":
        drawn.pop("gamma")
    if kind in MECHANISMS.values():
        return {name: value for name, value in drawn.items() if name not in ("noise_std", "noise_multiplier", "alpha")}
    return drawn | ({"lam": [draw(sound(Limits(at_least=0))), 1.0]} if kind.__name__ == "LambdaHalf" else {})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_an_object_of_numpys_numbers_is_the_object_of_pythons(kind, data):
    plain = plain_arguments(data.draw, kind)
    types = {name: data.draw(st.sampled_from(INTEGERS if isinstance(x, int) else FLOATS)) for name, x in plain.items()}

    def in_numpy(name, value):
        return [types[name](x) for x in value] if isinstance(value, list) else types[name](value)

    types |= {"lam": np.float32} if isinstance(plain.get("lam"), list) else {}
    made, expected = kind(**{name: in_numpy(name, value) for name, value in plain.items()}), kind(**plain)
    assert made == expected
    assert repr(made) == repr(expected)
    assert json.dumps(asdict(made)) == json.dumps(asdict(expected))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_number_of_an_object_has_declared_limits(kind):
    # A share of the clients is declared by the sampler that it makes.
    numbers = {f.name for f in fields(kind) if f.type not in ("bool", "str", "Schedule", "float | Sampler")}
    assert numbers == set(limits_of(kind))


def tables():
    for choice in TABLES.values():
        yield from choice.tables.values() if isinstance(choice, Choice) else [choice]


@pytest.mark.parametrize("table", [t for t in tables() if hasattr(t, "makes")], ids=lambda table: table.__name__)
def test_a_table_says_of_each_number_what_the_object_declares(table):
    own = {"batch_size": "an integer >= 1, or 'full'"}
    if "batch_size" in table.names:
        own["lr"] = "a finite number > 0, or a table [local.lr] with a kind"
    made = up.LocalAdam if table.makes is up.LocalAdamW else table.makes
    said = {field: table.model_fields[key].description for key, field in table.names.items()}
    declared = {name: own.get(name, limits.phrase) for name, limits in limits_of(made).items()}
    assert declared.items() <= said.items()


def test_a_number_outside_the_limits_is_refused_by_table_and_object_alike():
    for table, key, field, wrong in ((LOCALS["sgd"], "lr", "lr", 0.0), (CLIENTS, "participation", "fraction", 1.5)):
        with pytest.raises(ValueError, match="must be"):
            table(**{key: wrong})
        with pytest.raises(InputError, match="must be"):
            table.makes(**{field: wrong})


def run(kind=lambda x: x, real=lambda x: x, **more):
    shape = {"clients": kind(4), "dim": kind(5), "sizes": kind(20), "seed": kind(1)}
    data = up.data.synthetic(real(0.5), real(0.5), **shape, test_fraction=real(0.25))
    return up.train(
        data,
        model="mlp",
        model_options={"hidden": [kind(8)]},
        algorithm=up.FedProx(mu=real(0.5)),
        upcycle=real(0.5),
        local=up.LocalSGD(lr=real(0.25), epochs=kind(2), batch_size=kind(8)),
        iterations=kind(4),
        participation=real(0.5),
        stragglers=real(0.5),
        seed=kind(3),
        eval_every=kind(2),
        privacy=up.privacy.ModelClipping(real(1.0), epsilon=real(8.0), delta=real(2.0**-10)),
        budget=Budget(real(1000.0), real(2.0**-10)),
        progress=False,
        **more,
    )


def test_a_run_of_numpys_numbers_is_the_run_of_pythons(tmp_path):
    expected = run()
    for kind, real in ((np.int32, np.float32), (np.int64, np.float64), (np.uint16, np.longdouble)):
        found = run(kind, real)
        assert repr(found.settings) == repr(expected.settings)
        assert np.array_equal(found.params, expected.params)
    # The checkpoint of the one is the checkpoint of the other: nothing is computed again, nothing is refused.
    kept = run(checkpoint=tmp_path, checkpoint_every=1)
    again = run(np.int64, np.float32, checkpoint=tmp_path, checkpoint_every=np.int64(1))
    assert np.array_equal(again.params, kept.params)

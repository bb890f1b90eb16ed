"""A federation over messages gives the simulator's bits, for every algorithm, and its accounts are charged alike."""

import numpy as np
import pytest
import torch

import upcycled as up
from tests.federation.in_process import NAMES, Mail, experiment_of, make_site, run_over
from tests.mechanism_cases import EVERY_MECHANISM, charges_in_bytes, charges_of, tables_of
from upcycled.federation.exchange import size_of
from upcycled.privacy.mechanisms import MECHANISMS

ALGORITHMS = {
    "fedavg": {"server_lr": 0.9},
    "fedavgm": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "pfedme": {"lam": 5.0, "inner_steps": 2},
    "fedyogi": {},
}
ONE_NOISE = [name for name, kind in MECHANISMS.items() if hasattr(kind, "per_client")]
"""Mechanisms whose noise may be the same for all clients."""


@pytest.fixture
def sites(federation, tmp_path):
    return {name: make_site(federation, i, tmp_path) for i, name in enumerate(NAMES)}


def simulated(data, experiment):
    (seed,) = experiment.seeds
    return up.train(data, experiment.spec(seed).replace(progress=False))


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_the_simulators_bits(name, participation, federation, sites, tmp_path):
    clients = {"participation": participation}
    experiment = experiment_of(algorithm={"name": name, **ALGORITHMS[name]}, clients=clients)
    whole, apart = simulated(federation, experiment), run_over(Mail(sites), experiment)
    assert torch.equal(whole.params, apart.params)
    assert [record.clients.tolist() for record in whole.history] == [r.clients.tolist() for r in apart.history]
    if whole.personal_models is not None:
        assert not apart.personal_models  # the sites' own
        kept = sorted(tmp_path.glob("*/site/*/runs/*/personal.npy"))
        assert len(kept) == len(whole.personal_models)
        for path in kept:
            client = NAMES.index(path.parents[2].name)
            assert np.array_equal(np.load(path), whole.personal_models.params(client).numpy())
            assert path.stat().st_mode & 0o777 == 0o600


@EVERY_MECHANISM
def test_seeded_mechanisms_have_the_simulators_bits_and_its_ledger(mechanism, federation, sites):
    check_seeded(tables_of(mechanism, noise="seeded"), federation, sites)


@pytest.mark.parametrize("mechanism", ONE_NOISE)
def test_one_noise_for_all_has_the_simulators_bits_and_its_ledger(mechanism, federation, sites):
    tables = tables_of(mechanism, noise="seeded")
    check_seeded(tables | {"privacy": tables["privacy"] | {"per_client": False}}, federation, sites)


def check_seeded(tables, federation, sites):
    experiment = experiment_of(**tables)
    whole, apart = simulated(federation, experiment), run_over(Mail(sites), experiment)
    assert torch.equal(whole.params, apart.params)
    for client in range(len(NAMES)):
        one, other = (charges_in_bytes(charges_of(run.privacy, client)) for run in (whole, apart))
        assert one == other
    assert whole.privacy.max_epsilon(1e-3) == apart.privacy.max_epsilon(1e-3)


@pytest.mark.parametrize("upcycle", [None, {"kind": "constant", "coefficient": 0.5}])
def test_an_upcycled_run_of_twice_the_iterations_sends_as_many_messages(upcycle, sites):
    rounds = 3
    mail = Mail(sites)
    iterations = rounds if upcycle is None else 2 * rounds
    result = run_over(mail, experiment_of(iterations=iterations, upcycle=upcycle))
    asked = [fields for _, fields in mail.sent if fields["kind"] == "ask"]
    assert len(asked) == rounds * len(NAMES)
    assert sum(record.messages for record in result.history) == 2 * rounds * len(NAMES)
    assert [r.messages for r in result.history if r.kind == "upcycled"] == [0] * (iterations - rounds)


@pytest.mark.parametrize(("algorithm", "vectors"), [("fedavg", 1), ("scaffold", 2), ("feddyn", 2)])
def test_a_message_is_little_more_than_its_vectors(algorithm, vectors, sites):
    mail = Mail(sites)
    result = run_over(mail, experiment_of(algorithm={"name": algorithm}, iterations=1))
    numbers = result.params.numel()
    for _, fields in mail.sent:
        if fields["kind"] == "ask":
            assert 0 <= size_of(fields) - 4 * numbers * vectors < 4096
    (record,) = result.history
    assert 0 <= record.bytes_down - len(NAMES) * 4 * numbers * vectors < len(NAMES) * 4096
    assert 0 <= record.bytes_up - len(NAMES) * 4 * numbers < len(NAMES) * 4096


@pytest.mark.parametrize("engine", ["fused", "vectorised"])
def test_sites_with_another_engine_agree_but_for_rounding(engine, federation, sites):
    algorithm = {"name": "scaffold"}
    whole = simulated(federation, experiment_of(algorithm=algorithm))
    apart = run_over(Mail(sites), experiment_of(algorithm=algorithm, engine=engine))
    assert torch.allclose(whole.params, apart.params, rtol=0, atol=1e-5)

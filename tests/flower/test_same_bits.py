"""A federation over messages gives the simulator's bits, for every algorithm, and its accounts are charged alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import upcycled as up
from tests.flower.in_process import NAMES, Mail, experiment_of, make_site, run_over
from upcycled.flower.exchange import size_of
from upcycled.privacy.accounts.account import Account

ALGORITHMS = {
    "fedavg": {"server_lr": 0.9},
    "fedavgm": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "pfedme": {"lam": 5.0, "inner_steps": 2},
    "fedyogi": {},
}
OUTPUT = {"mechanism": "erm_output", "norm_bound": 1.0, "epsilon": 2.0, "delta": 1e-3}
PRIVACY = {
    "erm_output": OUTPUT,
    "erm_output, one noise": {**OUTPUT, "per_client": False},
    "update_clipping": {"mechanism": "update_clipping", "clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3},
    "dpsgd": {"mechanism": "dpsgd", "clip_norm": 1.0, "noise_multiplier": 1.0},
}


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


@pytest.mark.parametrize("name", PRIVACY)
def test_seeded_mechanisms_have_the_simulators_bits_and_its_ledger(name, federation, sites):
    own_solver = name.startswith("erm")
    local = None if own_solver else {"lr": 0.05, "epochs": 1, "batch_size": 8}
    experiment = experiment_of(algorithm={"name": "fedprox", "mu": 0.5}, privacy=PRIVACY[name], local=local)
    whole, apart = simulated(federation, experiment), run_over(Mail(sites), experiment)
    assert torch.equal(whole.params, apart.params)
    assert np.array_equal(whole.privacy.rounds, apart.privacy.rounds)
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


@pytest.mark.parametrize("name", ["erm_output", "update_clipping", "dpsgd"])
def test_with_real_noise_every_account_is_charged_what_the_simulators_is(name, federation, tmp_path):
    privacy = {**PRIVACY[name], "noise": "system"}
    local = None if name == "erm_output" else {"lr": 0.05, "epochs": 1, "batch_size": 8}
    experiment = experiment_of(algorithm={"name": "fedprox", "mu": 0.5}, privacy=privacy, local=local)
    account = Account.open(tmp_path / "all", epsilon=50.0, delta=1e-3)
    given = replace(federation, inferred=frozenset(), test=None)
    up.train(given, experiment.spec(3).replace(progress=False, account=account.folder))
    account = Account.read(account.folder)
    sites = {site: make_site(federation, i, tmp_path, simulation=False) for i, site in enumerate(NAMES)}
    run_over(Mail(sites), experiment)
    for i, site in enumerate(NAMES):
        own = Account.read(tmp_path / site / "site" / site / "account")
        assert own.clients == (site,)
        assert own.rounds(site) == account.rounds(str(i)) == 3
        assert own.share(site) == account.share(str(i)) > 0


@pytest.mark.parametrize("engine", ["fused", "vectorised"])
def test_sites_with_another_engine_agree_but_for_rounding(engine, federation, sites):
    algorithm = {"name": "scaffold"}
    whole = simulated(federation, experiment_of(algorithm=algorithm))
    apart = run_over(Mail(sites), experiment_of(algorithm=algorithm, engine=engine))
    assert torch.allclose(whole.params, apart.params, rtol=0, atol=1e-5)

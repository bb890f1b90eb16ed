"""A ledger that is read from its file alone: the same numbers as the run's own, and one sentence for a bad file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

import upcycled as up
from tests.privacy.runs import QUIET, chained, setting, unplanned
from upcycled.core.mechanism import Charge
from upcycled.privacy import (
    DPSGD,
    BoltOnSGD,
    Budget,
    CentralDPFedAvg,
    ChargedScores,
    ErmOutput,
    Ledger,
    ModelClipping,
    ObjectivePerturbation,
    UpdateClipping,
)
from upcycled.privacy.accounting import sampled_gaussian_epsilon
from upcycled.privacy.ledger.composition import Spent
from upcycled.privacy.mechanisms.requirements import default_delta

DELTA = 1e-5
PROX = {"algorithm": up.FedProx(mu=0.5)}
RUNS = {
    "model_clipping": {"privacy": ModelClipping(10.0, 20.0)},
    "update_clipping": {"privacy": UpdateClipping(1.0, epsilon=3.0, delta=1e-4)},
    "erm_output": {"privacy": ErmOutput(1.0, noise_std=0.9), **PROX},
    "erm_output, budget": {"privacy": ErmOutput(1.0, noise_std=0.9), "budget": Budget(2.0, DELTA), **PROX}
    | {"participation": 1.0, "upcycle": None, "iterations": 4},
    "bolt_on_sgd": {"privacy": BoltOnSGD(1.0, noise_std=0.5), "local": up.LocalSGD(lr=0.05)},
    "objective_perturbation": {"privacy": ObjectivePerturbation(20.0, norm_bound=1.0), **PROX},
    "objective_perturbation, paper": {"privacy": ObjectivePerturbation(20.0, paper_mode=True), **PROX},
    "dpsgd": {"privacy": DPSGD(1.0, 1.5)},
    "central_dp_fedavg": {"privacy": CentralDPFedAvg(1.0, 2.0)},
    "central_dp_fedavg, secret": {"privacy": CentralDPFedAvg(1.0, 2.0, secret_sampling=True), "sampling": "poisson"},
    "real noise": {"privacy": ModelClipping(10.0, 20.0), "noise": "system"},
    "scores": {"privacy": ModelClipping(10.0, 20.0), "noise": "system", "charged_scores": ChargedScores(5.0, every=2)},
}


def trained(federation, path, **changes):
    arguments = {"algorithm": up.FedAvg(), "iterations": 6, "upcycle": 0.5, "participation": 0.5} | QUIET
    return up.train(federation, **(arguments | changes), ledger=path).privacy


def test_every_mechanism_is_here():
    assert {name.split(",")[0] for name in RUNS} >= set(up.privacy.MECHANISMS)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_read_is_what_the_run_had(federation, tmp_path, name):
    path = tmp_path / "ledger.jsonl"
    live = trained(federation, path, **RUNS[name])
    before = path.read_bytes()
    read = Ledger.read(path, head=live.head)
    delta = live.default_delta
    assert np.array_equal(read.epsilon(delta), live.epsilon(delta))
    assert np.array_equal(read.rounds, live.rounds)
    assert np.array_equal(read.left_out, live.left_out)
    assert read.max_epsilon(delta) == live.max_epsilon(delta) == live.epsilon(delta).max()
    assert read.epsilon_over_rounds(delta) == live.epsilon_over_rounds(delta)
    # All but the last line, which says how far the file is evidence.
    assert read.statement(delta).splitlines()[:-1] == live.statement(delta).splitlines()[:-1]
    assert read.states_paper_epsilon == live.states_paper_epsilon
    if live.states_paper_epsilon:
        assert np.array_equal(read.paper_epsilon(delta), live.paper_epsilon(delta))
    for fact in ("run", "mechanism", "noise", "promise", "budget", "kind", "default_delta", "chain"):
        assert getattr(read, fact) == getattr(live, fact)
    assert read.chain == "anchored"
    assert len(read) == len(live)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", RUNS)
def test_epsilon_over_rounds_ends_at_the_worst_clients(federation, tmp_path, name):
    ledger = trained(federation, tmp_path / "a", **RUNS[name])
    found = ledger.epsilon_over_rounds(DELTA if ledger.promise.unit == "record" else 1e-3)
    assert found.worst[-1] == ledger.max_epsilon(found.delta)
    assert found.is_complete
    charged = [entry for entry in ledger if entry.charge is not None]
    assert found.rounds == tuple(entry.round for entry in charged)
    assert found.iterations == tuple(entry.iteration for entry in charged)
    assert list(found.worst) == sorted(found.worst)


def opened(path=None, noise="system", mechanism=ModelClipping(10.0, 0.8), **more):  # noqa: B008 - frozen
    facts = setting(**more)
    return Ledger(mechanism.fit(facts), noise, unplanned(facts), path=path, run="r")


def charge(kind, clients, **columns):
    who = np.array(clients)
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Charge(kind, who, **({"sensitivity": np.ones(who.size), "noise_std": np.ones(who.size)} | arrays))


def gaussian_epsilon(mu, delta):
    """The root of the exact formula, by bisection."""

    def gap(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(gap, 0, 200, xtol=1e-12)


def test_gaussian_charges_compose_by_the_sum_of_squares(tmp_path):
    ledger = opened(tmp_path / "a")
    for m in (1, 2, 3):  # mu_t = 1/4, 1/2 and, for the third client in round 1 alone, 1
        who = [0, 1, 2] if m == 1 else [0, 1]
        one = {"sensitivity": [1.0, 3.0, 2.0][: len(who)], "noise_std": [4.0, 6.0, 2.0][: len(who)]}
        ledger.charge(m, m, 0, charge("gaussian", who, **one))
    read = Ledger.read(tmp_path / "a")
    shifts = [math.sqrt(3) / 4, math.sqrt(3) / 2, 1.0]
    expected = [gaussian_epsilon(mu, DELTA) for mu in shifts]
    assert read.epsilon(DELTA) == pytest.approx(expected, rel=1e-8)
    assert read.epsilon_over_rounds(DELTA).worst == pytest.approx([gaussian_epsilon(1.0, DELTA)] * 3, rel=1e-8)


def pure_epsilon(each, rounds, delta):
    """The optimal composition of equal pure rounds, by its definition: delta(eps) = sum max(0, P - e^eps Q)."""
    counts = np.arange(rounds + 1)
    p, q = (binom.pmf(counts, rounds, 1 / (1 + math.exp(sign * each))) for sign in (-1, 1))
    return brentq(lambda epsilon: np.maximum(p - math.exp(epsilon) * q, 0).sum() - delta, 0, rounds * each)


def test_pure_charges_add_up_or_compose_optimally(tmp_path):
    ledger = opened(tmp_path / "a")
    for m in range(1, 21):
        ledger.charge(m, m, 0, charge("pure", [0, 1], epsilon=[0.1, 0.3]))
    ledger.charge(21, 21, 0, charge("pure", [0, 2], epsilon=[0.2, 0.5]))
    read = Ledger.read(tmp_path / "a")
    assert read.epsilon(0.0) == pytest.approx([2.2, 6.0, 0.5])
    assert read.epsilon(DELTA)[1] == pytest.approx(pure_epsilon(0.3, 20, DELTA), rel=1e-9)
    assert read.max_epsilon(DELTA) == read.epsilon(DELTA).max()
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.identity(value_discretization_interval=0.01)
    for epsilon, count in ((0.1, 20), (0.2, 1)):
        one = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, 0.0), 0.01)
        composed = composed.compose(one.self_compose(count))
    assert read.epsilon(DELTA)[0] == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=1e-6)


def test_the_statement_of_pure_charges_has_the_plain_sum_beside_a_delta_and_not_beside_none(tmp_path):
    ledger = opened(tmp_path / "a", mechanism=UpdateClipping(1.0, 0.8))  # of which the paper claims nothing
    ledger.charge(1, 1, 0, charge("pure", [0, 1], epsilon=[0.1, 0.3]))
    assert "the plain sum, at delta = 0, is 0.3 for the worst client" in ledger.statement(DELTA)
    assert "the plain sum" not in ledger.statement(0.0)


def test_a_long_history_of_pure_charges_is_stated_after_sixty_of_them():
    ledger = opened(data_rounds=200)
    for m in range(1, 201):
        ledger.charge(m, m, 0, charge("pure", [0], epsilon=[0.01]))
    found = ledger.epsilon_over_rounds(0.0)
    assert len(found.worst) == 60
    assert found.worst[-1] == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["steps", "draws"])
def test_counts_of_a_charge_end_where_floats_have_every_integer(name):
    kind = {"steps": "sampled", "draws": "gaussian"}[name]
    whole = {"sampling_rate": [0.5], "steps": [1]} if kind == "sampled" else {}
    opened().charge(1, 1, 0, charge(kind, [0], **whole | {name: np.array([2**53])}))
    with pytest.raises(up.InputError, match=f"its {name} is 9.0072e\\+15, and must be from 0 to 9.0072e\\+15"):
        opened().charge(1, 1, 0, charge(kind, [0], **whole | {name: np.array([2**53 + 2])}))


def test_the_noise_of_an_upcycled_run_is_said_to_be_integers_too(tmp_path):
    """An upcycled iteration has no charge, and so no draws; the words are about those that have."""
    ledger = opened(tmp_path / "a", noise="system")
    ledger.charge(1, 1, 0, charge("gaussian", [0, 1], draws=np.array([3, 3])))
    ledger.upcycled(2, 1)
    assert "sampled up to a proven error" in ledger.statement(DELTA)


def test_a_client_that_pays_more_often_can_be_the_worst():
    ledger = opened()
    ledger.charge(1, 1, 0, charge("pure", [0, 1], epsilon=[0.1, 0.3]))
    for m in (2, 3, 4):
        ledger.charge(m, m, 0, charge("pure", [0], epsilon=[0.1]))
    assert ledger.epsilon_over_rounds(0.0).worst == pytest.approx([0.3, 0.3, 0.3, 0.4])


def test_sampled_charges_are_stated_for_every_round_and_end_at_the_accountants_number(tmp_path):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    ledger = opened(tmp_path / "a")
    for m in range(1, 31):
        one = {"noise_std": [2.0, 2.0], "sampling_rate": [0.1, 0.05], "steps": [2, 2]}
        ledger.charge(m, m, 0, charge("sampled", [0, 1], **one))
    read = Ledger.read(tmp_path / "a")
    found = read.epsilon_over_rounds(DELTA)
    assert found.is_complete
    assert found.rounds == tuple(range(1, 31))
    assert list(found.worst) == sorted(found.worst)
    for m in (1, 7, 29):  # upper bounds, and close
        exact = sampled_gaussian_epsilon(q=0.1, noise_multiplier=2.0, steps=2 * m, delta=DELTA)
        assert exact * (1 - 1e-3) < found.worst[m - 1] < exact * 1.01
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, 1e-4)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 60)
    assert found.worst[-1] == read.max_epsilon(DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert read.epsilon(DELTA)[1] < found.worst[-1]


def test_only_clients_that_no_other_exceeds_are_computed():
    spent = Spent(4)
    one = {"noise_std": [2.0, 2.0, 3.0], "sampling_rate": [0.1, 0.05, 0.2], "steps": [2, 2, 2]}
    spent.add(charge("sampled", [0, 1, 2], **one))
    assert sorted(spent.worst_points()) == [(2.0, 0.1, -2.0, 0), (2.0, 0.2, -3.0, 0)]
    pure = Spent(5)
    pure.add(charge("pure", [0, 1, 2, 3], epsilon=[0.1, 0.3, 0.2, 0.3]))
    pure.add(charge("pure", [0, 1, 2], epsilon=[0.1, 0.4, 0.2]))
    # (0.1 twice) is below (0.2 twice); unequal rounds compare with nothing.
    assert sorted(pure.worst_points()) == [(-1.0, 0.3, 0.4), (0.2, 2), (0.3, 1)]


def test_no_noise_and_no_claim_are_infinite():
    for one in (
        charge("gaussian", [0], noise_std=[0.0]),
        charge("sampled", [0], noise_std=[0.0], sampling_rate=[0.5], steps=[3]),
        charge("none", [0]),
    ):
        ledger = opened()
        assert ledger.epsilon_over_rounds(DELTA).rounds == ()
        ledger.charge(1, 1, 0, one)
        assert ledger.epsilon_over_rounds(DELTA).worst == (math.inf,)
        ledger.charge(2, 2, 0, one)
        assert ledger.epsilon_over_rounds(DELTA).worst == (math.inf, math.inf)
        assert ledger.epsilon(DELTA).tolist() == [math.inf, 0.0, 0.0]


@pytest.mark.parametrize(("noise", "rounds"), [("seeded", 1), ("system", 2)])
def test_a_repeated_line_is_one_release_with_seeded_noise_and_two_with_real_noise(tmp_path, noise, rounds):
    path = tmp_path / "a"
    opened(path, noise).charge(1, 1, 0, charge("pure", [0, 1], epsilon=[0.5, 0.1]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(chained([*lines, {name: value for name, value in lines[-1].items() if name != "first"}]))
    read = Ledger.read(path)
    assert read.epsilon(0.0).tolist() == [0.5 * rounds, 0.1 * rounds, 0.0]
    assert read.epsilon_over_rounds(0.0).worst[-1] == 0.5 * rounds


def test_charges_of_different_kinds_are_refused(tmp_path):
    ledger = opened(tmp_path / "a")
    ledger.charge(1, 1, 0, charge("gaussian", [0]))
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(up.InputError, match=r"charge.*'pure'.*'gaussian'"):
        ledger.charge(2, 2, 0, charge("pure", [0], epsilon=[1.0]))
    assert (tmp_path / "a").read_bytes() == before


def test_a_line_without_its_end_does_not_count_and_is_left_where_it_is(tmp_path):
    path = tmp_path / "a"
    ledger = opened(path)
    for m in (1, 2):
        ledger.charge(m, m, 0, charge("gaussian", [0]))
    path.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    assert Ledger.read(path).rounds.tolist() == [1, 0, 0]
    assert path.read_bytes() == before


def test_a_ledger_that_was_read_takes_no_lines(tmp_path):
    path = tmp_path / "a"
    opened(path).charge(1, 1, 0, charge("gaussian", [0]))
    read = Ledger.read(str(path))
    for write in (
        lambda: read.charge(2, 2, 0, charge("gaussian", [0])),
        lambda: read.leave_out(2, 2, 0, np.array([0])),
        lambda: read.upcycled(2, 1),
    ):
        with pytest.raises(up.InputError, match=r"ledger.*lines"):
            write()


def test_delta_is_held_against_the_sizes_of_the_file(tmp_path):
    path = tmp_path / "a"
    opened(path).charge(1, 1, 0, charge("gaussian", [0]))
    read = Ledger.read(path)
    for ask in (read.epsilon, read.max_epsilon, read.epsilon_over_rounds):
        with pytest.raises(up.InputError, match=r"delta.*0.01.*1/n = 0.0025 \(400"):
            ask(0.01)
        with pytest.warns(UserWarning, match=r"1/\(10 n\)") as caught:
            ask(0.001)
        assert caught[0].filename == __file__
        with pytest.raises(up.InputError, match=r"delta.*0.*0"):
            ask(0)


def test_the_default_delta_is_the_mechanisms_own_or_one_that_nobody_warns_about(federation, tmp_path):
    assert default_delta(None, 5_000) == 1e-5
    assert default_delta(None, 1_000_000) == pytest.approx(1e-7)
    assert default_delta(0.01, 1_000_000) == 0.01
    for mechanism, delta in (
        (ObjectivePerturbation(20.0, norm_bound=1.0), 1e-5),
        (ObjectivePerturbation(epsilon=2.0, norm_bound=1.0), 1e-5),
        (ErmOutput(1.0, epsilon=2.0, delta=1e-6), 1e-6),
        (ModelClipping(1.0, epsilon=2.0, delta=1e-6), 1e-6),
        (UpdateClipping(1.0, epsilon=2.0, delta=1e-6), 1e-6),
        (BoltOnSGD(1.0, epsilon=2.0, delta=1e-6), 1e-6),
        (DPSGD(1.0, epsilon=2.0, delta=1e-6), 1e-6),
        (CentralDPFedAvg(1.0, epsilon=2.0, delta=1e-6), 1e-6),
    ):
        path = tmp_path / f"{mechanism.name} {mechanism.delta}"
        local = up.LocalSGD(lr=0.05) if isinstance(mechanism, BoltOnSGD) else None
        opened(path, mechanism=mechanism, **({} if local is None else {"local": local}))
        assert Ledger.read(path).default_delta == delta


HEADER, LINE = 1, 2
BAD = {
    "client out of range": (LINE, {"clients": [0, 7]}, r"line 2 \(client 7.*0.*2"),
    "negative client": (LINE, {"clients": [0, -1]}, r"line 2 \(client -1.*0.*2"),
    "client twice": (LINE, {"clients": [1, 1]}, r"line 2.*client.*twice"),
    "half a client": (LINE, {"clients": [0, 1.5]}, r"line 2.*clients.*integers"),
    "negative noise": (LINE, {"noise_std": [1.0, -0.5]}, r"line 2.*noise_std.*-0.5.*0"),
    "infinite noise": (LINE, {"noise_std": [1.0, math.inf]}, r"line 2.*noise_std.*inf"),
    "no number": (LINE, {"sensitivity": [1.0, math.nan]}, r"line 2.*JSON"),
    "text": (LINE, {"sensitivity": ["1", "2"]}, r"line 2.*sensitivity.*list"),
    "ragged": (LINE, {"sensitivity": [[1.0], [1.0, 2.0]]}, r"line 2.*sensitivity.*list"),
    "too short": (LINE, {"sensitivity": [1.0]}, r"line 2.*charge.*one.*client"),
    "unknown charge": (LINE, {"charge": "zcdp"}, r"line 2.*charge.*'zcdp'.*pure"),
    "unhashable charge": (LINE, {"charge": []}, r"line 2.*charge.*\[\]"),
    "missing part": (LINE, {"charge": "pure"}, r"line 2.*'epsilon'"),
    "unknown kind": (LINE, {"kind": "gift"}, r"line 2.*'gift'.*ledger"),
    "pure scores": (
        LINE,
        {"kind": "scores", "charge": "pure", "epsilon": [1.0, 1.0]},
        r"line 2.*scores.*charge",
    ),
    "scores again": (
        LINE,
        {"kind": "scores", "attempt": 1},
        r"line 2.*scores.*charge 'gaussian'.*2 clients",
    ),
    "nobody moves": (
        LINE,
        {"charge": "sampled", "sensitivity": [1.0, 0.0], "sampling_rate": [0.5, 0.5], "steps": [3, 3]},
        r"line 2.*sensitivity is 0.*above 0",
    ),
    "negative round": (LINE, {"round": -1}, r"line 2.*round.*-1.*integer >= 1"),
    "newer format": (HEADER, {"format": 5}, r"line 1.*format.*5; expected 4"),
    "older format": (HEADER, {"format": 3}, r"line 1.*format.*3; expected 4"),
    "other noise": (HEADER, {"noise": "none"}, r"line 1.*noise.*'none'"),
    "other unit": (HEADER, {"unit": "house"}, r"line 1.*unit.*'house'"),
    "other sizes": (HEADER, {"sizes": [1, 2]}, r"line 1.*sizes.*largest"),
    "no clients": (HEADER, {"num_clients": 0}, r"line 1.*num_clients.*0.*integer >= 1"),
    "no sentences": (HEADER, {"assumptions_checked": [1]}, r"line 1.*assumptions"),
    "one sentence": (HEADER, {"assumptions_trusted": "all"}, r"line 1.*assumptions"),
    "claimed by 1": (
        HEADER,
        {"is_claimed": 1},
        r"line 1.*sampling_is_secret.*is_claimed",
    ),
    "secret by 0": (HEADER, {"sampling_is_secret": 0}, r"line 1.*sampling_is_secret.*is_claimed"),
    "no theorem": (HEADER, {"paper": {"theorem": "last"}}, r"line 1.*paper.*'last'"),
    "bad budget": (HEADER, {"budget": 3}, r"line 1.*type"),
    "no header": (HEADER, {"kind": "data"}, r"line 1.*open.*run's ledger"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_sentence(tmp_path, name):
    number, change, sentence = BAD[name]
    path = tmp_path / "a"
    opened(path).charge(1, 1, 0, charge("gaussian", [0, 1]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number - 1] |= change
    # The chain is made anew: what is no ledger's line is refused whoever wrote it.
    path.write_text(chained(lines))
    with pytest.raises(up.InputError, match=rf"^ledger '.*'.*damaged.*{sentence}"):
        Ledger.read(path)


def test_lines_of_two_kinds_in_a_file_get_one_sentence(tmp_path):
    path = tmp_path / "a"
    opened(path).charge(1, 1, 0, charge("gaussian", [0]))
    line = json.loads(path.read_text().splitlines()[1]) | {
        "charge": "pure",
        "epsilon": [0.1],
        "iteration": 2,
        "round": 2,
    }
    del line["first"]
    path.write_text(chained([*map(json.loads, path.read_text().splitlines()), line]))
    with pytest.raises(up.InputError, match=r"damaged.*line 3.*charge.*'pure'.*'gaussian'"):
        Ledger.read(path)


def test_a_file_that_is_not_there_or_empty_gets_one_sentence(tmp_path):
    with pytest.raises(up.InputError, match=r"^ledger '.*'.*No such file or directory$"):
        Ledger.read(tmp_path / "none")
    with pytest.raises(up.InputError, match=r"^ledger '.*'.*Is a directory$"):
        Ledger.read(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(up.InputError, match=r"^ledger '.*'.*empty"):
        Ledger.read(tmp_path / "a")

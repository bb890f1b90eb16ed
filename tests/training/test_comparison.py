from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from tests.wording import has_all
from upcycled._utils.statistics import holm

QUICK = {"algorithm": up.FedProx(mu=0.5), "iterations": 8, "seeds": (0, 1, 2), "progress": False}


@pytest.fixture(scope="module")
def data():
    return up.data.synthetic("iid", clients=6, sizes=120, seed=0)


def test_equal_work_means_the_same_data_rounds_clients_and_steps(data):
    found = up.compare(data, participation=0.5, **QUICK)
    for vanilla, upcycled in zip(found.vanilla, found.upcycled, strict=True):
        rounds = [r for r in upcycled.history if r.kind == "data"]
        assert len(vanilla.history) == len(rounds) == 4
        assert [r.clients.tolist() for r in rounds] == [r.clients.tolist() for r in vanilla.history]
        assert sum(upcycled.history.column("bytes_up")) == sum(vanilla.history.column("bytes_up"))


def test_the_interval_is_students_on_the_paired_differences(data):
    found = up.compare(data, **QUICK)
    d = np.array([u.accuracy - v.accuracy for v, u in zip(found.vanilla, found.upcycled, strict=True)])
    # The 97.5 % point of Student's t with two degrees of freedom is 4.302653.
    half = 4.302653 * d.std(ddof=1) / 3**0.5
    assert found.paired.mean == pytest.approx(d.mean())
    assert found.paired.interval == pytest.approx((d.mean() - half, d.mean() + half), rel=1e-6)
    assert found.paired.is_significant == (abs(d.mean()) > half)
    assert has_all(str(found), "95", "interval")


def test_a_constant_coefficient_is_compared_with_a_longer_server_step_too(data):
    found = up.compare(data, upcycle=0.25, participation=0.5, **QUICK)
    assert found.server_lr == 1.25
    for vanilla, longer in zip(found.vanilla, found.longer_step, strict=True):
        assert longer.spec.algorithm == up.FedProx(mu=0.5, server_lr=1.25)
        assert [r.clients.tolist() for r in longer.history] == [r.clients.tolist() for r in vanilla.history]
    differences = [u.accuracy - v.accuracy for v, u in zip(found.longer_step, found.upcycled, strict=True)]
    assert found.paired_longer_step.differences == pytest.approx(differences)
    tests = (found.paired, found.paired_longer_step)
    assert found.holm_p_values == tuple(holm([test.p_value for test in tests]))
    assert has_all(str(found), "vanilla, server_lr = 1.25", tests[1].verdict)
    assert found.overview.head[1:] == ("vanilla", "upcycled", "vanilla, server_lr = 1.25")
    assert all(len(row) == 4 for row in found.overview.rows)


def test_an_upcycled_fedprox_run_is_vanilla_with_the_longer_server_step(data):
    found = up.compare(data, local=up.LocalSGD(lr=0.1), **QUICK)
    for upcycled, longer in zip(found.upcycled, found.longer_step, strict=True):
        np.testing.assert_allclose(longer.params.numpy(), upcycled.params.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"upcycle": up.coefficients.Decaying(1.0)}, "not constant"),
        ({"upcycle": 0}, "coefficient is 0"),
        ({"algorithm": up.PFedMe()}, "pfedme has no server_lr"),
        ({"algorithm": up.FedAvg(server_lr=0.5)}, "fedavg has no server_lr"),
        ({"privacy": up.privacy.ModelClipping(1.0, 8.0), "noise": "system"}, "data holder"),
    ],
)
def test_a_comparison_says_why_it_has_no_longer_server_step(data, more, words):
    found = up.compare(data, **(QUICK | {"iterations": 4, "seeds": (0, 1)} | more))
    assert (found.longer_step, found.server_lr, found.paired_longer_step) == ((), None, None)
    assert words in found.why_no_longer_step
    assert found.why_no_longer_step in str(found)


def test_an_account_pays_for_no_arm_with_a_longer_server_step(data, tmp_path):
    up.privacy.Account.open(tmp_path / "account", epsilon=50.0, delta=1e-5)
    real = {"privacy": up.privacy.ModelClipping(1.0, 8.0), "noise": "system", "account": tmp_path / "account"}
    found = up.compare(replace(data, public=True), **(QUICK | {"iterations": 4, "seeds": (0, 1)} | real))
    assert not found.is_restricted
    assert found.longer_step == ()
    assert "account" in found.why_no_longer_step
    assert len(up.privacy.Account.read(tmp_path / "account").studies) == 4


def test_the_longer_server_step_can_be_left_out(data):
    found = up.compare(data, longer_step=False, **(QUICK | {"iterations": 4, "seeds": (0, 1)}))
    assert (found.longer_step, found.why_no_longer_step) == ((), "")
    assert "longer" not in str(found)


def test_equal_epsilon_gives_both_the_same_epsilon_and_upcycled_less_noise_by_the_root_of_two(data):
    privacy = up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-5)
    found = up.compare(data, equal="epsilon", privacy=privacy, **QUICK)
    vanilla, upcycled = found.vanilla[0].privacy, found.upcycled[0].privacy
    assert len(found.vanilla[0].history) == len(found.upcycled[0].history) == 8
    assert vanilla.max_epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    assert upcycled.max_epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    noise = [next(iter(ledger)).charge.noise_std for ledger in (vanilla, upcycled)]
    assert noise[0] / noise[1] == pytest.approx(np.full(6, 2**0.5), rel=1e-3)


class WithoutEpsilon:
    """A mechanism of one's own needs a name and fit, no more."""

    name = "own"

    def fit(self, setting):
        raise AssertionError


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"equal": "works"}, r"did you mean 'work'\?"),
        ({"seeds": (0,)}, "different"),
        ({"upcycle": None}, r"upcycle.*None"),
        ({"equal": "epsilon"}, "given epsilon="),
        ({"equal": "epsilon", "privacy": up.privacy.ModelClipping(1.0, 1.0)}, "given epsilon="),
        ({"equal": "epsilon", "privacy": WithoutEpsilon()}, "given epsilon="),
        ({"iterations": 1}, r"iterations.*1"),
        ({"participation": 2.0}, r"participation.*2\.0"),
    ],
)
def test_a_wrong_comparison_is_refused_in_one_sentence(data, wrong, words):
    with pytest.raises(up.InputError) as error:
        up.compare(data, **(QUICK | wrong))
    assert re.search(words, str(error.value))


def test_a_comparison_needs_test_samples_and_says_so(data):
    with pytest.raises(up.InputError, match=r"data.*test"):
        up.compare(replace(data, test=None), **QUICK)


def test_an_overview_has_the_epsilon_of_private_runs_and_no_scores_of_restricted_ones(data):
    private = QUICK | {"iterations": 4, "seeds": (0, 1), "privacy": up.privacy.ModelClipping(1.0, 8.0)}
    rows = {row[0]: row[1:] for row in up.compare(data, **private).overview.rows}
    simulated = "worst client's epsilon (simulation: not private)"
    # Half as many data rounds: the vanilla runs and the upcycled ones have two each.
    spent = up.train(data, **{k: v for k, v in private.items() if k != "seeds"} | {"iterations": 2}).privacy
    assert rows[simulated] == (f"{spent.max_epsilon(1e-5):.3f}",) * 3
    assert "accuracy %" in rows
    real = {row[0]: row[1:] for row in up.compare(data, **private, noise="system").overview.rows}
    assert "worst client's epsilon" in real
    assert not any("accuracy" in name or "loss" in name for name in real)


def test_one_seed_is_no_argument_of_a_comparison(data):
    with pytest.raises(TypeError, match=r"compare\(\).*'seed'; did you mean 'seeds'\?"):
        up.compare(data, **QUICK, seed=3)

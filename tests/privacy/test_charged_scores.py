"""Scores that are published because they are charged: what they count, how far a record moves them, what they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import upcycled as up
from tests.privacy.test_mechanism_noise import assert_scale
from upcycled.audit.explain import planned_ledger
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Fitted
from upcycled.core.randomness import Purpose
from upcycled.privacy import Budget, ChargedScores, Ledger, ModelClipping, UpdateClipping, gdp_epsilon, gdp_mu
from upcycled.privacy.charged_scores import pay_for_scores
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training.callbacks import Callback
from upcycled.training.loop import scorer_of
from upcycled.training.plan import make_plan

DELTA = 1e-4
TESTED = (11, 0, 7, 13)


def federation(classes=2, change=lambda x, y: None):
    """Four clients, one of them without held-out samples; ``change`` may alter the first one's."""
    rng = np.random.default_rng(5)

    def part(sizes):
        xs = [rng.normal(0, 1, (n, 4)).astype(np.float32) for n in sizes]
        return xs, [(x @ np.arange(4) > 0).astype(np.int64) * (classes - 1) for x in xs]

    (xs, ys), (held_xs, held_ys) = part((30, 20, 25, 40)), part(TESTED)
    change(held_xs[0], held_ys[0])
    return up.FederatedData.from_arrays(xs, ys, test=(held_xs, held_ys), num_classes=classes, repair=True)


def trained(scores, data=None, **more):
    asked = {"algorithm": up.FedAvg(), "privacy": UpdateClipping(1.0, noise_std=4.0), "iterations": 6, "seed": 2}
    quiet = {"progress": False, "engine": "sequential"}
    return up.train(federation() if data is None else data, **(asked | quiet | {"charged_scores": scores} | more))


def counted(scores, data, model=None):
    """The exact numbers of the clients that have held-out samples."""
    spec = up.RunSpec(
        algorithm=up.FedAvg(), privacy=UpdateClipping(1.0, noise_std=4.0), charged_scores=scores, engine="sequential"
    )
    plan = make_plan(data, spec)
    if model is None:
        model = np.random.default_rng(1).normal(0, 1, plan.layout.size).astype(np.float32)
    return scorer_of(plan).count(model, np.flatnonzero(data.test.sizes))


def base(counts):
    return {"right": 1, "confusion": 2, "histogram": 2}[counts]


# What is counted


def test_counts_are_what_a_plain_reckoning_of_the_model_finds():
    run, data = trained(ChargedScores(1.0)), federation()
    model = run.params.numpy()
    x, y = torch.from_numpy(data.test.x), data.test.y
    with torch.no_grad():
        logits = run.model(x).double()
    guessed, score = logits.argmax(1).numpy(), torch.softmax(logits, 1)[:, 1].numpy()
    assert counted(ChargedScores(1.0), data, model).sum() == (guessed == y).sum()
    matrix = counted(ChargedScores(1.0, counts="confusion"), data, model).sum(0).reshape(2, 2)
    assert matrix.tolist() == [[((y == i) & (guessed == j)).sum() for j in (0, 1)] for i in (0, 1)]
    cells = counted(ChargedScores(1.0, counts="histogram", bins=4), data, model).sum(0).reshape(2, 4)
    for label in (0, 1):
        assert np.array_equal(cells[label], np.histogram(score[y == label], bins=4, range=(0, 1))[0])
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="none").clamp(max=0.5)
    assert counted(ChargedScores(1.0, loss_bound=0.5), data, model)[:, 1].sum() == pytest.approx(
        float(losses.sum()) / 0.5
    )


def test_scores_with_hardly_any_noise_are_the_exact_ones():
    run = trained(ChargedScores(1e-6, counts="histogram", bins=10_000, loss_bound=50.0), eval_every=1)
    data = federation()
    for record in run.history:
        assert record.metrics["noisy_accuracy"] == pytest.approx(record.accuracy, abs=1e-4)
        assert record.metrics["noisy_loss"] == pytest.approx(record.loss, abs=1e-4)
    with torch.no_grad():
        score = torch.softmax(run.model(torch.from_numpy(data.test.x)).double(), 1)[:, 1].numpy()
    pairs = score[data.test.y == 1][:, None] - score[data.test.y == 0]
    assert run.history[-1].metrics["noisy_auroc"] == pytest.approx((np.sign(pairs) + 1).mean() / 2, abs=1e-3)
    cells = trained(ChargedScores(1e-6, counts="confusion")).history[-1].metrics
    assert sum(cells[f"noisy_confusion_{i}_{j}"] for i in (0, 1) for j in (0, 1)) == pytest.approx(
        sum(TESTED), abs=0.01
    )


def test_an_output_beyond_the_classes_is_in_no_cell():
    fitted = ChargedScores(1.0, counts="confusion").fit(1, classes=2, noise="seeded")
    logits = np.array([[0.0, 1.0, 5.0], [3.0, 1.0, 0.0]])
    assert fitted.count(logits, np.array([1, 0])).tolist() == [1, 0, 0, 0]


# How far one record moves them


@pytest.mark.parametrize("counts", ["right", "confusion", "histogram"])
@pytest.mark.parametrize("bound", [None, 0.7])
def test_one_replaced_record_moves_the_numbers_of_its_client_by_the_sensitivity_at_most(counts, bound):
    scores = ChargedScores(3.0, counts=counts, bins=6, loss_bound=bound)
    before, moved = counted(scores, federation()), []
    rng = np.random.default_rng(0)
    for row in range(TESTED[0]):
        for word in (None, np.nan, 1e30, *rng.normal(0, 3, 3)):

            def change(x, y, row=row, word=word):
                y[row] = 1 - y[row]
                if word is not None:
                    x[row] = word

            after = counted(scores, federation(change=change))
            assert np.array_equal(after[1:], before[1:])
            moved.append(float(np.linalg.norm(after[0] - before[0])))
    most = np.sqrt(base(counts) + (bound is not None))
    assert max(moved) <= most + 1e-12
    # It is reached, nearly where the loss has to reach its bound too.
    assert max(moved) >= (most - 1e-12 if bound is None else 0.8 * most)
    grid = 2.0 ** (1 - 20)
    fitted = scores.fit(1, classes=2, noise="seeded")
    assert fitted.sensitivity == pytest.approx(most + grid * np.sqrt(fitted.numbers), rel=1e-15)
    assert fitted.numbers == before.shape[1]


# Their noise


def seeded_words(seed):
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("source", [SeededNoise(4, 9), SystemNoise(seeded_words(8))], ids=["seeded", "system"])
def test_released_counts_have_noise_of_the_stated_std_on_the_grid(source):
    fitted = ChargedScores(2.5, counts="histogram", bins=50).fit(1, classes=2, noise=source.name)
    clients = np.arange(30)
    exact = np.random.default_rng(0).integers(0, 40, (30, 100)).astype(np.float64)
    released = fitted.release(exact, clients, source)
    assert_scale(released - exact, 2.5)
    assert np.array_equal(released * 2**19, np.rint(released * 2**19))  # 2^(1 - 20) is the grid of 2.5


def test_scores_have_a_stream_of_their_own_and_each_iteration_its_own_noise():
    fitted = ChargedScores(2.0, loss_bound=1.0).fit(4, classes=2, noise="seeded")
    found = [fitted.release(np.zeros((3, 2)), np.arange(3), SeededNoise(0, t)) for t in (1, 2)]
    assert (found[0] != found[1]).all()
    steps = SeededNoise(0, 1).gaussian_steps(np.arange(3), 2, np.full(3, 2.0**20), Purpose.NOISE)
    assert (found[0] != steps * 2.0**-19).all()
    runs = [trained(ChargedScores(2.0), upcycle=0.0), trained(ChargedScores(2.0), upcycle=0.0)]
    scores = [[record.metrics["noisy_accuracy"] for record in run.history] for run in runs]
    assert scores[0] == scores[1]
    # rho = 0 repeats the model, not the noise.
    assert scores[0][0] != scores[0][1]


def test_the_stated_std_is_that_of_the_sum_over_clients():
    for counts, cells in (("right", 1), ("confusion", 2), ("histogram", 6)):
        fitted = ChargedScores(3.0, counts=counts, bins=6, loss_bound=2.0).fit(1, classes=2, noise="seeded")
        stated = fitted.metrics(np.zeros((9, fitted.numbers)), 100)
        assert stated["noisy_accuracy_std"] == pytest.approx(3.0 * 3 * np.sqrt(cells) / 100)
        assert stated["noisy_loss_std"] == pytest.approx(2.0 * 3.0 * 3 / 100)


# What they cost


@pytest.mark.parametrize("counts", ["right", "confusion", "histogram"])
def test_epsilon_is_that_of_the_sum_of_squares_derived_by_hand(counts, tmp_path):
    file = tmp_path / "ledger.jsonl"
    run = trained(ChargedScores(5.0, every=4, counts=counts, bins=2), ledger=file)
    numbers = {"right": 1, "confusion": 4, "histogram": 4}[counts]
    # 6 rounds of sensitivity 2 and std 4 for 10 parameters; scores after iterations 4 and 6.
    rounds = 6 * ((2 + 2.0**-18 * np.sqrt(10)) / 4) ** 2
    scored = 2 * ((np.sqrt(base(counts)) + 2.0**-18 * np.sqrt(numbers)) / 5) ** 2
    expected = [gdp_epsilon(mu=np.sqrt(rounds + scored * (size > 0)), delta=DELTA) for size in TESTED]
    for ledger in (run.privacy, Ledger.read(file, head=run.privacy.head)):
        assert ledger.epsilon(DELTA).tolist() == pytest.approx(expected, rel=1e-9)
        assert ledger.rounds.tolist() == [6, 6, 6, 6]
        assert [entry.iteration for entry in ledger if entry.kind == "scores"] == [4, 6]
        assert [entry.clients.tolist() for entry in ledger if entry.kind == "scores"] == [[0, 2, 3]] * 2
        assert ledger.epsilon_over_rounds(DELTA).worst[-1] == ledger.max_epsilon(DELTA)
        assert "scores charged: 2 times" in ledger.statement(DELTA)


def test_a_client_that_only_paid_for_scores_has_spent_something():
    run = trained(ChargedScores(5.0), participation=0.25, iterations=1)
    trainers, epsilon = run.privacy.rounds, run.privacy.epsilon(DELTA)
    one = gdp_epsilon(mu=(1 + 2.0**-18) / 5, delta=DELTA)
    for client in range(4):
        if trainers[client] == 0 and TESTED[client]:
            assert epsilon[client] == pytest.approx(one, rel=1e-9)
    assert epsilon.max() > 2 * one


@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize("per_client", [True, False])
def test_noise_calibrated_to_an_epsilon_leaves_room_for_scores(noise, per_client):
    privacy = ModelClipping(1.0, epsilon=2.0, delta=DELTA, per_client=per_client)
    run = trained(ChargedScores(8.0, every=2), privacy=privacy, noise=noise)
    assert run.privacy.max_epsilon(DELTA) <= 2.0
    assert run.privacy.max_epsilon(DELTA) == pytest.approx(2.0, rel=1e-6)
    std = next(entry.charge.noise_std for entry in run.privacy if entry.kind == "data")[0]
    part = 2.0**-20 if noise == "system" else 0.0
    left = gdp_mu(epsilon=2.0, delta=DELTA * (1 - part)) ** 2 - 3 * ((1 + 2.0**-17) / 8) ** 2
    grid = 2.0 ** (np.floor(np.log2(std)) - 20)
    assert std == pytest.approx(np.sqrt(6 / left) * (2 + grid * np.sqrt(10)), rel=1e-9)


def test_scores_of_a_resumed_simulation_are_the_same_and_charged_once(tmp_path):
    asked = {"scores": ChargedScores(5.0), "checkpoint_every": 1, "budget": Budget(30.0, DELTA)}
    whole = trained(**asked)
    broken = trained(
        **asked, checkpoint=tmp_path, callbacks=[lambda record: up.STOP if record.iteration == 3 else None]
    )
    assert len(broken.history) == 3
    again = trained(**asked, checkpoint=tmp_path)
    assert [r.metrics for r in again.history] == [r.metrics for r in whole.history]
    assert again.privacy.max_epsilon(DELTA) == whole.privacy.max_epsilon(DELTA)
    assert len(again.privacy) == len(whole.privacy)


def test_a_simulated_score_that_is_charged_already_is_paid_for_by_who_paid_it():
    plan = make_plan(
        federation(),
        up.RunSpec(
            algorithm=up.FedAvg(), privacy=UpdateClipping(1.0, noise_std=4.0), charged_scores=ChargedScores(1.0)
        ),
    )
    one = gdp_epsilon(mu=1.5, delta=DELTA)
    ledger = Ledger(plan.mechanism, "seeded", plan.setting, Budget(float(one), DELTA))
    sizes = np.array(TESTED)
    for _ in range(2):
        assert pay_for_scores(ledger, plan.scores, sizes, iteration=1, round=1).tolist() == [0, 2, 3]
    assert pay_for_scores(ledger, plan.scores, sizes, iteration=2, round=2).tolist() == [0, 2, 3]
    assert pay_for_scores(ledger, plan.scores, sizes, iteration=3, round=3).tolist() == []
    # Nothing is left, and what was paid stays paid.
    assert pay_for_scores(ledger, plan.scores, sizes, iteration=2, round=2).tolist() == [0, 2, 3]
    assert len(ledger) == 2


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_a_client_that_cannot_pay_is_left_out_of_scores_and_the_budget_holds(noise):
    # Six rounds alone fit; with a score after each some do not.
    rounds = 6 * ((2 + 2.0**-18 * np.sqrt(10)) / 4) ** 2
    budget = Budget(float(gdp_epsilon(mu=np.sqrt(rounds * 1.01), delta=DELTA)), DELTA)
    run = trained(ChargedScores(2.0), budget=budget, noise=noise)
    assert run.privacy.max_epsilon(DELTA) <= budget.epsilon
    scored = [entry.iteration for entry in run.privacy if entry.kind == "scores"]
    assert scored == [record.iteration for record in run.history if "noisy_accuracy" in record.metrics]
    assert 0 < len(scored) < 6
    # The client without held-out samples pays for none, and trains to the end.
    assert run.privacy.rounds[1] == 6
    assert run.privacy.rounds[0] < 6


def test_the_part_of_delta_for_real_noise_is_one_number_for_rounds_and_scores():
    run = trained(ChargedScores(2.0, counts="confusion"), noise="system", budget=Budget(9.0, DELTA))
    assert run.privacy._planned_draws == 6 * 10 + 6 * 4


# What is published


def test_a_restricted_run_publishes_charged_scores_and_no_others():
    class Nosy(Callback):
        def measure(self, step):
            return {"noisy_accuracy": 0.123, "mine": 1.0}

    run = trained(ChargedScores(5.0, every=3, counts="histogram", bins=4), noise="system", callbacks=[Nosy()])
    names = {"noisy_accuracy", "noisy_accuracy_std", "noisy_auroc"}
    for record in run.history:
        assert record.accuracy is None
        assert set(record.metrics) == (names if record.iteration % 3 == 0 else set())
    assert run.history[2].metrics["noisy_accuracy"] != 0.123
    assert run.private.history[0].metrics == {"mine": 1.0}


def test_scores_change_nothing_in_a_seeded_run():
    with_scores, without = trained(ChargedScores(5.0)), trained(None)
    assert torch.equal(with_scores.params, without.params)
    assert "noisy_accuracy" not in without.history[-1].metrics


# What is refused


@dataclass(frozen=True)
class LeavesNoRoom:
    """A mechanism that calibrates itself and does not know of scores."""

    epsilon: float = 2.0
    delta: float = DELTA
    name = "no_room"

    def fit(self, setting) -> Fitted:
        return ModelClipping(1.0, epsilon=2.0, delta=DELTA).fit(replace(setting, score_squares=0.0, score_draws=0))


class Centred(torch.nn.Module):
    """Takes the mean over the batch off its logits."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        logits = self.linear(x)
        return logits - logits.mean(0)


REFUSED = {
    "mixed samples": ({"model": Centred()}, r"change.*samples beside"),
    "pure": (
        {"privacy": up.privacy.ObjectivePerturbation(norm_bound=1.0, alpha=5.0, prox_mu=1.0)},
        "cannot be charged",
    ),
    "sampled": ({"privacy": up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=1.0)}, "cannot be charged"),
    "central": ({"privacy": up.privacy.CentralDPFedAvg(1.0, 1.0)}, "cannot be charged"),
    "another loss": ({"loss": "binary_cross_entropy"}, "for the loss 'cross_entropy', but the loss is 'binary_cross"),
    "personal": ({"algorithm": up.PFedMe(lam=2.0)}, "never released"),
    "no privacy": ({"privacy": None}, "without privacy"),
    "no room": ({"privacy": ModelClipping(1.0, epsilon=0.05, delta=DELTA)}, "less than a hundredth"),
    "no room made": ({"privacy": LeavesNoRoom()}, r"leaves.*room"),
    "more classes": ({"scores": ChargedScores(1.0, counts="histogram"), "data": federation(3)}, "2 classes"),
    "batch norm": (
        {"model": torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2, track_running_stats=False))},
        "batch norm",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_charged_is_refused_in_one_sentence(case):
    asked, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence) as raised:
        trained(**({"scores": ChargedScores(2.0)} | asked))
    assert "\n" not in str(raised.value)


def test_data_without_held_out_samples_are_refused():
    data = replace(federation(), test=None)
    with pytest.raises(InputError, match="test part"):
        trained(ChargedScores(2.0), data=data)


@pytest.mark.parametrize(
    "wrong", [{"noise_std": 0.0}, {"every": 0}, {"counts": "rihgt"}, {"bins": 3}, {"loss_bound": 0.0}]
)
def test_a_wrong_value_is_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ChargedScores(**({"noise_std": 1.0} | wrong))


# In files

FILE = """\
name = "scored"
iterations = 5

[data]
source = "synthetic"
alpha = "iid"
clients = 4
sizes = 40

[algorithm]
name = "fedavg"

[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 3.0
scores = SCORES
"""


def written(tmp_path, scores):
    path = tmp_path / "scored.toml"
    path.write_text(FILE.replace("SCORES", scores))
    return path


@pytest.mark.parametrize("upcycled", [False, True])
@pytest.mark.parametrize("budget", ["", "budget = { epsilon = 4.0, delta = 1e-4 }\n"])
def test_a_file_asks_for_scores_and_explains_the_epsilon_that_its_run_states(tmp_path, upcycled, budget):
    path = written(tmp_path, '{ noise_std = 4.0, every = 2, counts = "confusion" }\n' + budget)
    path.write_text(path.read_text() + ("\n[upcycle]\ncoefficient = 0.5\n" if upcycled else ""))
    experiment = load_config(path)
    assert experiment.spec(0).charged_scores == ChargedScores(4.0, every=2, counts="confusion")
    path.write_text(experiment.resolved_toml())
    assert load_config(path) == experiment
    run = up.train(experiment.build_data(), experiment.spec(0), progress=False)
    planned = planned_ledger(make_plan(experiment.build_data(), experiment.spec(0)))
    assert planned.epsilon(DELTA).tolist() == run.privacy.epsilon(DELTA).tolist()
    told = [[(e.kind, e.iteration, e.round) for e in one if e.charge is not None] for one in (planned, run.privacy)]
    assert told[0] == told[1]
    assert any(kind == "scores" for kind, _, _ in told[0])


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ("{ noise_std = 0.0 }", r"privacy\.scores.*noise_std.*0"),
        ("{ noise_std = 1.0, bins = 5 }", r"privacy\.scores\.bins.*5"),
        ('{ noise_std = 1.0, counts = "some" }', r"privacy\.scores\.counts.*'some'"),
        ("{ noise_std = 1.0, evry = 2 }", "evry"),
        ("3", r"privacy\.scores.*3"),
    ],
)
def test_a_wrong_value_in_a_file_is_named_by_its_key(tmp_path, scores, sentence):
    with pytest.raises(InputError, match=sentence):
        load_config(written(tmp_path, scores))

"""Aggregators: each against numbers by hand, in runs of every algorithm, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import upcycled as up
from upcycled.aggregators import AGGREGATORS
from upcycled.aggregators.robust import median_of, trimmed_mean_of
from upcycled.algorithms import ALGORITHMS
from upcycled.config.experiment import parse
from upcycled.core.layout import EffectiveDirections, Layout
from upcycled.core.vectors import Shards, weighted_mean
from upcycled.training.plan import make_plan, plan_of, with_data
from upcycled.training.round import answer, ask, joined, take
from upcycled.training.state import start_run

LOCAL = up.LocalSGD(lr=0.2, epochs=2, batch_size=None)
OTHERS = [name for name in AGGREGATORS if name != "samples"]
ROBUST = ["median", "trimmed_mean"]


@pytest.fixture(scope="module")
def federation():
    return up.data.synthetic(0.5, 0.5, clients=6, dim=4, num_classes=3, sizes=[30, 12, 41, 20, 25, 17], seed=1)


def run(data, **changes):
    base = {"algorithm": up.FedAvg(), "local": LOCAL, "iterations": 4, "seed": 2, "progress": False}
    return up.train(data, **base | {"engine": "sequential"} | changes)


def vectors(*rows):
    return np.array(rows, dtype=np.float32)


def test_the_median_of_an_odd_and_of_an_even_cohort():
    # Sorted columns: (1, 2, 50) and (-3, 0, 9); without the last row (1, 2), (0, 9): 1.5, 4.5.
    rows = vectors([1, 9], [2, 0], [50, -3])
    assert median_of(rows).tolist() == [2.0, 0.0]
    assert median_of(rows[:2]).tolist() == [1.5, 4.5]
    assert median_of(rows[:1]).tolist() == [1.0, 9.0]


def test_the_trimmed_mean_leaves_out_the_floor_of_its_part_at_either_end():
    # Ten clients: 0.1 leaves out one at each end, 0.19 too, 0.3 three: (1 + .. + 7 + 20)/8, (3 + .. + 6)/4.
    column = vectors(*[[v] for v in (0, 1, 2, 3, 4, 5, 6, 7, 20, 1000)])
    assert trimmed_mean_of(column, 0.1).tolist() == [48 / 8]
    assert trimmed_mean_of(column, 0.19).tolist() == [48 / 8]
    assert trimmed_mean_of(column, 0.3).tolist() == [18 / 4]
    # 0.1 of four is none: the plain mean. Of two clients nothing can be left out at both ends.
    assert trimmed_mean_of(column[:4], 0.1).tolist() == [1.5]
    assert trimmed_mean_of(column[:2], 0.49).tolist() == [0.5]
    assert trimmed_mean_of(column[:3], 0.4).tolist() == [1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("aggregate", [median_of, lambda rows: trimmed_mean_of(rows, 0.2)], ids=ROBUST)
def test_one_client_of_five_cannot_take_it_out_of_the_others_range(aggregate, bad):
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(4, 7)).astype(np.float32)
    found = aggregate(np.vstack([honest, np.full((1, 7), bad, dtype=np.float32)]))
    assert (honest.min(axis=0) <= found).all()
    assert (found <= honest.max(axis=0)).all()


@pytest.mark.parametrize("name", ROBUST)
def test_a_client_that_sends_rubbish_does_not_spoil_a_run(federation, name):
    """Client 2, the largest, sends a hundred times its model: the mean follows it, these do not."""

    class Rubbish:
        name = "rubbish"

        def fit(self, setting):
            promise = up.Promise("models, one of them spoilt", (), is_claimed=False)
            return up.Fitted(name=self.name, promise=promise, release=spoilt, charge=lambda cohort: None)

    def spoilt(trained, sent, cohort, num_samples, noise):
        scale = np.where(cohort.clients == 2, -100.0, 1.0)[:, None].astype(np.float32)
        return up.Release(cohort.clients, trained.vectors * scale, num_samples, trained.num_steps)

    fraction = {"trimmed_mean": up.aggregators.TrimmedMean(0.2)}.get(name, name)
    honest = run(federation, iterations=8).loss
    assert run(federation, iterations=8, aggregation=fraction, privacy=Rubbish()).loss < 2 * honest
    assert run(federation, iterations=8, privacy=Rubbish()).loss > 4 * honest


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_samples_by_name_and_as_a_value_is_the_default_bit_for_bit(federation, name):
    plain, named, made = (
        run(federation, algorithm=ALGORITHMS[name](), participation=0.7, upcycle=0.5, **more).params
        for more in ({}, {"aggregation": "samples"}, {"aggregation": up.aggregators.Samples()})
    )
    assert torch.equal(plain, named)
    assert torch.equal(plain, made)


@dataclass(frozen=True)
class Mine:
    """The n_i mean, written by somebody else, with a count of the rounds as its state."""

    needs_noise_std = is_weighted = False

    def start(self):
        return {"rounds": np.array(0)}

    def combine(self, own, received):
        samples = received.release.num_samples
        return up.aggregators.weighted(samples / samples.sum()), {"rounds": own["rounds"] + 1}


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedprox", "pfedme", "fedyogi"])
def test_the_same_mean_as_ones_own_aggregator_gives_the_same_run(federation, name):
    own, usual = (
        run(federation, algorithm=ALGORITHMS[name](), participation=0.7, stragglers=0.3, **more).params.numpy()
        for more in ({"aggregation": Mine()}, {})
    )
    assert own == pytest.approx(usual, rel=1e-5, abs=1e-6)


def test_ones_own_aggregator_reaches_feddyns_h(federation):
    """FedDyn by n_i, and FedDyn by an aggregator that weighs by n_i, are one algorithm where everybody takes part."""
    option = run(federation, algorithm=up.FedDyn(alpha=0.1, weights="samples"))
    own = run(federation, algorithm=up.FedDyn(alpha=0.1), aggregation=Mine())
    assert own.params.numpy() == pytest.approx(option.params.numpy(), rel=1e-5, abs=1e-6)
    assert not torch.equal(run(federation, algorithm=up.FedDyn(alpha=0.1)).params, option.params)


def test_the_aggregators_state_goes_from_round_to_round_and_through_a_checkpoint(federation, tmp_path):
    spec = up.RunSpec(algorithm=up.FedAvg(), local=LOCAL, iterations=6, upcycle=0.5, aggregation=Mine(), progress=False)
    seen = []

    def watch(record, state):
        seen.append(int(state.state.aggregator["rounds"]))
        return up.STOP if len(seen) == 3 else None

    kept = spec.replace(checkpoint=tmp_path / "run", checkpoint_every=1)
    up.train(federation, kept.replace(callbacks=[watch]))
    resumed = up.train(federation, kept.replace(callbacks=[lambda record, state: watch(record, state) and None]))
    assert seen == [1, 1, 2, 2, 3, 3]
    assert torch.equal(resumed.params, up.train(federation, spec).params)


@pytest.mark.parametrize("algorithm", [up.FedDyn(alpha=0.1), up.FedDyn(alpha=0.1, weights="samples"), up.Scaffold()])
@pytest.mark.parametrize("aggregation", ["samples", *OTHERS])
def test_separate_clients_give_the_simulators_bits(federation, algorithm, aggregation):
    spec = up.RunSpec(
        algorithm=algorithm, aggregation=aggregation, local=LOCAL, iterations=4, upcycle=0.5, participation=0.6,
        engine="sequential", progress=False,
    )  # fmt: skip
    facts = federation.facts()
    server = plan_of(facts, spec)
    run = start_run(server)
    clients = {}
    for i in range(federation.num_clients):
        x, y = federation.train.client(i)
        own = up.FederatedData(Shards(x.copy(), y.copy(), np.array([0, len(y)])), None, federation.num_classes)
        plan = with_data(plan_of(facts.of_client(i, server.mechanism.shared), spec), own)
        clients[i] = plan, plan.engine.open(plan.task, 1)
    while run.state.iteration < server.iterations:
        if server.strategy.kind(run.state) != "data":
            run = replace(run, state=server.strategy.upcycle(run.state, server.data_rounds))
            continue
        asked, noise = ask(server, run), run.noise_for(server, 1, 0)
        answers = [answer(*clients[i], asked.of(i), noise) for i in reversed(asked.cohort.clients.tolist())]
        run, _ = take(server, run, asked, joined(asked, answers), noise)
    assert torch.equal(up.train(federation, spec).params, torch.from_numpy(run.state.server.model))


def test_what_an_aggregator_is_told_follows_from_releases_and_public_numbers(federation):
    """Of a part of the cohort, in FedDyn: shares 1/S, b/a = -h_i/alpha of those who answered."""
    told = []

    @dataclass(frozen=True)
    class Listening:
        needs_noise_std = is_weighted = False

        def start(self):
            return {}

        def combine(self, own, received):
            told.append(received)
            return None, own

    privacy = up.privacy.UpdateClipping(clip_norm=1.0, noise_std=0.25)
    more = {"aggregation": Listening(), "privacy": privacy, "local": LOCAL}
    spec = up.RunSpec(algorithm=up.FedDyn(alpha=0.5), iterations=3, **more)
    plan = make_plan(federation, spec)
    engine, run = plan.engine.open(plan.task, 1), start_run(plan)
    for _ in range(2):
        asked = ask(plan, run)
        noise = run.noise_for(plan, asked.round, 0)
        memory = run.memory.gather(np.array([1, 4]))["h_i"]
        some = joined(asked, [answer(plan, engine, asked.of(i), noise) for i in (4, 1)])
        run, _ = take(plan, run, asked, some, noise)
    last = told[-1]
    assert last.release.clients.tolist() == [1, 4]
    assert last.shares.tolist() == [0.5, 0.5]
    assert last.noise_std.tolist() == [0.25, 0.25]
    assert last.horizon == 3
    assert np.abs(memory).max() > 0
    assert last.offsets == pytest.approx(-memory / 0.5)


def test_class_means_are_no_direction_of_softmax_regression(federation):
    directions = make_plan(federation, up.RunSpec(algorithm=up.FedAvg())).directions
    assert directions.dimension == pytest.approx(15 * 2 / 3)
    other = make_plan(federation, up.RunSpec(algorithm=up.FedAvg(), model="mlp")).directions
    assert other.dimension == other.layout.size
    # Adding one matrix row to all classes, and one number to all biases, changes nothing.
    rng = np.random.default_rng(0)
    rows, same = rng.normal(size=(2, 15)), np.concatenate([np.tile(rng.normal(size=4), 3), np.full(3, 7.0)])
    assert directions.of(rows + same) == pytest.approx(directions.of(rows))
    assert directions.of(directions.of(rows)) == pytest.approx(directions.of(rows))
    assert np.linalg.matrix_rank(directions.of(np.eye(15))) == 10
    assert EffectiveDirections(Layout(("w",), ((2,),), (0, 2))).of(vectors([1, 2])).tolist() == [[1.0, 2.0]]


def test_robust_aggregates_claim_no_known_noise_and_weighted_ones_their_own(federation):
    privacy = up.privacy.UpdateClipping(clip_norm=1.0, noise_std=0.3)
    stds = {}
    for aggregation in ("samples", "median", Mine()):
        spec = up.RunSpec(algorithm=up.FedAvg(), aggregation=aggregation, privacy=privacy, iterations=1)
        plan = make_plan(federation, spec)
        run = start_run(plan)
        asked, noise = ask(plan, run), run.noise_for(plan, 1, 0)
        answered = answer(plan, plan.engine.open(plan.task, 1), asked, noise)
        stds[str(aggregation)] = take(plan, run, asked, answered, noise)[0].state.noise_std
    p = federation.train.sizes / federation.train.sizes.sum()
    assert stds["samples"] == pytest.approx(0.3 * np.sqrt((p**2).sum()))
    assert stds["Mine()"] == pytest.approx(stds["samples"])
    assert stds["median"] == 0.0


CENTRAL = up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize("name", OTHERS)
def test_a_central_mechanism_keeps_its_own_aggregate(federation, name):
    with pytest.raises(up.InputError, match=r"'central_dp_fedavg'.*aggregate"):
        run(federation, aggregation=name, privacy=CENTRAL)
    kept, usual = (run(federation, privacy=CENTRAL, **more).params for more in ({"aggregation": "samples"}, {}))
    assert torch.equal(kept, usual)


@pytest.mark.parametrize("name", ROBUST)
def test_a_local_mechanism_pays_the_same_whatever_is_done_with_its_releases(federation, name):
    privacy = up.privacy.UpdateClipping(clip_norm=0.1, epsilon=2.0, delta=1e-3)
    found, usual = (run(federation, privacy=privacy, aggregation=one).privacy for one in (name, "samples"))
    assert found.max_epsilon(1e-3) == usual.max_epsilon(1e-3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("medain", "did you mean 'median'"),
        (3, "'samples'"),
        (up.aggregators.Median, "'samples'"),
        (None, "'samples'"),
    ],
)
def test_what_is_no_aggregator_is_one_sentence(value, words):
    with pytest.raises(up.InputError, match=words):
        up.RunSpec(algorithm=up.FedAvg(), aggregation=value)


def test_other_wrong_values_are_one_sentence():
    with pytest.raises(up.InputError, match=r"fraction.*0.5.*>= 0.*0.5"):
        up.aggregators.TrimmedMean(0.5)
    with pytest.raises(up.InputError, match=r"weights.*'size'"):
        up.FedDyn(weights="size")


FILE = {
    "name": "x",
    "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5},
    "algorithm": {"name": "fedavg"},
}


def test_a_file_names_an_aggregator_and_its_options():
    assert parse(FILE).spec(0).aggregation == "samples"
    assert "aggregation" not in parse(FILE).resolved()
    for name, made in AGGREGATORS.items():
        assert parse({**FILE, "aggregation": {"kind": name}}).spec(0).aggregation == made()
    trimmed = parse({**FILE, "aggregation": {"kind": "trimmed_mean", "fraction": 0.3}})
    assert trimmed.spec(0).aggregation == up.aggregators.TrimmedMean(0.3)
    assert parse(trimmed.resolved()) == trimmed
    dyn = parse({**FILE, "algorithm": {"name": "feddyn", "weights": "samples"}})
    assert dyn.spec(0).algorithm == up.FedDyn(weights="samples")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "aggregation.kind"),
        ({"kind": "medain"}, "did you mean 'median'"),
        ({"kind": "trimmed_mean", "fraction": 0.7}, r"aggregation.fraction.*0.7"),
        ({"kind": "median", "fraction": 0.1}, "fraction"),
    ],
)
def test_a_wrong_table_is_one_sentence(table, words):
    with pytest.raises(up.InputError, match=words):
        parse({**FILE, "aggregation": table})


def test_the_weighted_helper_is_the_mean_with_these_weights():
    rows, weights = vectors([0, 1], [4, 3]), np.array([0.25, 0.75])
    made = up.aggregators.weighted(weights)
    assert made.mean_of(rows).tolist() == weighted_mean(weights, rows).tolist() == [3.0, 2.5]
    assert made.weights is weights

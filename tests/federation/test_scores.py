"""Exact scores are asked of sites whose files give them, and only where nothing that leaves has real noise."""

import json

import numpy as np
import pytest

import upcycled as up
from tests.federation.in_process import ACCOUNT, NAMES, Mail, experiment_of, federation_of, own_data
from tests.mechanism_cases import LIMITS
from upcycled.core.vectors import Shards
from upcycled.federation.messages import MalformedError, SiteScores, packed, unpacked
from upcycled.federation.server_run import run_seed
from upcycled.federation.site.policy import policy_of
from upcycled.federation.site.site import Site

CLIPPING = {"mechanism": "update_clipping", "clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3, "noise": "system"}
LOCAL = {"lr": 0.05, "epochs": 1, "batch_size": 8}


def scored_site(data, client, folder, gives=True, **changes):
    """A site with test samples of its own."""
    x, y = data.test.client(client)
    from dataclasses import replace

    mine = replace(own_data(data, client), test=Shards(x.copy(), y.copy(), np.array([0, len(y)])))
    raw = {"name": NAMES[client], "simulation": True, "data": {"path": "unused.csv"}, "account": ACCOUNT}
    raw |= {"privacy": LIMITS | {"evaluations": gives}, **changes}
    return Site(policy_of(raw, folder / NAMES[client]), mine, folder / NAMES[client])


def sites_of(data, folder, refusing=(), **changes):
    return {name: scored_site(data, i, folder, gives=name not in refusing, **changes) for i, name in enumerate(NAMES)}


def run_scored(sites, folder, tamper=None, **changes):
    """What a run's records have beside the usual, by iteration, and who was asked."""
    mail = Mail(sites, tamper)
    experiment = experiment_of(results=str(folder / "results"), **changes)
    run_seed(experiment, 3, lambda tell: federation_of(mail), is_scored=True)
    (path,) = (folder / "results").glob("*/seed-3/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows, [site for site, fields in mail.sent if fields["kind"] == "score"]


def numbers_of(rows, name):
    return {row["iteration"]: row[name] for row in rows if row.get(name) is not None}


def test_scores_are_the_simulators_after_iterations_that_are_evaluated(federation, tmp_path):
    experiment = experiment_of(eval_every=2)
    whole = up.train(federation, experiment.spec(3).replace(progress=False))
    rows, asked = run_scored(sites_of(federation, tmp_path), tmp_path, eval_every=2)
    wanted = {record.iteration: record for record in whole.history if record.accuracy is not None}
    assert list(wanted) == [2, 4, 5]
    assert numbers_of(rows, "sites_accuracy") == {i: record.accuracy for i, record in wanted.items()}
    assert numbers_of(rows, "sites_loss") == pytest.approx({i: record.loss for i, record in wanted.items()})
    assert numbers_of(rows, "sites_samples") == dict.fromkeys(wanted, 24)
    assert asked == 3 * list(NAMES)
    # Training's own messages are counted as ever.
    assert [row["messages"] for row in rows] == [8, 0, 8, 0, 8]


def test_a_site_that_gives_none_is_asked_once_and_left_out(federation, tmp_path):
    rows, asked = run_scored(sites_of(federation, tmp_path, refusing=("bob",)), tmp_path, iterations=2)
    # Test samples: 9, 4, 6 and 5.
    assert numbers_of(rows, "sites_samples") == {1: 20, 2: 20}
    assert asked == [*NAMES, "ann", "cem", "dia"]


def test_without_anybody_who_gives_scores_there_are_none(federation, tmp_path):
    rows, asked = run_scored(sites_of(federation, tmp_path, refusing=NAMES), tmp_path, iterations=2)
    assert numbers_of(rows, "sites_loss") == {}
    assert asked == list(NAMES)


def test_with_real_noise_nobody_is_asked(federation, tmp_path):
    sites = sites_of(federation, tmp_path, simulation=False)
    rows, asked = run_scored(sites, tmp_path, privacy=CLIPPING, local=LOCAL, iterations=2)
    assert asked == []
    assert not any("sites_loss" in row for row in rows)


@pytest.mark.parametrize(
    "changes",
    [{"accuracy": 1.5}, {"samples": 0}, {"iteration": 7}, {"client": 0}],
    ids=lambda changes: next(iter(changes)),
)
def test_scores_that_cannot_be_are_left_out(changes, federation, tmp_path):
    from dataclasses import replace

    from upcycled.federation.messages import packed, unpacked

    def tamper(site, fields, delivery):
        if fields["kind"] == "score" and site == "bob":
            return [replace(delivery, fields=packed(replace(unpacked(delivery.fields), **changes)))]
        return [delivery]

    rows, _ = run_scored(sites_of(federation, tmp_path), tmp_path, tamper, iterations=1)
    assert numbers_of(rows, "sites_samples") == {1: 20}


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_loss_that_is_no_number_is_refused_where_it_arrives(word):
    fields = packed(SiteScores("r", 0, 1, 5, 0.5, 0.25))
    wrong = fields | {"head": fields["head"].replace("0.25", word)}
    with pytest.raises(MalformedError, match="loss"):
        unpacked(wrong)

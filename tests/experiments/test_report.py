"""The report as a document: what it says, what it refuses, what it never contains."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import upcycled as up
from tests.experiments.report_cases import (
    DATA,
    EXPERIMENTS,
    LOCAL,
    PRIVATE,
    Elements,
    charts_of,
    rows_of,
    run_one,
    words_of,
)
from upcycled.cli.main import main
from upcycled.core.errors import InputError
from upcycled.experiments.compare import compare_experiment
from upcycled.experiments.config import parse
from upcycled.experiments.report import collect, render, write_report
from upcycled.experiments.report.clients import bins_of, clients_of, distribution
from upcycled.experiments.report.curves import curve, thinned
from upcycled.experiments.report.markup import fingerprint
from upcycled.experiments.report.settings import families, labels, run_command
from upcycled.experiments.report.spending import spending
from upcycled.experiments.results import describe_data, write_seed
from upcycled.experiments.sweep import How, sweep_experiment


@pytest.fixture(scope="module")
def folder(several):
    return several


@pytest.fixture(scope="module")
def page(folder):
    return render(collect(folder))


@pytest.fixture
def copy(folder, tmp_path):
    """A folder of one experiment that a test may damage."""
    return shutil.copytree(folder / "fedavg-upcycled", tmp_path / "copy")


# Numbers.


def test_a_curve_is_the_mean_and_sd_over_seeds_of_what_the_files_hold(folder):
    part = collect(folder / "fedavg-upcycled").parts[0]
    found = curve(part)
    seeds = [rows_of(folder / "fedavg-upcycled" / f"seed-{seed}") for seed in (0, 1)]
    accuracy = 100 * np.array([[row["accuracy"] for row in rows] for rows in seeds])
    assert found.iteration.tolist() == list(range(1, 11))
    assert found.data_round.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert list(found.is_upcycled) == [False, True] * 5
    assert np.allclose(found.mean["accuracy"], accuracy.mean(axis=0))
    # Of two values a, b the sample standard deviation is |a - b| / sqrt(2).
    assert np.allclose(found.sd["accuracy"], np.abs(accuracy[0] - accuracy[1]) / math.sqrt(2))
    sent = np.cumsum([row["bytes_up"] + row["bytes_down"] for row in seeds[0]]) / 1e6
    assert np.allclose(found.megabytes, sent)
    spent = [np.cumsum([row["seconds"] for row in rows]) for rows in seeds]
    assert np.allclose(found.seconds, (spent[0] + spent[1]) / 2)
    assert np.isnan(found.epsilon).all()


def test_unscored_iterations_count_for_bytes_and_not_as_points(tmp_path):
    run_one(tmp_path, "sparse", seeds=(0,), **EXPERIMENTS["fedavg-vanilla"] | {"iterations": 7, "eval_every": 3})
    found = curve(collect(tmp_path / "sparse").parts[0])
    assert found.iteration.tolist() == [3, 6, 7]
    each = rows_of(tmp_path / "sparse" / "seed-0")[0]
    assert np.allclose(found.megabytes, np.array([3, 6, 7]) * (each["bytes_up"] + each["bytes_down"]) / 1e6)
    assert np.isnan(found.sd["accuracy"]).all()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=300), st.integers(6, 50))
def test_thinning_keeps_whole_rounds_the_first_and_the_last(sizes, most):
    groups = [m for m, size in enumerate(sizes) for _ in range(size)]
    kept = thinned(groups, most)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == len(groups) - 1
    rounds = {groups[k] for k in kept}
    assert kept == [k for k, m in enumerate(groups) if m in rounds]
    if len(groups) <= most:
        assert len(kept) == len(groups)
    else:
        assert len(rounds) <= max(2, most * len(sizes) / len(groups))


@pytest.mark.parametrize("name", PRIVATE)
def test_epsilon_over_rounds_ends_at_the_runs_own(folder, name):
    for seed in collect(folder / name).parts[0].seeds:
        assert seed.spent.rounds == (1, 2, 3, 4, 5)
        assert seed.spent.worst[-1] == pytest.approx(seed.summary["privacy"]["epsilon"]["max"], rel=1e-12)
        assert list(seed.spent.worst) == sorted(seed.spent.worst)
    found = curve(collect(folder / name).parts[0])
    assert found.epsilon[-1] == pytest.approx(seed.spent.worst[-1])
    if name == "erm-upcycled":
        assert (np.diff(found.epsilon)[::2] == 0).all()  # an upcycled iteration costs nothing


def test_epsilon_over_rounds_of_objective_perturbation_ends_at_the_runs_own(tmp_path):
    mechanism = {"mechanism": "objective_perturbation", "norm_bound": 1.0, "alpha": 5.0}
    more = {"algorithm": {"name": "fedprox", "mu": 0.5}, "privacy": mechanism, "clients": {"participation": 0.4}}
    run_one(tmp_path, "objective", seeds=(0,), **more)
    seed = collect(tmp_path).parts[0].seeds[0]
    assert seed.spent.worst[-1] == pytest.approx(seed.summary["privacy"]["epsilon"]["max"], rel=1e-12)


def header(noise):
    return {"kind": "run", "noise": noise, "num_clients": 2}


def charge(round, iteration=None, **more):
    return {"kind": "data", "round": round, "iteration": iteration or round, "attempt": 0, "clients": [0, 1], **more}


def test_gaussian_charges_compose_by_the_sum_of_squares_and_the_worst_client_counts():
    each = {"charge": "gaussian", "sensitivity": [1.0, 3.0], "noise_std": [4.0, 6.0]}  # mu_t = 1/4 and 1/2
    found = spending([header("system"), charge(1, **each), charge(2, **each), charge(3, **each)], 1e-5)
    expected = [up.privacy.gdp_epsilon(mu=0.5 * math.sqrt(m), delta=1e-5) for m in (1, 2, 3)]
    assert found.worst == pytest.approx(expected, rel=1e-12)


def test_a_client_that_pays_more_often_can_be_the_worst():
    both = {"charge": "pure", "epsilon": [0.1, 0.3]}
    first = {"charge": "pure", "clients": [0], "epsilon": [0.1]}
    found = spending([header("system"), charge(1, **both), *(charge(m, **first) for m in (2, 3, 4))], 0)
    assert found.worst == pytest.approx([0.3, 0.3, 0.3, 0.4])


def test_sampled_charges_are_stated_for_some_rounds_and_end_at_the_accountants_number():
    each = {"charge": "sampled", "sensitivity": [1.0, 1.0], "noise_std": [2.0, 2.0], "sampling_rate": [0.1, 0.05]}
    lines = [header("system"), *(charge(m, **each, steps=[2, 2]) for m in range(1, 31))]
    asked = []

    def accountant(**numbers):
        asked.append(numbers)
        return numbers["steps"] * numbers["q"]

    found = spending(lines, 1e-5, accountant)
    assert not found.is_complete
    assert found.rounds[0] == 1
    assert found.rounds[-1] == 30
    assert len(found.rounds) <= 8
    assert asked[-1] == {"q": 0.1, "noise_multiplier": 2.0, "steps": 60, "delta": 1e-5}
    assert all(numbers["q"] == 0.1 for numbers in asked)  # the other client is never worse


@pytest.mark.slow
def test_epsilon_over_rounds_of_dpsgd_ends_at_the_runs_own(tmp_path):
    more = {"algorithm": {"name": "fedavg"}, "local": LOCAL, "data": DATA | {"clients": 2}, "iterations": 2}
    more |= {"privacy": {"mechanism": "dpsgd", "clip_norm": 1.0, "noise_multiplier": 2.0}}
    run_one(tmp_path, "dpsgd", seeds=(0,), **more)
    seed = collect(tmp_path).parts[0].seeds[0]
    assert seed.spent.worst[-1] == pytest.approx(seed.summary["privacy"]["epsilon"]["max"], rel=1e-12)


@pytest.mark.parametrize(("noise", "rounds"), [("simulation: not private", 1), ("system", 2)])
def test_a_repeated_round_is_one_release_with_seeded_noise_and_two_with_real_noise(noise, rounds):
    each = {"charge": "pure", "epsilon": [0.5, 0.1]}
    found = spending([header(noise), charge(1, **each), charge(1, **each)], 0)
    assert found.worst[-1] == 0.5 * rounds


def test_a_run_that_was_stopped_and_went_on_shows_all_its_charges(folder):
    lines = [header("system"), *(charge(m, 2 * m - 1, charge="pure", epsilon=[1.0, 1.0]) for m in (1, 2, 3, 2, 3))]
    part = collect(folder / "fedavg-upcycled").parts[0]
    seed = replace(part.seeds[0], spent=spending(lines, 0))
    found = curve(replace(part, seeds=(seed,)))
    # Rounds 2 and 3 were done twice: after the second time of round 2, four charges had been written.
    assert found.epsilon[:6].tolist() == [1, 1, 4, 4, 5, 5]


def test_no_guarantee_is_infinite_and_has_no_line():
    found = spending([header("system"), charge(1, charge="none", sensitivity=[1, 1], noise_std=[1, 1])], 1e-5)
    assert found.worst == (math.inf,)
    assert spending([header("system")], 1e-5) is None


def test_clients_have_their_mean_accuracy_and_their_largest_epsilon(folder):
    part = collect(folder / "erm-upcycled").parts[0]
    lines = [
        [
            json.loads(line)
            for line in (folder / "erm-upcycled" / f"seed-{s}" / "clients.jsonl").read_text().splitlines()
        ]
        for s in (0, 1)
    ]
    for k, client in enumerate(clients_of(part)):
        assert client.numbers["accuracy"] == pytest.approx(50 * (lines[0][k]["accuracy"] + lines[1][k]["accuracy"]))
        assert client.numbers["epsilon"] == max(lines[0][k]["epsilon"], lines[1][k]["epsilon"])
    known = [client.numbers["accuracy"] for client in clients_of(part)]
    found = distribution(clients_of(part), "accuracy", bins_of(known))
    assert sum(found.counts) == 5
    assert (found.low, found.high) == (min(known), max(known))
    assert found.median == pytest.approx(np.median(known))


def test_a_wide_range_of_epsilons_is_binned_on_a_logarithmic_scale():
    bins = bins_of([0.1, 1.0, 10.0, 100.0])
    assert bins.is_log
    counts = bins.counts(np.array([0.1, 1.0, 10.0, 100.0]))
    places = np.flatnonzero(counts)
    assert sum(counts) == 4
    assert len(places) == 4
    assert np.ptp(np.diff(places)) <= 1  # equal factors are equally far apart


# What the page says.


def test_every_experiment_is_in_the_tables_with_mean_and_sd(folder, page):
    words = words_of(page)
    for name in EXPERIMENTS:
        values = [json.loads((folder / name / f"seed-{s}" / "summary.json").read_text())["accuracy"] for s in (0, 1)]
        mean, sd = 100 * np.mean(values), 100 * np.std(values, ddof=1)
        assert f"{mean:.2f} ± {sd:.2f}" in words
    assert "Mean ± standard deviation over 2 seeds" in words
    assert "global model" in words  # of pFedMe


def test_the_page_states_what_privacy_means_in_all_points(folder, page):
    words = words_of(page)
    statement = json.loads((folder / "erm-upcycled" / "seed-0" / "summary.json").read_text())["privacy"]["statement"]
    for line in statement:
        name, _, rest = line.partition(": ")
        assert f"{name} {rest}" in words
    for name in ("unit", "adversary", "delta", "data rounds charged", "checked", "the user's word"):
        assert name in words
    for name in ("sampling of clients", "schedule", "not covered"):
        assert name in words
    assert "simulation: not private" in words
    assert "seeds, sweeps and repeats on the same data add up" in words


def test_the_papers_number_stands_beside_the_proven_one_and_is_no_guarantee(tmp_path):
    clip = {"mechanism": "model_clipping", "clip_norm": 1.0, "noise_std": 3.0}
    run_one(tmp_path, "clip", seeds=(0,), algorithm={"name": "fedavg"}, local=LOCAL, privacy=clip)
    summary = json.loads((tmp_path / "clip" / "seed-0" / "summary.json").read_text())["privacy"]
    words = words_of(write_report(tmp_path / "clip").read_text(encoding="utf-8"))
    assert summary["paper_epsilon"]["max"] < summary["epsilon"]["max"]
    assert "the paper's formula*" in words
    row = f"{summary['epsilon']['max']:.3f} {summary['epsilon']['median']:.3f} {summary['paper_epsilon']['max']:.3f}"
    assert row in words
    assert "not a guarantee" in words


def test_without_privacy_the_page_says_so(folder):
    words = words_of(render(collect(folder / "fedavg-vanilla")))
    assert "no epsilon is claimed" in words
    assert "worst ε" not in words


def test_partners_share_a_colour_and_other_coefficients_do_not(folder, tmp_path):
    parts = collect(folder).parts
    by_name = dict(zip([part.name for part in parts], families(parts), strict=True))
    assert by_name["fedavg-vanilla"] == by_name["fedavg-upcycled"]
    assert len(set(by_name.values())) == 3
    more = EXPERIMENTS["fedavg-upcycled"] | {"iterations": 2, "seeds": (0,)}
    run_one(tmp_path, "a", **more)
    run_one(tmp_path, "b", **more | {"upcycle": {"coefficient": 0.9}})
    assert len(set(families(collect(tmp_path).parts))) == 2


def test_names_are_short_while_they_tell_experiments_apart(folder):
    pair = [part for part in collect(folder).parts if part.name.startswith("fedavg")]
    assert sorted(labels(pair, {})) == ["FedAvg, upcycled", "FedAvg, vanilla"]
    assert labels([pair[0], pair[0]], {}) == [pair[0].place] * 2


def test_the_command_on_the_page_gives_the_same_numbers_again(folder, page, tmp_path, monkeypatch, capsys):
    part = next(part for part in collect(folder).parts if part.name == "erm-upcycled")
    command = run_command(part)
    assert command == "upcycled run erm-upcycled/seed-0/config.toml 'seeds=[0, 1]' results=again"
    assert command in words_of(page)
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "elsewhere"))
    assert main([*shlex.split(command)[1:], "--quiet"]) == 0
    capsys.readouterr()
    for seed in (0, 1):
        first, again = (
            json.loads((tmp_path / "elsewhere" / place / f"seed-{seed}" / "summary.json").read_text())
            for place in ("erm-upcycled", "again/erm-upcycled")
        )
        assert {key: again[key] for key in ("accuracy", "loss", "bytes")} == {
            key: first[key] for key in ("accuracy", "loss", "bytes")
        }


def test_the_complete_file_and_the_versions_are_there_and_no_path_of_the_machine(folder, page):
    words = words_of(page)
    assert f"upcycled {up.__version__}" in words
    for key in ("torch", "numpy", "python", "engine"):
        assert key in words
    assert "coefficient = 0.5" in words
    assert "seeds = [ 0, 1, ]" in words
    assert str(folder) not in page
    assert str(folder.parent) not in page


def test_the_same_files_give_the_same_bytes(folder, page, tmp_path):
    assert render(collect(folder)) == page
    # The page itself lies in the folder, and is no part of what is read.
    shutil.copytree(folder, tmp_path / folder.name)
    for _ in range(2):
        assert write_report(tmp_path / folder.name).read_text(encoding="utf-8") == page


@pytest.mark.parametrize("where", ["fedavg-upcycled", "fedavg-upcycled/seed-1", "."])
def test_any_kind_of_results_folder_is_taken(folder, where):
    results = collect(folder / where)
    assert results.num_seeds == {"fedavg-upcycled": 2, "fedavg-upcycled/seed-1": 1, ".": 10}[where]
    page = render(results)
    assert len(charts_of(page)["parts"]) == len(results.parts)


def test_a_comparison_shows_its_intervals_and_verdicts(tmp_path):
    raw = {"name": "small", "iterations": 4, "seeds": [0, 1], "data": DATA, "local": LOCAL}
    raw |= {"algorithm": {"name": "fedavg"}, "upcycle": {"coefficient": 0.5}, "results": str(tmp_path)}
    found = compare_experiment(parse(raw), "small.toml", algorithms=["fedavg", "fedprox"], repeat="upcycled compare x")
    page = found.report.read_text(encoding="utf-8")
    words = words_of(page)
    for row in found.rows:
        low, high = (f"{abs(100 * end):.2f}" for end in row.paired.interval)
        assert low in words
        assert high in words
        assert row.verdict in words
    assert "after Holm's correction" in words
    assert "small: vanilla against upcycled" in words
    assert page.count('class="whisker') == 2
    assert [part["label"] for part in charts_of(page)["parts"]] == [
        "FedAvg, vanilla",
        "FedAvg, upcycled",
        "FedProx, vanilla",
        "FedProx, upcycled",
    ]
    assert "upcycled compare x" in words
    assert render(collect(tmp_path / "small")).count('class="whisker') == 2  # found from above, too


def test_a_sweep_shows_its_ranking_and_its_choice(tmp_path):
    raw = {"name": "small", "iterations": 2, "seeds": [0], "local": LOCAL}
    raw |= {"data": DATA | {"validation_fraction": 0.2}, "algorithm": {"name": "fedavg"}, "results": str(tmp_path)}
    raw |= {"sweep": {"local.lr": [0.01, 0.1]}}
    found = sweep_experiment(parse(raw), "small.toml", How())
    words = words_of(write_report(found.folder).read_text(encoding="utf-8"))
    assert f"Chosen: local.lr {found.ranking[0].point.values[0][1]:g}." in words
    assert "Ranking on validation data" in words
    assert "chosen: lr" in words
    assert "test data took no part in the choice" in words


def test_the_convergence_record_is_drawn_beside_its_bound(tmp_path):
    raw = {"name": "theory", "iterations": 6, "data": DATA, "results": str(tmp_path)}
    raw |= {"algorithm": {"name": "fedprox", "mu": 40.0}, "upcycle": {"coefficient": 0.5}}
    experiment = parse(raw | {"local": {"lr": 0.02, "epochs": 60, "batch_size": "full"}})
    data = experiment.build_data()
    result = up.train(data, **experiment.train_arguments(0) | {"theory": True}, progress=False)
    write_seed(tmp_path / "theory" / "seed-0", experiment, 0, data, describe_data(data), result)
    page = write_report(tmp_path / "theory").read_text(encoding="utf-8")
    lines = charts_of(page)["parts"][0]["theory"]
    assert lines["gradient_norm"]["x"] == [1, 2, 3]
    assert lines["gradient_norm"]["y"] == pytest.approx(result.theory.terms.gradient_norm, rel=1e-4)
    assert lines["average"]["y"] == pytest.approx(result.theory.terms.average, rel=1e-4)
    assert lines["bound:repaired"]["y"] == pytest.approx(result.theory.bounds["repaired"], rel=1e-4)
    assert "bound:paper" not in lines  # as printed it is not proven
    assert "Convergence record" in words_of(page)


# What may be missing, damaged or hostile.


def test_an_unfinished_seed_is_named_and_not_counted(copy):
    (copy / "seed-1" / "summary.json").unlink()
    results = collect(copy)
    assert results.num_seeds == 1
    words = words_of(render(results))
    assert "Not finished, and not in any number of this page: seed-1" in words
    assert "One run each" in words


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"a": 1}\n{"a"'])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "clients.jsonl", "config.toml"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(copy, name, content):
    (copy / "seed-1" / name).write_bytes(content)
    results = collect(copy)
    is_fine = (content == b"" and name != "summary.json") or (name == "config.toml")
    assert any(f"seed-1/{name} is damaged" in line for line in results.problems) != is_fine
    words = words_of(render(results))
    assert is_fine or f"seed-1/{name} is damaged and was left out" in words
    assert "FedAvg, upcycled" in words


def test_a_damaged_ledger_is_named_and_the_summary_still_counts(folder, tmp_path):
    copy = shutil.copytree(folder / "erm-upcycled", tmp_path / "copy")
    (copy / "seed-0" / "ledger.jsonl").write_text('{"kind": "run"}\n{"kind": "data", "charge": "gaussian"}\n')
    results = collect(copy)
    assert any("seed-0/ledger.jsonl is damaged" in line for line in results.problems)
    assert "worst ε" in words_of(render(results))


def test_a_run_without_metrics_or_config_still_has_its_line(copy):
    for seed in ("seed-0", "seed-1"):
        (copy / seed / "metrics.jsonl").unlink()
        (copy / seed / "config.toml").unlink()
        (copy / seed / "clients.jsonl").unlink()
    words = words_of(render(collect(copy)))
    assert "seed-0/metrics.jsonl is missing: this run has no curves" in words
    assert "copy" in words


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist, but it must be a results folder"),
        (lambda path: path.write_text("x"), "is a file, but it must be a results folder"),
        (lambda path: path.mkdir(), "holds no results, but it must hold a finished run"),
        (lambda path: ((path / "seed-0").mkdir(parents=True), (path / "seed-0" / "config.toml").touch()), "yet, but"),
        (
            lambda path: ((path / "seed-0").mkdir(parents=True), (path / "seed-0" / "summary.json").write_text("{")),
            "holds nothing that can be read, but .*: seed-0/summary.json is damaged",
        ),
    ],
)
def test_a_folder_with_nothing_to_report_is_one_sentence_and_nothing_is_written(tmp_path, make, words, capsys):
    target = tmp_path / "results"
    make(target)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=words):
        write_report(target)
    assert main(["report", str(target)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


HOSTILE = "</script><script>hacked = 1</script><!--<img src=x onerror=hacked=1>\"'&"


def test_names_cannot_break_out_of_where_they_stand(copy):
    for seed in ("seed-0", "seed-1"):
        lines = [json.loads(line) for line in (copy / seed / "clients.jsonl").read_text().splitlines()]
        lines[0] |= {"name": HOSTILE, "accuracy": 0.0}
        (copy / seed / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        config = (copy / seed / "config.toml").read_text()
        changed = re.sub('name = "fedavg"', f"name = {json.dumps(HOSTILE)}", config)
        (copy / seed / "config.toml").write_text(changed)
    page = render(collect(copy), title=HOSTILE)
    elements = Elements(page)
    assert len(elements.named("script")) == 2
    assert elements.named("img") == []
    assert page.count("<!--") == 0
    assert HOSTILE in words_of(page)
    part = charts_of(page)["parts"][0]
    assert part["label"] == f"{HOSTILE}, upcycled"
    assert f"(client {HOSTILE})" in charts_of(page)["clients"]["accuracy"]["rows"][0]["words"]


def test_nothing_is_loaded_from_anywhere_and_the_policy_allows_only_what_is_inline(page):
    elements = Elements(page)
    for name, attributes in elements.found:
        assert "src" not in attributes, name
        assert "style" not in attributes, name
        assert not any(key.startswith("on") for key in attributes), name
        assert str(attributes.get("href", "#")).startswith("#"), name
    assert elements.named("link") == []
    policy = next(m["content"] for m in elements.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    style = re.search("<style>(.*?)</style>", page, re.DOTALL).group(1)
    script = re.search("<script>(.*?)</script>", page, re.DOTALL).group(1)
    assert "default-src 'none'" in policy
    assert f"style-src {fingerprint(style)};" in policy
    assert f"script-src {fingerprint(script)};" in policy
    assert "unsafe" not in policy
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not asked for


def test_a_page_of_64_long_runs_is_small(folder, tmp_path):
    seed = folder / "fedavg-upcycled" / "seed-0"
    rows = [
        {**rows_of(seed)[k % 10], "iteration": k + 1, "data_round": k // 2 + 1, "accuracy": 0.123456789 + k / 1e4}
        for k in range(400)
    ]
    for k in range(64):
        copied = shutil.copytree(seed, tmp_path / f"run-{k}" / "seed-0", ignore=lambda *_: ["checkpoint"])
        (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    parts = charts_of(page)["parts"]
    assert len(parts) == 64
    assert len(page.encode()) < 1_500_000
    for part in parts:
        assert 100 < len(part["curve"]["iteration"]) <= 400
        assert part["curve"]["iteration"][-1] == 400
    assert sum(part["on"] for part in parts) == 8
    assert [part["label"] for part in parts[:3]] == ["run-0", "run-1", "run-2"]


def test_without_a_script_there_is_a_still_picture(page):
    found = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    stills = next(block for block in found if "<path" in block)
    assert stills.count("<path") == 2 * len(EXPERIMENTS)
    assert "NaN" not in stills
    assert "nan" not in stills


# Colours.


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_has_contrast_aa_and_lines_that_of_graphics(page, mode):
    found = re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", page)
    colours = {name: values[mode] for name, *values in found}
    for name in ("ink", "muted", "link"):
        for ground in ("ground", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, name
    assert contrast(colours["warn"], colours["warn-ground"]) >= 4.5
    assert contrast(colours["ink"], colours["warn-ground"]) >= 4.5
    lines = [colours[f"c{k}"] for k in range(8)]
    assert len(set(lines)) == 8
    assert min(contrast(line, colours["ground"]) for line in lines) >= 3


# The command.


def test_the_command_writes_the_page_and_says_where(copy, capsys):
    assert main(["report", str(copy), "--title", "My title"]) == 0
    assert capsys.readouterr().out == f"Report: {copy / 'report.html'}\n"
    assert "<title>My title</title>" in (copy / "report.html").read_text(encoding="utf-8")


def test_the_command_as_json_names_what_is_missing(copy, tmp_path, capsys):
    (copy / "seed-1" / "summary.json").unlink()
    assert main(["report", str(copy), "--output", str(tmp_path / "page.html"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "report": str(tmp_path / "page.html"),
        "experiments": 1,
        "runs": 1,
        "unfinished": ["seed-1"],
        "problems": [],
    }
    assert err == "note: not finished, and left out: seed-1\n"
    assert not (copy / "report.html").exists()


def test_an_output_that_is_a_folder_is_refused(copy, capsys):
    assert main(["report", str(copy), "--output", str(copy)]) == 2
    assert "which is a folder, but it must be the path of an HTML file" in capsys.readouterr().err

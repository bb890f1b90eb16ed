"""The report as a document: what it says, its colours, and the command."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.report.report_cases import (
    DATA,
    ERM,
    EXPERIMENTS,
    LOCAL,
    PROX,
    charts_of,
    run_one,
    words_of,
)
from tests.wording import has_all, only_line
from upcycled.cli.main import main
from upcycled.config.experiment import parse
from upcycled.experiments.compare import compare_experiment
from upcycled.experiments.sweep import How, sweep_experiment
from upcycled.report import collect, render, write_report
from upcycled.report.charts import drawn
from upcycled.report.findings import comparison
from upcycled.report.settings import families, labels, own_modules, run_command


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
    files = [folder / "erm-upcycled" / f"seed-{seed}" / "summary.json" for seed in (0, 1)]
    costliest = max((json.loads(file.read_text())["privacy"] for file in files), key=lambda p: p["epsilon"]["max"])
    # The last item is about the ledger, which the page finds out for itself.
    assert costliest["statement_items"][-1] == ["ledger", "anchored; the run wrote every line itself"]
    assert "ledger anchored; it holds all that its head says, which no key was asked about" in words
    assert len(costliest["statement_items"]) == 13
    for topic, text in costliest["statement_items"][:-1]:
        assert f"{topic} {text}" in words
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


REAL = ERM | {"noise": "system"}
ONLY = "the page shows releases, public facts and charged numbers only"


def test_what_a_page_leaves_out_is_said_of_restricted_experiments_only(tmp_path):
    run_one(tmp_path, "guarded", seeds=(0,), **PROX, privacy=REAL)
    alone = words_of(render(collect(tmp_path)))
    assert f"of this experiment {ONLY}" in alone
    assert "exact numbers" not in alone
    run_one(tmp_path, "rehearsed", seeds=(0,), **PROX, privacy=ERM)
    run_one(tmp_path, "bare", seeds=(0,), **PROX)
    run_one(tmp_path, "open", seeds=(0,), **PROX, data=DATA | {"public": True})
    labels = {one.part.name: one.label for one in drawn(collect(tmp_path))}
    words = words_of(render(collect(tmp_path)))
    assert f"of {labels['guarded']} {ONLY}" in words
    assert (
        f"Of {labels['bare']} and {labels['rehearsed']} the page shows exact scores, which no epsilon covers" in words
    )
    assert words.count(ONLY) == 1


def test_the_accuracy_of_each_client_is_the_holders_or_was_not_recorded(tmp_path, folder):
    run_one(tmp_path, "guarded", seeds=(0,), **PROX, privacy=REAL)
    own, lacking = "is the data holder's own, in private/ of each run's folder", "did not record the accuracy"
    words = words_of(render(collect(tmp_path)))
    assert f"The accuracy of each client {own}" in words
    assert lacking not in words
    shutil.copytree(folder / "erm-vanilla", tmp_path / "erm-vanilla")
    words = words_of(render(collect(tmp_path)))
    assert re.search(rf"The accuracy of each client of \S.* {own}", words)
    assert lacking not in words
    for file in (tmp_path / "erm-vanilla").rglob("clients.jsonl"):
        file.unlink()
    assert f"The other runs {lacking}" in words_of(render(collect(tmp_path)))
    alone = words_of(render(collect(tmp_path / "erm-vanilla")))
    assert f"These runs {lacking}" in alone
    assert own not in alone


def finals(tmp_path, names):
    """Return the part of a page about the final model, of data whose classes have these names."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 60, 2)).astype(np.float32)
    y = [rng.permutation(np.arange(60) % len(names)) for _ in range(3)]
    data = up.FederatedData.from_arrays(x, y, label_names=names, num_classes=len(names)).split(0.5)
    up.train(data, algorithm=up.FedAvg(), iterations=2, results=tmp_path / "named", progress=False)
    page = render(collect(tmp_path / "named"))
    return page[page.index("<h2>Final model</h2>") : page.index("<h2>Clients</h2>")]


def test_pictures_of_the_final_model_call_classes_by_their_names(tmp_path):
    part = finals(tmp_path, ["well", "ill & <old>"])
    words = words_of(part)
    assert "class well answered with ill & <old>: " in words
    assert "ROC of class ill & <old>" in words
    assert "Calibration of class ill & <old>; dots by samples" in words
    assert re.findall(r'class="end">(well|ill &amp; &lt;old&gt;)</text>', part) == ["well", "ill &amp; &lt;old&gt;"]
    assert re.findall(r'class="middle">(well|ill &amp; &lt;old&gt;)</text>', part) == ["well", "ill &amp; &lt;old&gt;"]
    # Without the model's file the numbers are what there is.
    (tmp_path / "named" / "seed-0" / "model.json").unlink()
    words = words_of(render(collect(tmp_path / "named")))
    assert "class 0 answered with 1: " in words
    assert "ROC of class 1" in words
    assert "Calibration of class 1;" in words


def test_names_that_have_no_room_below_columns_have_numbers_that_rows_explain(tmp_path):
    names = [f"a rather long diagnosis {k}" for k in range(4)]
    part = finals(tmp_path, names)
    rows, columns = (re.findall(rf'class="{side}">([^<]*)</text>', part) for side in ("end", "middle"))
    assert rows[:4] == [f"{k} a rather lon…" for k in range(4)]
    assert columns[:4] == ["0", "1", "2", "3"]
    assert f"class {names[2]} answered with {names[3]}: " in part


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


def test_a_run_that_a_script_made_is_repeated_by_it_and_code_of_ones_own_needs_its_folder(tmp_path, federation):
    up.train(federation, algorithm=up.FedAvg(), iterations=2, progress=False, results=tmp_path / "mine")
    [part] = collect(tmp_path / "mine").parts
    assert run_command(part) is None
    words = words_of(render(collect(tmp_path / "mine")))
    assert "repeat it with your script" in words
    assert "upcycled run" not in words
    named = {"data": {"source": "synthetic"}, "algorithm": {"name": "my_module:HalfWay"}, "metrics": ["other:score"]}
    part = replace(part, config=named)
    assert run_command(part).endswith("results=again --path DIR")
    assert own_modules(part) == ["my_module", "other"]


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
    for row in found.table:
        low, high = (f"{abs(100 * end):.2f}" for end in row.paired.interval)
        assert low in words
        assert high in words
        assert row.verdict in words
    assert "after Holm's correction" in words
    assert "small: vanilla against upcycled" in words
    assert page.count('class="whisker') == 4
    assert "Against vanilla with a longer server step: after Holm's correction" in words
    assert "FedProx, server_lr = 1.5" in words
    fields = json.loads((found.folder / "compare.json").read_text())["rows"]
    for row, field in zip(found.rows, fields, strict=True):
        assert field["is_significant"] == row.paired.is_significant == (field["verdict"] != "no significant difference")
        assert field["holm_is_significant"] == (field["holm_p_value"] < 1 - found.confidence)
    assert [part["label"] for part in charts_of(page)["parts"]] == [
        "FedAvg, vanilla",
        "FedAvg, upcycled",
        "FedAvg, vanilla, server_lr = 1.5",
        "FedProx, vanilla",
        "FedProx, upcycled",
        "FedProx, vanilla, server_lr = 1.5",
    ]
    assert "upcycled compare x" in words
    assert render(collect(tmp_path / "small")).count('class="whisker') == 4  # found from above, too


def test_a_comparison_of_one_algorithm_says_both_findings(tmp_path):
    raw = {"name": "small", "iterations": 4, "seeds": [0, 1], "data": DATA, "local": LOCAL}
    raw |= {"algorithm": {"name": "fedprox"}, "upcycle": {"coefficient": 0.5}, "results": str(tmp_path)}
    both = words_of(compare_experiment(parse(raw), "small.toml").report.read_text(encoding="utf-8"))
    assert re.search(r"FedProx: .* after Holm's correction.*longer server step: FedProx, server_lr = 1\.5: ", both)
    alone = words_of(compare_experiment(parse(raw), "small.toml", longer_step=False).report.read_text(encoding="utf-8"))
    assert "longer server step" not in alone
    assert "Holm" not in alone


def compared(*rows, confidence=0.95, **more):
    """A document of a comparison; a row is its gain, and p-values or fields."""
    plain = {"vanilla": {"accuracy": {"mean": 0.5, "sd": None}}, "verdict": "-", "holm_verdict": "-"}
    return {"confidence": confidence, "rows": [plain | {"algorithm": "fedavg"} | row for row in rows], **more}


def test_findings_are_counted_from_fields_and_never_from_words():
    row = {"gain": 0.1, "interval": [0.05, 0.15], "is_significant": True}
    gain = row | {"holm_is_significant": True, "holm_verdict": "x"}
    loss = gain | {"gain": -0.1, "interval": [-0.15, -0.05]}
    # Significant alone, but not together with the others; its words would mislead.
    lost = row | {"holm_is_significant": False, "holm_verdict": "no gain, no loss"}
    found = comparison(compared(gain, gain, loss, lost))
    assert (found.gains, found.losses) == (2, 1)
    alone = comparison(compared(row | {"holm_verdict": None}, lost | {"holm_verdict": None, "is_significant": False}))
    assert (alone.gains, alone.losses, alone.is_corrected) == (1, 0, False)


def test_files_without_these_fields_are_judged_by_their_p_values():
    one = {"gain": 0.1, "interval": [0.05, 0.15], "p_value": 0.01, "holm_p_value": 0.03}
    other = {"gain": -0.1, "interval": [-0.3, 0.1], "p_value": 0.02, "holm_p_value": 0.06}
    assert (comparison(compared(one, other)).gains, comparison(compared(one, other)).losses) == (1, 0)
    assert comparison(compared(one, other, confidence=0.9)).losses == 1  # 0.06 < 1 - 0.9
    untested = {"gain": None, "interval": None, "p_value": None, "holm_verdict": None}
    found = comparison(compared(one, untested))
    assert (found.gains, found.losses, found.rows[1].places) == (1, 0, None)
    # Intervals from -0.3 to 0.15: zero lies two thirds along.
    assert comparison(compared(one, other)).rows[0].places == pytest.approx(
        {"zero": 2 / 3, "low": 7 / 9, "mean": 8 / 9, "high": 1}
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [(0.1, True)] * 2,
            r"After Holm's.*2.*0.*losses.*2 algorithms",
        ),
        ([(0.1, True), (-0.1, True), (0.1, False)], r"1.*gain.*1.*loss.*3 algorithms"),
        ([(0.1, False)] * 2, r"After Holm's.*2 algorithms"),
    ],
)
def test_the_finding_stands_above_its_table(folder, tmp_path, rows, words):
    home = shutil.copytree(folder / "fedavg-upcycled", tmp_path / "all" / "fedavg-upcycled")
    document = compared(
        *({"gain": gain, "interval": [gain, gain], "holm_is_significant": is_finding} for gain, is_finding in rows)
    )
    (home.parent / "compare.json").write_text(json.dumps(document))
    assert re.search(words, words_of(render(collect(home.parent))))


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


def test_a_sweep_beside_an_experiments_seeds_is_named_because_it_has_a_page_of_its_own(folder, tmp_path):
    home = shutil.copytree(folder / "fedavg-upcycled", tmp_path / "one")
    (home / "sweep").mkdir()
    (home / "sweep" / "sweep.json").write_text("{}")
    where = f"sweep is not on this page and has one of its own: upcycled report {home / 'sweep'}"
    assert collect(home).problems == (where,)
    assert where in words_of(render(collect(home)))


def test_a_run_has_the_same_numbers_in_the_terminal_and_on_its_page(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "copy")
    for name in ("erm-upcycled", "fedavg-vanilla"):
        # The same config again: the results are there, and only the table is printed.
        config = tmp_path / "copy" / name / "seed-0" / "config.toml"
        assert main(["run", str(config), "seeds=[0, 1]", f"results={tmp_path / 'copy'}"]) == 0
        out = capsys.readouterr().out
        page = words_of(write_report(tmp_path / "copy" / name).read_text(encoding="utf-8"))
        page = re.sub(r"majority class [0-9.]+ ", "", page)
        mean = next(line for line in out.splitlines() if line.startswith("mean"))
        # accuracy, loss, data rounds, iterations, messages, MB, seconds; the page has gradient steps before the last.
        *numbers, seconds = mean.removeprefix("mean").split()
        assert re.search(f"{re.escape(' '.join(numbers))} [0-9,]+ {re.escape(seconds)}", page)
        if name == "erm-upcycled":
            seeds = sorted((tmp_path / "copy" / name).glob("seed-*/summary.json"))
            each = [json.loads(path.read_text())["privacy"]["epsilon"] for path in seeds]
            spent = max(each, key=lambda epsilon: epsilon["max"])
            assert f"proven epsilon {spent['max']:.3f} for the worst client, {spent['median']:.3f} median" in out
            assert f"{spent['max']:.3f}" in page


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
        "stopped": [],
        "problems": [],
    }
    assert has_all(only_line(err), "finished", "seed-1")
    assert not (copy / "report.html").exists()


def test_an_output_that_is_a_folder_is_refused(copy, capsys):
    assert main(["report", str(copy), "--output", str(copy)]) == 2
    assert "HTML" in capsys.readouterr().err


def test_a_report_without_jinja2_is_refused_in_one_sentence(copy, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(copy)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert has_all(err, "error", "report", "jinja2", "'.[report]'")
    assert not (copy / "report.html").exists()


def test_a_comparison_without_jinja2_does_all_but_its_page(copy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    config = copy / "seed-0" / "config.toml"
    results = tmp_path / "compared"
    assert main(["compare", str(config), "seeds=[0, 1]", f"results={results}", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert has_all(err, "jinja2", "'.[report]'")
    found = json.loads(out)
    assert found["report"] is None
    assert len(found["rows"]) == 1
    assert (Path(found["folder"]) / "compare.json").exists()
    assert not list(results.rglob("report.html"))

"""The report of files that are missing, damaged or hostile, and of very many."""

from __future__ import annotations

import json
import random
import re
import shutil
from importlib.resources import files

import pytest

from tests.report.report_cases import (
    EXPERIMENTS,
    HOSTILE,
    Elements,
    charts_of,
    hostile_folder,
    rows_of,
    words_of,
)
from upcycled.cli.main import main
from upcycled.core.errors import InputError
from upcycled.report import collect, render, write_report
from upcycled.report.page import fingerprint


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
        (lambda path: None, r"exist.*results"),
        (lambda path: path.write_text("x"), "results folder"),
        (lambda path: path.mkdir(), r"results.*finished"),
        (lambda path: ((path / "seed-0").mkdir(parents=True), (path / "seed-0" / "config.toml").touch()), "yet, but"),
        (
            lambda path: ((path / "seed-0").mkdir(parents=True), (path / "seed-0" / "summary.json").write_text("{")),
            r": seed-0/summary.json.*damaged",
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


VALUES = (None, True, -1, 1e308, 10**400, float("nan"), "x", [], {}, [1, "a", None], {"a": 1}, "9" * 50)


def changed(value, rng):
    """Put something else in some places, and leave some out."""
    if rng.random() < 0.03:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        return {key: changed(inner, rng) for key, inner in value.items() if rng.random() > 0.02}
    return [changed(inner, rng) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", range(12))
def test_whatever_the_files_hold_there_is_a_page_or_one_sentence(folder, tmp_path, number):
    rng, name = random.Random(number), ("erm-upcycled", "pfedme-upcycled")[number % 2]
    copy = shutil.copytree(folder / name, tmp_path / "copy", ignore=lambda *_: ["checkpoint"])
    for file in sorted(copy.rglob("*.json*")):
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        file.write_text("".join(json.dumps(changed(json.loads(line), rng)) + "\n" for line in lines))
    page = sentence = ""
    try:
        page = render(collect(copy))
    except InputError as error:
        sentence = str(error)
    assert charts_of(page)["parts"] if page else sentence.count("\n") == 0


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


def test_no_text_of_any_file_becomes_markup(folder, page, tmp_path):
    results = collect(hostile_folder(folder, tmp_path / "results"))
    assert len(results.problems) == 1
    changed = render(results)
    before, after = Elements(page).found, Elements(changed).found
    # The same elements and attributes as on a page of harmless files, and those of a comparison and of a notice.
    kinds = {(name, key) for name, attributes in before for key in (None, *attributes)}
    more = {(name, key) for name, attributes in after for key in (None, *attributes)} - kinds
    assert more <= {("td", "class"), ("th", "class"), ("table", "class"), ("ul", None), ("li", None)}
    assert len(Elements(changed).named("script")) == 2
    assert changed.count("<!--") == 0
    # Shown as it is, in every place: nothing is left out, escaped twice, or taken for a template.
    places = dict(re.findall(r'<section id="([a-z]+)">(.*?)</section>', changed, re.DOTALL))
    assert set(places) == {"results", "curves", "final", "clients", "privacy", "settings", "repeat"}
    for name, section in places.items():
        assert name == "curves" or HOSTILE in words_of(section), name
    assert "&amp;amp;" not in changed
    labels = [attributes["aria-label"] for name, attributes in after if name == "svg" and "aria-label" in attributes]
    assert f"{HOSTILE}: 0.00 to +20.00 points" in labels
    assert HOSTILE in charts_of(changed)["parts"][0]["label"]
    assert "<b onclick='hacked=1'>/seed-0/summary.json is damaged" in words_of(changed)
    assert 'a & b " > <i>/seed-0' in words_of(changed)


def test_no_template_switches_escaping_off():
    templates = sorted((files("upcycled.report") / "templates").iterdir(), key=lambda path: path.name)
    assert len(templates) > 5
    for template in templates:
        words = template.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", words), template.name


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


@pytest.mark.slow
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

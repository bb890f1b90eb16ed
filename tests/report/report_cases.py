"""Results folders for the report's tests, made by really running small experiments."""

from __future__ import annotations

import html
import json
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import tomli_w

from upcycled.config.experiment import parse
from upcycled.experiments.batch import run_experiment

DATA = {"source": "synthetic", "alpha": "iid", "clients": 5, "dim": 3, "sizes": 40}
ERM = {"mechanism": "erm_output", "norm_bound": 1.0, "noise_std": 0.8}
LOCAL = {"lr": 0.05, "epochs": 2, "batch_size": 8}
PROX = {"algorithm": {"name": "fedprox", "mu": 0.5}, "clients": {"participation": 0.6}}
EXPERIMENTS = {
    "fedavg-vanilla": {"algorithm": {"name": "fedavg"}, "local": LOCAL, "iterations": 5},
    "fedavg-upcycled": {"algorithm": {"name": "fedavg"}, "local": LOCAL, "upcycle": {"coefficient": 0.5}},
    "pfedme-upcycled": {"algorithm": {"name": "pfedme"}, "local": LOCAL, "upcycle": {"coefficient": 0.5}},
    "erm-vanilla": PROX | {"privacy": ERM, "iterations": 5},
    "erm-upcycled": PROX | {"privacy": ERM, "upcycle": {"coefficient": 0.5}},
}
PRIVATE = ("erm-vanilla", "erm-upcycled")


def run_one(folder: Path, name: str, seeds=(0, 1), **more):
    """Run an experiment into ``folder/name``; 10 iterations unless told otherwise."""
    raw = {"iterations": 10, "data": DATA, **more}
    return run_experiment(parse({**raw, "name": name, "results": str(folder), "seeds": list(seeds)}), source=name)


def run_all(folder: Path) -> Path:
    """Run private and other, vanilla and upcycled experiments, two seeds each."""
    for name, more in EXPERIMENTS.items():
        run_one(folder, name, **more)
    return folder


def rows_of(folder: Path) -> list[dict]:
    """Return the records of a seed."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def charts_of(page: str) -> dict:
    """Return the data that the page's script draws."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))


def words_of(page: str) -> str:
    """Return what a reader sees: the text of the page without style, script and markup."""
    bare = re.sub(r"<(style|script|noscript).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


HOSTILE = "</script><script>hacked = 1</script><!--<img src=x onerror=hacked=1>\"'& {{ 7 * 7 }}"


def hostile(value):
    """Return a document in which every text says something dangerous, too."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


def hostile_folder(source: Path, target: Path) -> Path:
    """Copy folders of experiments, and make every text in them dangerous; with all documents a command may write."""
    shutil.copytree(source, target, ignore=lambda *_: ["checkpoint"])
    for file in sorted(target.rglob("*.json*")):
        if file.name.startswith(("summary", "clients")):
            lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            rows = [hostile(json.loads(line)) for line in lines]
            if file.name == "summary.json" and (privacy := json.loads(lines[0])["privacy"]) is not None:
                # A head is never shown, and with a wrong one there would be no ledger to show.
                rows[0]["privacy"]["head"] = privacy["head"]
            if file.name == "clients.jsonl":
                rows = [row | {"name": f"{HOSTILE}{k}"} for k, row in enumerate(rows)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in sorted(target.rglob("config.toml")):
        config = hostile(tomllib.loads(file.read_text()))
        # Names of tables and settings come out of a file as well.
        file.write_text(tomli_w.dumps({**config, HOSTILE: HOSTILE, "own": {HOSTILE: file.parts[-3]}}))
    row = {"algorithm": HOSTILE, "gain": 0.1, "interval": [0.0, 0.2], "verdict": HOSTILE, "holm_verdict": HOSTILE}
    documents = {
        "compare": {"name": HOSTILE, "confidence": 0.95, "rows": [row, row], "notes": [HOSTILE], "repeat": HOSTILE},
        "sweep": {"ranking": [{"settings": {HOSTILE: HOSTILE}}], "chosen": {"settings": {HOSTILE: [HOSTILE]}}},
        "demo": {"note": HOSTILE},
    }
    for name, document in documents.items():
        (target / f"{name}.json").write_text(json.dumps(document))
    damaged = target / "<b onclick='hacked=1'>" / "seed-0"
    damaged.mkdir(parents=True)
    (damaged / "summary.json").write_text("{")
    unfinished = target / 'a & b " > <i>' / "seed-0"
    unfinished.mkdir(parents=True)
    (unfinished / "config.toml").touch()
    return target


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        HTMLParser.__init__(self)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.found if name == tag]

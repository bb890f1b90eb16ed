"""Results folders for the report's tests, made by really running small experiments."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from upcycled.experiments.config import parse
from upcycled.experiments.run import run_experiment

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

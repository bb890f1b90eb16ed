"""Table 4: the time of vanilla and upcycled runs with as many iterations, from the records' own seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from studies.paper.choose import Cell
from studies.paper.settings import STRATEGIES, Method, Settings, paper_numbers, read_toml, select
from studies.paper.spec import Spec, rounded, usual


@dataclass(frozen=True)
class Timed:
    """One method: vanilla and upcycled runs, one at a time, in turns."""

    settings: Settings
    method: Method
    data: str
    lr: float
    rho: float
    iterations: int
    noise: dict[str, tuple[tuple[str, float], ...]]
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"time of {self.method.title} on {self.settings.data[self.data].title}"

    def spec(self, strategy: str, seed: int) -> Spec:
        return usual(
            self.settings,
            self.method,
            data=self.data,
            part="time",
            own=tuple(self.method.default.items()),
            lr=self.lr,
            rho=self.rho if strategy == "upcycled" else None,
            iterations=self.iterations,
            stragglers=0.0,
            participation=1.0,
            seed=seed,
            mechanism="model_clipping",
            noise=self.noise[strategy],
        )

    def known(self, cell: Cell) -> list[Spec]:
        return [self.spec(strategy, seed) for seed in self.seeds for strategy in STRATEGIES]

    def outlook(self, cell: Cell) -> list[Spec]:
        return [spec for spec in self.known(cell) if cell(spec) is None]

    def next_runs(self, cell: Cell) -> list[Spec]:
        """Return the next missing run: runs that are timed run alone."""
        return self.outlook(cell)[:1]

    def as_json(self, cell: Cell) -> dict[str, Any]:
        """Return our seconds and the paper's, and their ratios upcycled / vanilla."""
        printed = paper_numbers()["table4"]
        seconds = {
            strategy: [(cell(self.spec(strategy, seed)) or {}).get("seconds") for seed in self.seeds]
            for strategy in STRATEGIES
        }
        ratios = [
            None if vanilla is None or upcycled is None else upcycled / vanilla
            for vanilla, upcycled in zip(seconds["vanilla"], seconds["upcycled"], strict=True)
        ]
        complete = [ratio for ratio in ratios if ratio is not None]
        is_complete = len(complete) == len(ratios)
        paper = {strategy: printed[strategy][self.method.name] for strategy in STRATEGIES}
        return {
            "method": self.method.name,
            "seconds": seconds,
            "ratios": [rounded(ratio, 4) for ratio in ratios],
            "ratio": rounded(fmean(complete), 4) if is_complete else None,
            "ratio_sd": rounded(stdev(complete), 3) if is_complete and len(complete) > 1 else None,
            "paper_seconds": paper,
            "paper_ratio": rounded(paper["upcycled"][0] / paper["vanilla"][0], 4),
        }


def timed(settings: Settings, only: Sequence[str] = ()) -> Iterator[Timed]:
    """Yield the methods of Table 4; ``only`` may name its data set, and methods."""
    raw = read_toml("settings/time.toml")
    left = select(settings, only)
    for name in raw["methods"]:
        if name not in left.methods or raw["data"] not in left.data:
            continue
        yield Timed(
            settings=settings,
            method=settings.methods[name],
            data=raw["data"],
            lr=raw["lr"],
            rho=raw["rho"],
            iterations=raw["quick_iterations"] if settings.is_quick else raw["iterations"],
            noise={strategy: tuple(raw[strategy].items()) for strategy in STRATEGIES},
            seeds=tuple(raw["seeds"][:2] if settings.is_quick else raw["seeds"]),
        )

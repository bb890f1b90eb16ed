"""The chain as it is printed and written: two sentences and one table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from studies.common.page import MISSING, paired_words, table
from studies.common.statistics import paired_json
from studies.paper.plan import Block
from studies.paper.published.chain import Gains
from studies.paper.settings import Settings, paper_numbers

HEAD = ("from our gains to the paper's", "gain, mean over pairs", "what this step adds", "positive")


def paper_gains(wanted: Sequence[Block]) -> dict[tuple[str, str], float]:
    """Return what the paper's Table 1 has for these pairs."""
    numbers = paper_numbers()["table1"]
    found = {}
    for block in wanted:
        method, data = block.method.name, block.column.data
        found[method, data] = numbers[method]["upcycled"][data][0] - numbers[method]["vanilla"][data][0]
    return found


def sentences(chain: Sequence[Gains], wanted: Sequence[Block]) -> list[str]:
    """Say in two sentences what the official code's ways come to, and what of the difference each explains."""
    first, last = chain[0], chain[-1]
    printed = _mean([gain for pair, gain in paper_gains(wanted).items() if pair in last.by_pair])
    adds = ", ".join(f"{after.link.name} {paired_words(after.minus(before))}" for before, after in pairwise(chain))
    reached, start = last.mean.mean, first.mean.mean
    return [
        "With the official code's model, its defaults and its way of tuning, upcycling gains "
        f"{paired_words(last.mean)} points on average over the {len(last.by_pair)} pairs of Table 1's synthetic "
        "columns, where the paper prints "
        f"{printed:+.2f} and our reproduction has {paired_words(first.mean)}. Of the {printed - start:+.2f} between "
        f"the two the steps below add {reached - start:+.2f} ({adds}), and {printed - reached:+.2f} stays unexplained."
    ]


def chain_table(
    chain: Sequence[Gains], beside: Sequence[Gains], wanted: Sequence[Block], settings: Settings
) -> list[str]:
    methods = list(dict.fromkeys(method for method, _ in chain[0].by_pair))
    methods.sort(key=list(settings.methods).index)
    lines = []
    for number, one in enumerate(chain):
        step = "" if number == 0 else paired_words(one.minus(chain[number - 1]))
        lines.append([_title(one), paired_words(one.mean), step, _positive(one), *_by_method(one, methods)])
    for one in beside:
        if one.by_pair:
            lines.append([f"*beside:* {_title(one)}", paired_words(one.mean), "", _positive(one)])
            lines[-1] += _by_method(one, methods)
    if not settings.is_quick:
        printed = {pair: gain for pair, gain in paper_gains(wanted).items() if pair in chain[0].by_pair}
        shown = [f"{_mean([gain for (name, _), gain in printed.items() if name == method]):+.2f}" for method in methods]
        counted = f"{sum(gain > 0 for gain in printed.values())} of {len(printed)}"
        lines.append(["the paper's Table 1", f"{_mean(list(printed.values())):+.2f}", "", counted, *shown])
    return table([*HEAD, *(settings.methods[name].title for name in methods)], lines)


def block_of(chain: Sequence[Gains], beside: Sequence[Gains], wanted: Sequence[Block], settings: Settings) -> list[str]:
    """Return what stands between the page's marks."""
    if not chain[0].by_pair:
        return ["Not computed yet: `python -m studies.paper as-published`."]
    missing = len(wanted) - len(chain[0].by_pair)
    rest = f"**Not computed yet: {missing} of {len(wanted)} pairs**; `python -m studies.paper as-published` goes on."
    return [
        *sentences(chain, wanted),
        "",
        *([rest, ""] if missing else []),
        *chain_table(chain, beside, wanted, settings),
    ]


def as_json(chain: Sequence[Gains], beside: Sequence[Gains], settings: Settings) -> dict[str, Any]:
    def one_json(one: Gains) -> dict[str, Any]:
        pairs = {f"{method} {data}": [round(gain, 4) for gain in row] for (method, data), row in one.by_pair.items()}
        return {"link": one.link.name, "title": one.link.title, "mean": paired_json(one.mean), "by_pair": pairs}

    links = []
    for number, one in enumerate(chain):
        added = None if number == 0 or not one.by_pair else paired_json(one.minus(chain[number - 1]))
        links.append(one_json(one) | {"adds": added} if one.by_pair else {"link": one.link.name})
    found = [one_json(one) for one in beside if one.by_pair]
    return {"table": "as-published", "is_quick": settings.is_quick, "chain": links, "beside": found}


def _title(one: Gains) -> str:
    return f"{one.link.title} (`{one.link.name}`)"


def _positive(one: Gains) -> str:
    return f"{sum(row.mean() > 0 for row in one.by_pair.values())} of {len(one.by_pair)}"


def _by_method(one: Gains, methods: Sequence[str]) -> list[str]:
    found = [one.of_method(name) for name in methods]
    return [MISSING if mean is None else f"{mean:+.2f}" for mean in found]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

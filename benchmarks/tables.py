"""Write the measured tables of docs/performance.md from benchmarks/results/*.json.

python -m benchmarks.tables
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, explain_if_asked

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def read(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def origins() -> str:
    """Which code each result is of, and which processor: what was changed later is not in its numbers."""
    names: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        found = read(path.stem)
        code, cpu = found.get("code"), found["machine"]["cpu"]
        if code is None:  # older than the word of where it is from
            continue
        names.setdefault(f"{code['date']} at `{code['commit']}` on {cpu}", []).append(path.stem)
    return "; ".join(f"{when}: {', '.join(found)}" for when, found in sorted(names.items()))


def seconds_table() -> list[str]:
    lines = ["| workload | system | seconds | times the fused engine's |", "|---|---|---|---|"]
    for name in ("w1", "w2", "w3"):
        seconds = read(name).get("seconds", {})
        for system, s in seconds.items():
            lines.append(f"| {name.upper()} | {system} | {s:.3g} | {s / seconds['fused']:.3g} |")
    peers = read("peers").get("seconds", {})
    for system, s in peers.items():
        if system != "fused":
            lines.append(f"| W1 | {system} (d) | {s:.3g} | {s / peers['fused']:.3g} |")
    return lines


def other_table() -> list[str]:
    w1, batch, scale, lstm = read("w1"), read("batch"), read("scale"), read("lstm")
    auto = read("auto")
    checkpoints, compare = read("checkpoints").get("ratios", {}), read("compare")
    rows: list[tuple[str, str]] = []
    if w1:
        rows.append(("W1 with output perturbation over W1 without", f"{w1['with privacy / without']:.2f}x"))
    if batch:
        rows.append(
            (f"{batch['runs']} runs of W2 (16 settings, 4 seeds) in one `train_many`", f"{batch['seconds']:.2f} s")
        )
        rows.append(("cores busy meanwhile", f"{100 * batch['cores busy']:.0f} %"))
        if (warm := batch.get("seconds with warm workers")) is not None:
            busy = f"{100 * batch['cores busy with warm workers']:.0f} %"
            rows.append(("the same where worker processes live already; cores busy", f"{warm:.2f} s; {busy}"))
    if scale:
        for name in ("without privacy", "with a ledger"):
            words = f"a round among 10,000,000 clients over one among 10,000, {name}"
            rows.append((words, f"{scale[name]['many / few']:.2f}x"))
            rows.append(("anonymous memory meanwhile, at most", f"{scale[name]['most anonymous GB']:.2f} GB"))
        whole = scale["a cohort of 100,000"]
        rows.append(("a round of 100,000 clients, of 10,000,000", f"{whole['seconds']:.2f} s"))
        growth = {k: v for k, v in scale["CPU growth"].items() if k != "base"}
        rows += [
            (f"CPU time, {name.split('/')[0].strip()}, over twice the base", f"{v:.2f}x") for name, v in growth.items()
        ]
    rows += [(f"{name}, with checkpoints over without", f"{ratio:.2f}x") for name, ratio in checkpoints.items()]
    if auto:
        words = f"""`engine="auto"` over the best engine, cold processes, the worst of {len(auto["cases"])} cases"""
        rows.append((words, f"{auto['worst']:.2f}x"))
    for name, network in read("networks").items():
        if "plain / ours" in network:
            words = f"a step of {name} by the best plain torch loop over ours; ours over its products alone"
            rows.append((words, f"{network['plain / ours']:.2f}x; {network['ours / products']:.2f}x"))
    if compare:
        command = "`upcycled compare --no-longer-step`"
        words = f"{command}, {compare['runs']} runs of 80 data rounds, start-up and report included"
        rows.append((words, f"{compare['seconds']:.1f} s"))
    moreau = read("moreau")
    if moreau:
        words = "a data round of W3 by pFedMe (5 inner gradients a step) over one by FedAvg"
        rows.append((words, f"{moreau['pFedMe / FedAvg']:.2f}x"))
    rules = read("rules").get("upcycled iteration / data round", {})
    words = "an upcycled iteration by `{}` over a data round of W3"
    rows += [(words.format(name), f"{100 * ratio:.2f} %") for name, ratio in rules.items()]
    dpsgd = read("dpsgd")
    names = {
        "linear": "a linear model 20-2",
        "mlp": "MLP 784-196-10",
        "cnn": "CNN of 114,314 numbers",
        "lstm": "bidirectional LSTM",
    }
    for which, ratio in dpsgd.get("opacus / ours", {}).items():
        model, noise = which.split(", ")
        rows.append((f"a step of DP-SGD by Opacus over ours, {names[model]}, {noise}", f"{ratio:.1f}x"))
    if dpsgd:
        clipping = dpsgd["clipped without noise / plain SGD"]["mlp"]
        rows.append(("DP-SGD without its noise over SGD, MLP 784-196-10", f"{clipping:.2f}x"))
        rows.append(
            ("calibrating DP-SGD for 50 clients of different sizes", f"{dpsgd['seconds for 50 clients']:.2f} s")
        )
    draws = read("noise").get("nanoseconds a draw", {})
    for which in ("seeded", "system"):
        words = f"a Gaussian number of noise on one core, {which}, 155,800 at a time"
        rows += [(words, f"{draws[f'gaussian, {which}, 1 client of 155,800 numbers']:.1f} ns")] if draws else []
    if lstm:
        rows.append(("BiLSTM client step over its GEMM limit", f"{lstm['step / GEMM limit']:.2f}x"))
    return ["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]


def certified_table() -> list[str]:
    """Certified solvers over their own products, and where a run's time goes."""
    found = {name: case for name, case in read("certified").items() if "solver / products" in case}
    if not found:
        return []
    lines = [
        "| certified solver (e) | run | solver | its products alone | solver over products | where a run's time goes |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in found.items():
        seconds, parts = case["seconds"], case["seconds by part"]
        shares = ", ".join(f"{part} {100 * s / seconds['run']:.0f} %" for part, s in parts.items())
        limit = f"{seconds[case['products']]:.3g} s ({case['products']})"
        times = f"{case['solver / products']:.2f}x"
        lines.append(f"| {name} | {seconds['run']:.3g} s | {seconds['solver']:.3g} s | {limit} | {times} | {shares} |")
    return [*lines, ""]


def main() -> None:
    machine: dict[str, Any] = next((read(n)["machine"] for n in ("w1", "w2", "w3", "batch") if read(n)), {})
    where = ", ".join(f"{key} {value}" for key, value in machine.items())
    block = [
        BEGIN,
        "",
        f"Machine: {where}.",
        "",
        f"Measured {origins()}.",
        "",
        *seconds_table(),
        "",
        *other_table(),
        "",
        *certified_table(),
        END,
    ]
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + "\n".join(block) + after)


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()

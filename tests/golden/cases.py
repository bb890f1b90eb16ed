"""The golden runs: small, seeded, and between them every algorithm, engine, mechanism, rule and command.

``CASES`` maps a name to a function from an empty folder to facts: part -> column -> plain values.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from functools import cache
from unittest import mock

import numpy as np
import torch

import upcycled as up
from examples.own_rule import FedExP
from tests.golden.facts import of_document, of_result, of_results
from upcycled.cli.main import main

CASES = {}
LOCAL = up.LocalSGD(lr=0.05, momentum=0.5, epochs=2, batch_size=8)
PLAIN = up.LocalSGD(lr=0.05, epochs=2, batch_size=8)
ALGORITHMS = {
    "fedavg": up.FedAvg(),
    "fedavgm": up.FedAvgM(),
    "fedprox": up.FedProx(mu=0.5),
    "scaffold": up.Scaffold(),
    "feddyn": up.FedDyn(alpha=0.1),
    "pfedme": up.PFedMe(lam=2.0, inner_steps=2, inner_lr=0.1),
    "fedyogi": up.FedYogi(),
}
KINDS = {"vanilla": None, "upcycled": 0.7}
MLP = {"model": "mlp", "model_options": {"hidden": [7]}}
BOTH = tuple(KINDS)


@cache
def ragged():
    return up.data.synthetic(0.5, 0.5, clients=6, dim=5, num_classes=3, sizes=[30, 12, 41, 20, 25, 17], seed=1)


@cache
def even():
    return up.data.synthetic("iid", clients=6, dim=4, num_classes=2, sizes=40, seed=2)


@cache
def many():
    return up.data.synthetic(0.5, 0.5, clients=10, dim=4, num_classes=3, sizes=20, seed=3)


@cache
def tokens():
    rng = np.random.default_rng(4)
    xs = [rng.integers(0, 12, (n, 6)) for n in (14, 9, 11, 8)]
    ys = [(x.sum(axis=1) % 2).astype(np.int64) for x in xs]
    return up.FederatedData.from_arrays(xs, ys, num_classes=2).split(0.2, seed=0)


def trained(data, **changes):
    algorithm = changes.get("algorithm", up.FedAvg())
    local = PLAIN if isinstance(algorithm, up.PFedMe) else LOCAL  # pFedMe has no momentum
    usual = {"algorithm": algorithm, "iterations": 6, "local": local, "engine": "sequential", "seed": 5}
    return up.train(data, progress=False, **(usual | changes))


def run(name, data, **changes):
    assert name not in CASES, name
    CASES[name] = lambda folder: of_result(trained(data(), **changes))


def case(name):
    def keep(function):
        assert name not in CASES, name
        CASES[name] = function
        return function

    return keep


# Algorithms and engines.

for engine, algorithm, kind in itertools.product(("sequential", "fused"), ALGORITHMS, KINDS):
    run(
        f"{engine}-{algorithm}-{kind}",
        ragged,
        algorithm=ALGORITHMS[algorithm],
        upcycle=KINDS[kind],
        engine=engine,
        participation=0.7,
    )
for algorithm, kind in itertools.product(("fedavg", "scaffold", "pfedme"), KINDS):
    arguments = {"algorithm": ALGORITHMS[algorithm], "upcycle": KINDS[kind]}
    run(f"fused-mlp-{algorithm}-{kind}", ragged, engine="fused", **arguments, **MLP)
for algorithm, kind in (
    ("fedprox", "vanilla"),
    ("scaffold", "upcycled"),
    ("feddyn", "upcycled"),
    ("pfedme", "vanilla"),
):
    arguments = {"algorithm": ALGORITHMS[algorithm], "upcycle": KINDS[kind]}
    run(f"stacked-mlp-{algorithm}-{kind}", many, engine="vectorised", **arguments, **MLP)
run("workers-mlp-scaffold-upcycled", ragged, engine="vectorised", algorithm=up.Scaffold(), upcycle=0.7, **MLP)
run("auto-fedprox-upcycled", ragged, engine="auto", algorithm=up.FedProx(mu=0.5), upcycle=0.7)
LSTM = {"model": "lstm", "model_options": {"vocabulary": 12, "embedding": 3, "hidden": 4}}
run("lstm-fedavg-upcycled", tokens, upcycle=0.5, **LSTM)
run("lstm-scaffold-vanilla", tokens, algorithm=up.Scaffold(), **LSTM)


@case("dropout-feddyn-upcycled")
def _(folder):
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return of_result(trained(ragged(), model=model, algorithm=up.FedDyn(alpha=0.1), upcycle=0.5))


# Who takes part, when it is scored, what is measured.

run("stragglers", ragged, stragglers=0.8, upcycle=0.5, local=up.LocalSGD(lr=0.05, epochs=4, batch_size=8))
run("stragglers-fused-scaffold", ragged, stragglers=0.8, engine="fused", algorithm=up.Scaffold(), upcycle=0.5)
run("half", ragged, participation=0.5, engine="fused", iterations=8)
run("poisson", ragged, participation=0.5, sampling="poisson", engine="fused", upcycle=0.5, iterations=8)
run("poisson-rare-scaffold", ragged, participation=0.15, sampling="poisson", algorithm=up.Scaffold(), iterations=8)
run("scored-every-third", ragged, eval_every=3, upcycle=0.5, engine="fused", iterations=8)
run("full-batch", ragged, engine="fused", local=up.LocalSGD(lr=0.1, epochs=3, batch_size=None))


# Coefficients and rules.

RULES = {
    "auto": "auto",
    "zero": 0.0,
    "constant": up.coefficients.Constant(0.3),
    "lambda-half": up.coefficients.LambdaHalf([0.4, 0.8]),
    "proximal": up.coefficients.Proximal(mu=0.5, lam=[0.5, 1.5]),
    "decaying": up.coefficients.Decaying(0.9),
    "decaying-open": up.coefficients.Decaying(0.9, open_ended=True),
    "fedexp": FedExP(),
}
for rule, upcycle in RULES.items():
    run(f"rule-{rule}", ragged, upcycle=upcycle, engine="fused", algorithm=up.FedProx(mu=0.5), iterations=9)


# Privacy.

P = up.privacy


def private(name, mechanism, kinds=BOTH, data=even, **changes):
    for kind in kinds:
        run(f"private-{name}-{kind}", data, privacy=mechanism, upcycle=KINDS[kind], **changes)


PROX = {"algorithm": up.FedProx(mu=0.5)}
OWN = {**PROX, "local": None}  # these mechanisms bring their own solver
private("model-clipping", P.ModelClipping(clip_norm=1.0, noise_std=0.3), engine="fused")
private("model-clipping-calibrated", P.ModelClipping(1.0, epsilon=4.0, delta=1e-5), data=ragged, participation=0.5)
private("update-clipping", P.UpdateClipping(clip_norm=0.5, noise_std=0.2), algorithm=up.Scaffold())
private("update-clipping-pfedme", P.UpdateClipping(0.5, 0.2), ("upcycled",), algorithm=ALGORITHMS["pfedme"])
private("erm", P.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-5), data=ragged, **OWN)
private("erm-fused-gamma", P.ErmOutput(1.0, noise_std=0.1, gamma=1e-3), engine="fused", **OWN)
private("erm-feddyn", P.ErmOutput(1.0, 0.1, steps=9), ("upcycled",), algorithm=up.FedDyn(alpha=0.5), local=None)
private("erm-scaffold", P.ErmOutput(1.0, 0.1, prox_mu=0.5), ("upcycled",), algorithm=up.Scaffold(), local=None)
private("bolt-on", P.BoltOnSGD(norm_bound=1.0, epsilon=3.0, delta=1e-5), data=ragged, local=PLAIN, **PROX)
private("bolt-on-fused", P.BoltOnSGD(1.0, noise_std=0.05), ("upcycled",), engine="fused", local=PLAIN, stragglers=0.5)
private("objective-pure", P.ObjectivePerturbation(norm_bound=1.0, epsilon=6.0), **OWN)
private("objective-delta", P.ObjectivePerturbation(norm_bound=1.0, epsilon=6.0, delta=1e-5), data=ragged, **OWN)
private("objective-alpha-fused", P.ObjectivePerturbation(20.0, 1.0), ("upcycled",), engine="fused", **OWN)
private("objective-paper-mlp", P.ObjectivePerturbation(alpha=20.0, paper_mode=True), **PROX, **MLP)
private("dpsgd", P.DPSGD(clip_norm=1.0, noise_multiplier=1.0))
private("dpsgd-calibrated", P.DPSGD(1.0, epsilon=5.0, delta=1e-5), ("upcycled",), algorithm=up.Scaffold(), **MLP)
private("dpsgd-pfedme", P.DPSGD(1.0, 0.8), ("upcycled",), algorithm=ALGORITHMS["pfedme"])
private("central", P.CentralDPFedAvg(clip_norm=0.5, noise_multiplier=0.4), algorithm=up.FedAvgM(), participation=0.5)
private("central-calibrated", P.CentralDPFedAvg(0.5, epsilon=5.0, delta=1e-5), ("upcycled",), algorithm=up.FedYogi())
private(
    "central-secret",
    P.CentralDPFedAvg(0.5, epsilon=5.0, delta=1e-5, secret_sampling=True),
    sampling="poisson",
    participation=0.3,
    iterations=8,
)
private("central-secret-multiplier", P.CentralDPFedAvg(0.5, 1.1, secret_sampling=True), sampling="poisson",
        participation=0.15, engine="fused", iterations=8)  # fmt: skip
NOISY = P.ModelClipping(1.0, noise_std=4.0)
SHORT = {"budget": P.Budget(epsilon=4.0, delta=1e-5), "participation": 0.5, "upcycle": 0.7, "iterations": 12}
# Rounds are few enough that somebody can always pay, and many enough that somebody cannot.
run("budget-upcycled", ragged, privacy=NOISY, **SHORT)
run("budget-vanilla", ragged, privacy=NOISY, budget=P.Budget(4.5, 1e-5), participation=0.5, iterations=8)
PURE = {"privacy": P.ObjectivePerturbation(20.0, 1.0), "budget": P.Budget(epsilon=6.0, delta=0.0), **OWN}
run("budget-pure", ragged, upcycle=0.7, iterations=4, **PURE)


# Stopped and resumed, and in batches.


class Broken(Exception):
    """Ends a run half-way."""


class Breaking:
    """A callback that breaks a run after an iteration."""

    def __init__(self, after):
        self.after = after

    def start(self, plan, before):
        pass

    def record(self, record, run):
        if record.iteration == self.after:
            raise Broken

    def finish(self):
        pass


def resumed(name, data, after, **arguments):
    @case(f"resumed-{name}")
    def _(folder):
        kept = {"checkpoint": folder / "kept", "checkpoint_every": 1, **arguments}
        with contextlib.suppress(Broken):
            trained(data(), callbacks=[Breaking(after)], **kept)
        found = of_result(trained(data(), **kept))
        assert found == of_result(trained(data(), **arguments)), "a resumed run differs from one that was not stopped"
        return found


resumed("scaffold", ragged, 4, algorithm=up.Scaffold(), upcycle=0.7, engine="fused", participation=0.5, iterations=8)
resumed("budget", ragged, 7, privacy=NOISY, **SHORT)


@case("many-in-threads")
def _(folder):
    usual = {"data": ragged(), "iterations": 5, "local": LOCAL, "engine": "fused", "upcycle": 0.5}
    runs = [{**usual, "algorithm": ALGORITHMS[name], "seed": seed} for name in ("fedprox", "feddyn") for seed in (0, 1)]
    return of_results(up.train_many(runs, progress=False))


@case("many-in-processes")
def _(folder):
    usual = {"data": ragged(), "iterations": 4, "local": LOCAL, "engine": "sequential", "upcycle": 0.5, **MLP}
    runs = [{**usual, "algorithm": up.FedAvg(), "seed": 0}, {**usual, "algorithm": up.Scaffold(), "seed": 1}]
    runs.append({**usual, "algorithm": up.FedAvg(), "privacy": P.UpdateClipping(0.5, 0.2), "seed": 2})
    return of_results(up.train_many(runs, progress=False))


@case("compare")
def _(folder):
    usual = {"algorithm": up.FedProx(mu=0.5), "local": LOCAL, "engine": "fused", "progress": False}
    found = up.compare(ragged(), upcycle=0.7, iterations=8, seeds=(0, 1), **usual)
    differences = {"differences": list(found.paired.differences), "interval": list(found.paired.interval)}
    return {**of_results([*found.vanilla, *found.upcycled]), "paired": differences}


# Commands.

FILE = """\
name = "golden"
iterations = 4
seeds = [0, 1]

[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 5
dim = 3
sizes = 20
{data}
[algorithm]
name = "fedprox"
mu = 0.5

[upcycle]
coefficient = 0.7
{tables}"""
SGD = "[local]\nlr = 0.05\nepochs = 2\nbatch_size = 8\n[clients]\nparticipation = 0.6\n"
SWEEP = '[sweep]\n"local.lr" = [0.01, 0.1]\n"upcycle.coefficient" = [0.3, 0.6]\n'
RANGE = '[sweep]\n"local.lr" = {low = 0.01, high = 0.2, log = true}\n"upcycle.coefficient" = [0.3, 0.6]\n'
ERM = '[privacy]\nmechanism = "erm_output"\nnorm_bound = 1.0\nepsilon = 2.0\ndelta = 1e-5\n'
CLIPPED = '[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 2.0\n'


def answer(folder, *words):
    """Return the document that a command prints, run in a folder where nothing else is."""
    printed, said = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict("os.environ", {"UPCYCLED_DATA": str(folder), "COLUMNS": "80"}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
    ):
        code = main([*words, "--json"])
    assert code == 0, f"upcycled {' '.join(words)} ended with {code}: {said.getvalue()}"
    return of_document(printed.getvalue(), folder)


def command(name, *words, tables=SGD, data=""):
    @case(f"cli-{name}")
    def _(folder):
        (folder / "golden.toml").write_text(FILE.format(tables=tables, data=data), encoding="utf-8")
        return answer(folder, *words)


command("run", "run", "golden.toml", "--quiet")
command("run-private", "run", "golden.toml", "--quiet", tables=ERM)
command("run-config", "run", "golden.toml", "local.lr=0.1", "--show-config")
command("compare", "compare", "golden.toml", "--algorithms", "fedavg,fedprox", "--no-longer-step", "--quiet")
command("compare-equal-epsilon", "compare", "golden.toml", "--equal-epsilon", "--no-longer-step", "--quiet", tables=ERM)
command("sweep", "sweep", "golden.toml", "--quiet", tables=SGD + SWEEP, data="validation_fraction = 0.2")
command("sweep-random", "sweep", "golden.toml", "--random", "3", "--quiet", tables=SGD + RANGE,
        data="validation_fraction = 0.2")  # fmt: skip
command("demo", "demo", "--rounds", "2", "--seeds", "2", "--output", "demo")
command("explain-erm", "privacy", "explain", "golden.toml", tables=ERM)
command("explain-clipping", "privacy", "explain", "golden.toml", "--delta", "1e-6", tables=SGD + CLIPPED)
command("audit", "audit", "golden.toml", "engine=sequential", "--replays", "60", tables=SGD + CLIPPED)

GIVEN = {
    "gaussian": "--rounds 40 --sensitivity 0.0893 --noise-std 0.8 --delta 1e-5",
    "paper-output": "--rounds 40 --clip-norm 10 --noise-std 0.8 --n 224 --delta 1e-5",
    "sampled": "--q 0.01 --noise-multiplier 1.1 --steps 100 --delta 1e-5",
}
for formula, given in GIVEN.items():
    command(f"epsilon-{formula}", "privacy", "epsilon", formula, *given.split())

MAKE = ("data", "make", "synthetic", "made.npz", "--alpha", "0.5", "--beta", "0.5", "--clients", "5", "--dim", "3",
        "--samples", "20")  # fmt: skip


@case("cli-data")
def _(folder):
    """What one command writes the next ones read."""
    deal = ("data", "make", "partition", "made.npz", "dealt.npz", "--scheme", "dirichlet", "--clients", "4", "--alpha",
            "0.5")  # fmt: skip
    steps = {
        "make": MAKE,
        "partition": deal,
        "describe": ("data", "describe", "dealt.npz"),
        "check": ("data", "check", "made.npz"),
        "list": ("data", "list"),
    }
    # Real sets that this machine has fetched are none of the folder's.
    with mock.patch.dict("os.environ", {"UPCYCLED_CACHE": str(folder / "cache")}):
        return {f"{name}.json": answer(folder, *words)["json"] for name, words in steps.items()}

"""Experiment files gone wrong: good ones of every kind, with keys and values changed, nested, cut and spliced."""

from __future__ import annotations

import random
from pathlib import Path

from upcycled.config.experiment import load_config
from upcycled.training.plan import make_plan

HEAD = 'name = "f"\niterations = 4\nseeds = [0, 1]\neval_every = 2\n'
DATA = '[data]\nsource = "synthetic"\nalpha = 0.5\nbeta = 0.5\nclients = 4\ndim = 3\nsizes = 20\n'
LOCAL = "[local]\nlr = 0.05\nepochs = 2\nbatch_size = 8\n[clients]\nparticipation = 0.5\n"
ALGORITHMS = {
    "fedavg": "server_lr = 1.0",
    "fedavgm": "server_momentum = 0.5\nnesterov = false",
    "fedprox": "mu = 0.5",
    "scaffold": "",
    "feddyn": 'alpha = 0.1\nweights = "samples"',
    "pfedme": "lam = 5.0\ninner_steps = 2\ninner_lr = 0.1\nbeta = 1.0",
    "fedyogi": "server_lr = 0.1\nbeta1 = 0.9\ntau = 0.001",
    "fedadam": "server_lr = 0.1\nbeta2 = 0.9",
    "fednova": "",
}
PARTS = [
    "",
    "[upcycle]\ncoefficient = 0.7\n",
    '[upcycle]\nkind = "decaying"\ncoefficient = 0.5\n',
    '[upcycle]\nkind = "anderson"\n',
    '[model]\nkind = "mlp"\nhidden = [5, 3]\n',
    '[model]\nkind = "lstm"\nhidden = 4\nvocabulary = 9\n',
    '[loss]\nname = "huber"\ndelta = 1.0\n',
    '[aggregation]\nkind = "trimmed_mean"\ntrim = 0.1\n',
    '[privacy]\nmechanism = "erm_output"\nnorm_bound = 1.0\nepsilon = 2.0\ndelta = 1e-5\n',
    '[privacy]\nmechanism = "update_clipping"\nclip_norm = 1.0\nnoise_std = 0.1\n',
    '[privacy]\nmechanism = "dpsgd"\nclip_norm = 1.0\nnoise_multiplier = 1.0\n',
    '[privacy]\nmechanism = "central_dp_fedavg"\nclip_norm = 1.0\nnoise_multiplier = 1.0\n',
    '[privacy]\nmechanism = "objective_perturbation"\nnorm_bound = 1.0\nepsilon = 20.0\nprox_mu = 0.5\n',
    "[privacy.budget]\nepsilon = 5.0\ndelta = 1e-5\n",
    '[sweep]\n"local.lr" = [0.01, 0.1]\n"local.epochs" = [1, 2]\n',
    '[sweep]\n"local.lr" = { low = 0.01, high = 1.0, log = true }\n',
    'metrics = ["auroc", "f1_macro"]\n',
]
VALUES = [
    *("0", "-1", "1", "2", "-0.0", "0.5", "1.5", "nan", "inf", "-inf", "1e308", "1e-320", "1e30", "-1e-5"),
    *("2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("10000000000000", "1" + "0" * 30, "0x" + "f" * 400, "1" + "0" * 5000),
    *("true", "false", '""', '"x"', '"auto"', '"fedavg"', '"full"', '"iid"', '"1s"', '"1e9s"', '"a:b"', '"os:system"'),
    *(
        '"\\u0000"',
        '"~nobody-there/x"',
        '"../../x"',
        '"/dev/null"',
        '"\\u202e\\u0007"',
        f'"{"界" * 200}"',
        f'"{"a" * 9000}"',
    ),
    *("[]", "[1]", "[0.1, 0.2]", '["a", "a"]', "[[1], [2]]", "{}", "{a = 1}", "{low = 1, high = 0}", "{low = 0.1}"),
    *("1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[" * 60 + "]" * 60, f"[{'1, ' * 3000}]"),
]
KEYS = [
    "lr",
    "name",
    "kind",
    "mechanism",
    "source",
    "path",
    "seeds",
    "epsilon",
    "x",
    '""',
    '"a.b"',
    "local.lr",
    "data.sizes",
]


def text_of(place: int, seed: int) -> bytes:
    """Return the content of the place-th file of a seed."""
    draw = random.Random(f"config {seed} {place}")
    name, options = draw.choice(list(ALGORITHMS.items()))
    parts = [HEAD, DATA, f'[algorithm]\nname = "{name}"\n{options}\n', LOCAL, *draw.sample(PARTS, draw.randrange(4))]
    # Keys above the first table stay there.
    parts.sort(key=lambda part: part.startswith("["))
    lines = "".join(parts).splitlines()
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        _change(lines, draw)
    content = "\n".join(lines).encode()
    return _spliced(content, draw) if draw.random() < 0.1 else content


def _change(lines: list[str], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    key, equals, _ = lines[at].partition(" = ")
    way = draw.random()
    if way < 0.55 and equals:
        lines[at] = f"{key} = {draw.choice(VALUES)}"
    elif way < 0.65:
        del lines[at]
        if not lines:
            lines.append("")
    elif way < 0.75:
        lines.insert(at, f"{draw.choice(KEYS)} = {draw.choice(VALUES)}")
    elif way < 0.82:
        lines.insert(draw.randrange(len(lines)), lines[at])
    elif way < 0.9 and equals:
        letters = list(key)
        letters[draw.randrange(len(letters))] = draw.choice("abcxyz_-. 0")
        lines[at] = f"{''.join(letters)}{equals}{draw.choice(VALUES)}"
    elif way < 0.95:
        lines[at] = draw.choice(
            ["[data]", "[local]", "[privacy]", "[[algorithm]]", "[a.b.c]", "[sweep]", "[sweep.local]"]
        )
    else:
        lines[at] = f"{'.'.join(['a'] * draw.choice([2, 30]))} = 1"


def _spliced(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(changed) + 1)
        changed[at : at + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
    return bytes(changed)


def read(path: Path) -> None:
    """Read a file as far as a command does before it trains."""
    experiment = load_config(path)
    if experiment.data.source == "synthetic":
        make_plan(experiment.build_data(), experiment.spec(experiment.seeds[0]))

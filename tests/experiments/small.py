"""A config file that runs in a blink, and ways to change it."""

from __future__ import annotations

from pathlib import Path

from upcycled.training import RunSpec
from upcycled.training.executor import Job
from upcycled.training.plan import Plan

SMALL = """\
name = "small"
iterations = 4
seeds = [0, 1]

[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 4
dim = 3
sizes = 20

[algorithm]
name = "fedprox"
mu = 0.5

[upcycle]
coefficient = 0.7

[local]
lr = 0.05
epochs = 2
batch_size = 8

[clients]
participation = 0.5
"""


def small_file(folder: Path, *changes: tuple[str, str], text: str = SMALL) -> Path:
    """Write the small file with some of its text replaced."""
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def everything_under(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder with their content, and its folders."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def spec_in(job: Job) -> RunSpec:
    """Return what is to be run of a batch's job, which is a plan where one is there already."""
    return job.spec if isinstance(job, Plan) else job[1]

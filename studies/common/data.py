"""Where the studies find their data, and what they choose settings on."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import upcycled as up

ROOT = Path(__file__).parents[2]
"""The repository."""

SYN = {"iid": "syn_iid", "0,0": "syn_0_0", "0.5,0.5": "syn_0p5_0p5", "1,1": "syn_1_1"}
"""The four official synthetic sets, and their names in the official file."""


def data_folder() -> Path:
    return Path(os.environ.get("UPCYCLED_DATA", ROOT.parent / "shared" / "data"))


@cache
def syn(name: str) -> up.FederatedData:
    return up.data.load(data_folder() / "upcycled_synthetic.npz", name=SYN[name])


def validated(data: up.FederatedData, fraction: float = 0.1) -> up.FederatedData:
    """Return what choices are made on: each client's validation part in the place of its test part, which is gone."""
    held = data.with_validation(fraction, seed=0)
    return replace(held, test=held.validation, validation=None)

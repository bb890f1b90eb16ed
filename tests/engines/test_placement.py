"""Where engines put their tensors: all of a client's work is done on the device that was asked for.

There is no GPU here. Torch's meta device stands in for one: it has shapes and places and no numbers, and refuses to
work on its own tensors together with the processor's. Only the numbers that come back are made up.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import upcycled as up
from tests.conftest import ragged
from upcycled.core.errors import InputError

SIZES = (23, 7, 41, 12)


@pytest.fixture(autouse=True)
def taken_for_a_device(monkeypatch):
    """A device that gives no number back is refused, which would be the end of it here."""
    monkeypatch.setattr("upcycled.engines._check_device", lambda name: None)


@pytest.fixture
def came_back(monkeypatch):
    """Sizes of what was taken back from the device; zeros in its place."""
    found, real = [], torch.Tensor.cpu

    def cpu(tensor):
        if not tensor.is_meta:
            return real(tensor)
        found.append(tuple(tensor.shape))
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    # The vectorised engine tries a module once before it is taken, and compares numbers that are not there.
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: 0.0 if tensor.is_meta else tensor.item())
    monkeypatch.setattr(torch, "allclose", lambda one, other, **near: one.shape == other.shape)
    return found


def train(engine, **changes):
    xs, ys = ragged(sizes=SIZES, features=5, classes=3)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))  # 36 + 21 parameters
    base = {"algorithm": up.FedAvg(), "local": up.LocalSGD(lr=0.1, epochs=2, batch_size=8), "iterations": 1}
    base["model"] = module
    return up.train(data, engine=engine, device="meta", progress=False, **(base | changes))


LOCALS = [
    {},
    {"algorithm": up.Scaffold(), "iterations": 2},
    {"algorithm": up.FedDyn(alpha=0.1), "upcycle": 0.5, "iterations": 3},
    {"algorithm": up.PFedMe(inner_steps=2)},
    {"local": up.LocalAdam(lr=0.01, epochs=1, batch_size=8)},
    {"local": up.LocalSGD(lr=0.1, epochs=1, batch_size=None, momentum=0.5, weight_decay=0.1, max_grad_norm=1.0)},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", LOCALS, ids=lambda changes: "-".join(changes) or "plain")
def test_the_sequential_engine_works_where_it_was_told_to(changes, came_back):
    result = train("sequential", **changes)
    assert result.settings["device"] == "meta"
    rounds = sum(record.kind == "data" for record in result.history)
    each = 2 if isinstance(changes.get("algorithm"), up.PFedMe) else 1  # personal models come back too
    assert came_back == [(57,)] * len(SIZES) * rounds * each


@pytest.mark.slow
@pytest.mark.parametrize("changes", LOCALS, ids=lambda changes: "-".join(changes) or "plain")
def test_the_vectorised_engine_works_where_it_was_told_to(changes, came_back):
    result = train("vectorised", **changes)
    assert result.settings["engine"] == "vectorised"
    rounds = sum(record.kind == "data" for record in result.history)
    each = 2 if isinstance(changes.get("algorithm"), up.PFedMe) else 1
    stacks = [shape for shape in came_back if shape[1:] == (57,)]
    assert sum(lanes for lanes, _ in stacks) == len(SIZES) * rounds * each


def test_engines_without_a_device_say_so():
    with pytest.raises(InputError, match="fused engine"):
        train("fused", model="logistic")
    with pytest.raises(InputError, match=r"DP-SGD.*meta"):
        train("sequential", privacy=up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=1.0))

"""Per-sample gradients: each row has its own bits wherever it stands, and they are the gradients."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from upcycled.core.engine import Task
from upcycled.core.layout import layout_of
from upcycled.core.randomness import keys_within
from upcycled.core.solvers import LocalSGD, NoisySGD
from upcycled.core.vectors import Shards
from upcycled.engines.determinism import one_thread
from upcycled.engines.dpsgd.noisy import add_clipped
from upcycled.engines.dpsgd.per_sample import (
    KeyedDropout,
    Masks,
    keeps_rows_apart,
    kept,
    per_sample_gradients,
    refuses_per_sample,
)


class Words(nn.Module):
    """An embedding, the mean of a sentence, a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(30, 9), nn.Linear(9, 3)

    def forward(self, tokens):
        return self.linear(self.embedding(tokens).mean(dim=1))


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 10)),
    )


def groups():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(216, 10)),
    )


IMAGE, TOKENS = (1, 28, 28), (7,)
MODELS = {
    "linear 20-2": (lambda: nn.Linear(20, 2), (20,), 2),
    "mlp 784-196-10": (lambda: up.models.mlp(IMAGE, 10), IMAGE, 10),
    "mlp of odd widths": (
        lambda: nn.Sequential(nn.Linear(5, 77), nn.Tanh(), nn.Linear(77, 7), nn.Sigmoid(), nn.Linear(7, 3)),
        (5,),
        3,
    ),
    "two convolutions": (convolutions, IMAGE, 10),
    "lstm": (lambda: up.models.lstm(3, vocabulary=30, embedding=8, hidden=5), TOKENS, 3),
    "embedding": (Words, TOKENS, 3),
    "group norm": (groups, IMAGE, 10),
    "layer norm": (lambda: nn.Sequential(nn.Linear(20, 15), nn.LayerNorm(15), nn.GELU(), nn.Linear(15, 3)), (20,), 3),
    "dropout": (lambda: nn.Sequential(nn.Linear(20, 15), nn.Dropout(0.4), nn.ReLU(), nn.Linear(15, 3)), (20,), 3),
}


def task_of(model, shape, classes, batch=12):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = model()
    x, y, _ = samples(shape, classes, 20, 0)
    shards = Shards(x.numpy(), y.numpy(), np.array([0, 20]))
    solver = NoisySGD(LocalSGD(batch_size=batch), 1.0, np.ones(1))
    return Task(module, layout_of(module), classes, shards, None, solver, seed=0, objective=up.losses.CrossEntropy())


def samples(shape, classes, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (rows,), generator=generator)
    keys = keys_within(np.uint64(seed), np.arange(rows))
    if shape == TOKENS:
        return torch.randint(0, 30, (rows, *shape), generator=generator), y, keys
    return torch.randn(rows, *shape, generator=generator), y, keys


def flat_of(task):
    return torch.cat([p.detach().reshape(-1) for p in task.module.parameters() if p.requires_grad])


def bits(gradients):
    return gradients.contiguous().view(torch.int32).numpy()


@pytest.mark.parametrize("name", MODELS)
@one_thread()
def test_a_row_has_the_same_bits_at_any_place_beside_any_others(name):
    model, shape, classes = MODELS[name]
    task = task_of(model, shape, classes)
    way, flat = per_sample_gradients(task), flat_of(task)
    assert way.rows in (1, 24, 32)  # 12 + 1.25 sqrt(12) = 16.3, in eights or in thirty-twos

    def gradients(x, y, keys):
        return torch.cat(list(way.chunks(flat, x, y, keys)))

    x, y, keys = samples(shape, classes, 24, 100)
    alone = np.concatenate([bits(gradients(x[[i]], y[[i]], keys[[i]])) for i in range(24)])
    rng = np.random.default_rng(0)
    for trial in range(12):
        # So many are drawn, in this order, and some are others: what stands before a row says where it stands.
        order = rng.permutation(24)[: rng.integers(1, 25)]
        others = rng.random(order.size) < 0.4
        x2, y2, keys2 = samples(shape, classes, order.size, trial)
        x2[~others], y2[~others] = x[order][~others], y[order][~others]
        found = bits(gradients(x2, y2, np.where(others, keys2, keys[order])))
        np.testing.assert_array_equal(found[~others], alone[order][~others])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "dropout"])
@one_thread()
def test_they_are_the_gradients_that_torch_gives_for_each_sample(name):
    model, shape, classes = MODELS[name]
    task = task_of(model, shape, classes)
    x, y, keys = samples(shape, classes, 5, 3)
    found = torch.cat(list(per_sample_gradients(task).chunks(flat_of(task), x, y, keys)))
    for i in range(5):
        loss = nn.functional.cross_entropy(task.module(x[i : i + 1]), y[i : i + 1])
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(task.module.parameters()))])
        torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-6)


@one_thread()
def test_every_chunk_has_the_one_shape():
    task = task_of(*MODELS["linear 20-2"])
    way, seen = per_sample_gradients(task), []

    def spy(flat, x, y, keys):
        seen.append((len(x), len(y), len(keys)))
        return way.of_chunk(flat, x, y, keys)

    for drawn in (0, 1, way.rows, way.rows + 1):
        list(replace(way, of_chunk=spy).chunks(flat_of(task), *samples((20,), 2, drawn, 0)))
    assert seen == [(way.rows,) * 3] * 4


@pytest.mark.parametrize("place", [0, 5, 23])
@one_thread()
def test_a_way_whose_rows_change_in_the_last_bit_at_one_place_is_not_taken(place):
    task = task_of(*MODELS["linear 20-2"])
    way = per_sample_gradients(task)

    def wrong(flat, x, y, keys):
        found = way.of_chunk(flat, x, y, keys)
        found[place] *= 1 + 2.0**-23
        return found

    assert keeps_rows_apart(way.of_chunk, task, way.rows)
    assert not keeps_rows_apart(wrong, task, way.rows)


@one_thread()
def test_a_way_whose_rows_see_each_other_is_not_taken():
    task = task_of(*MODELS["linear 20-2"])
    way = per_sample_gradients(task)
    assert not keeps_rows_apart(lambda *given: way.of_chunk(*given) + way.of_chunk(*given).abs().sum() * 1e-6, task, 24)


LAYERS = {
    "dropout": (nn.Dropout(0.4), (3, 5), (3, 5)),
    "rows": (nn.Dropout1d(0.4), (1, 6, 4), (1, 6, 1)),
    "rows without a batch": (nn.Dropout1d(0.4), (6, 4), (6, 1)),
    "images": (nn.Dropout2d(0.4), (1, 6, 2, 2), (1, 6, 1, 1)),
    "volumes": (nn.Dropout3d(0.4), (1, 6, 2, 2, 2), (1, 6, 1, 1, 1)),
    "volumes without a batch": (nn.Dropout3d(0.4), (6, 2, 2, 2), (6, 1, 1, 1)),
    "alpha": (nn.AlphaDropout(0.4), (3, 5), (3, 5)),
    "alpha of features": (nn.FeatureAlphaDropout(0.4), (1, 6, 4), (1, 6, 1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_stand_in_does_with_its_mask_what_torch_does_with_its_own(name):
    layer, shape, mask_shape = LAYERS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator)
    masks = Masks()
    stand_in = KeyedDropout(layer.train(), masks)
    both = {}
    for value in (0.0, 1.0):
        masks.begin(given=[torch.full(mask_shape, value)])
        both[value] = stand_in(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        theirs = layer(x)
    is_kept = torch.isclose(theirs, both[1.0], atol=1e-6)
    assert 0 < is_kept.float().mean() < 1
    torch.testing.assert_close(theirs, torch.where(is_kept, both[1.0], both[0.0]))
    # Which numbers share a coin: those that torch keeps or drops together.
    together = is_kept.reshape(*mask_shape[: mask_shape.index(1, 1) if 1 in mask_shape[1:] else len(mask_shape)], -1)
    assert ((together == together[..., :1]).all()) or mask_shape == shape
    assert masks.asked == [(mask_shape, 0.4)]
    masks.begin(5)
    torch.testing.assert_close(stand_in(x), torch.where(kept(np.array([5], np.uint64), 0, mask_shape, 0.4)[0] == 1,
                                                        both[1.0], both[0.0]))  # fmt: skip
    stand_in.eval()
    assert stand_in(x) is x


def test_masks_keep_the_stated_share_and_differ_by_key_and_call():
    keys = keys_within(np.uint64(1), np.arange(100))
    first, second = kept(keys, 0, (500,), 0.3), kept(keys, 1, (500,), 0.3)
    # 50,000 coins of 0.7: sd 0.002; two independent ones agree with 0.58.
    assert abs(first.mean() - 0.7) < 0.011
    assert abs((first == second).float().mean() - 0.58) < 0.012
    assert abs((first[:-1] == first[1:]).float().mean() - 0.58) < 0.012


class Centred(nn.Module):
    """A layer of one's own that mixes the samples of a batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 3)

    def forward(self, x):
        return self.linear(x - x.mean(dim=0))


class CentredInTraining(Centred):
    def forward(self, x):
        return self.linear(x - x.mean(dim=0)) if self.training else self.linear(x)


class TimeFirst(nn.Module):
    """An RNN that takes the batch for time."""

    def __init__(self):
        super().__init__()
        self.rnn, self.linear = nn.RNN(20, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.rnn(x)[0])


class NumpyDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.rng = nn.Linear(20, 3), np.random.default_rng(0)

    def forward(self, x):
        return self.linear(x * torch.from_numpy(self.rng.integers(0, 2, 20).astype(np.float32)))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Centred, r"change.*samples beside"),
        (CentredInTraining, r"change.*samples beside"),
        (TimeFirst, r"change.*samples beside"),
        (NumpyDropout, "not torch.s"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "sequential"])
def test_a_model_whose_samples_are_not_apart_is_refused_in_one_sentence(model, sentence, engine):
    assert re.search(sentence, refuses_per_sample(task_of(model, (20,), 3)))
    data = up.FederatedData.from_arrays([np.ones((9, 20), np.float32)], [np.arange(9) % 3], num_classes=3)
    with pytest.raises(up.InputError, match=sentence):
        up.train(data, algorithm=up.FedAvg(), model=model(), privacy=up.privacy.DPSGD(1.0, 1.0), engine=engine,
                 iterations=1, progress=False)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_whose_samples_are_apart_are_taken(name):
    assert refuses_per_sample(task_of(*MODELS[name])) is None


def test_clipped_sums_are_those_of_exact_arithmetic_and_leave_out_what_is_not_finite():
    each = np.array(
        [[3.0, 4.0], [np.inf, 0.0], [0.3, -0.4], [np.nan, 1.0], [-np.inf, np.inf], [3e38, 3e38]], np.float32
    )
    total = np.zeros(2)
    add_clipped(total, each, 1.0, 2.0**-20, 6)
    # (3, 4)/5, (0.3, -0.4) as they are, and (1, 1)/sqrt(2), each rounded to the grid.
    expected = [[0.6, 0.8], [np.float32(0.3), -np.float32(0.4)], [0.5**0.5, 0.5**0.5]]
    assert total.tolist() == sum(np.rint(np.array(row) * 2**20) for row in expected).tolist()
    for rows in (1, 2, 4):  # in blocks of any size
        again = np.zeros(2)
        for first in range(0, 6, rows):
            add_clipped(again, each[first : first + rows], 1.0, 2.0**-20, rows)
        assert again.tolist() == total.tolist()


def test_no_clipped_gradient_is_longer_than_the_bound():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 1000):
        for _ in range(50):
            total = np.zeros(size)
            add_clipped(total, rng.normal(size=(1, size)).astype(np.float32) * 10, 0.37, 0.0, 3)
            assert sum(float(v) ** 2 for v in total) <= 0.37**2 * (1 + 2.0**-52)

"""Clipped sums from factors: those of plain gradients, for every layer that has some; else another way is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.engines.test_per_sample import MODELS, Centred, flat_of, samples, task_of
from upcycled.core.mechanism import Ask
from upcycled.core.sampling import everybody
from upcycled.core.solvers import NoisySGD, Problem
from upcycled.core.vectors import Shards
from upcycled.engines.determinism import one_thread
from upcycled.engines.dpsgd.factors import Products, Rows, Stored, is_less_stored
from upcycled.engines.dpsgd.ghost import SPREAD, Ghost, _is_right, chunk_factors, noisy_gradients, scales_of
from upcycled.engines.dpsgd.per_sample import PerSample, one_by_one, per_sample_gradients
from upcycled.engines.sequential import open_sequential
from upcycled.privacy.noise.sources import SeededNoise

TOKENS = (7,)


class Sentence(nn.Module):
    """Tokens, some of them again, and a layer on each of them."""

    def __init__(self, padding=None, positions=5):
        super().__init__()
        self.embedding = nn.Embedding(30, 6, padding_idx=padding)
        self.each, self.norm, self.last = nn.Linear(6, positions), nn.LayerNorm(positions), nn.Linear(positions, 3)

    def forward(self, tokens):
        return self.last(self.norm(self.each(self.embedding(tokens % 4))).tanh().mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 16, **settings)
        self.last = nn.Linear(16 * (1 + self.lstm.bidirectional), 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        out, (last, cell) = self.lstm(x if self.lstm.batch_first else x.transpose(0, 1))
        out = out if self.lstm.batch_first else out.transpose(0, 1)
        return self.last(out.mean(dim=1)) + last.sum(dim=(0, 2))[:, None] + cell.square().sum(dim=(0, 2))[:, None]


def images(*layers, width):
    return lambda: nn.Sequential(*(make() for make in layers), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(width, 3))


LAYERS = {
    "convolution": (images(lambda: nn.Conv2d(2, 4, 3, padding=1), lambda: nn.MaxPool2d(2), width=64), (2, 8, 8)),
    "two, the second of many channels": (
        images(lambda: nn.Conv2d(1, 16, 3), lambda: nn.Conv2d(16, 8, 3, padding=(2, 1)), width=8 * 8 * 6),
        (1, 8, 8),
    ),
    "strides and dilation": (
        images(lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), dilation=(1, 2), bias=False), width=4 * 3 * 6),
        (2, 8, 8),
    ),
    "groups": (images(lambda: nn.Conv2d(4, 8, 3, groups=2), width=288), (4, 8, 8)),
    "many channels, few places": (images(lambda: nn.Conv2d(12, 40, 2), width=40), (12, 2, 2)),
    "many channels, four places": (images(lambda: nn.Conv2d(8, 64, 2), width=256), (8, 3, 3)),
    "one dimension": (images(lambda: nn.Conv1d(2, 4, 3, padding=1), width=32), (2, 8)),
    "three dimensions": (images(lambda: nn.Conv3d(1, 2, 2), width=54), (1, 4, 4, 4)),
    "group norm": (images(lambda: nn.Conv2d(2, 6, 3), lambda: nn.GroupNorm(3, 6), width=216), (2, 8, 8)),
    "sentence": (Sentence, TOKENS),
    "sentence, wide": (lambda: Sentence(positions=90), TOKENS),
    "sentence with padding": (lambda: Sentence(padding=2), TOKENS),
    "lstm": (lambda: Recurrent(batch_first=True), TOKENS),
    "lstm both ways": (lambda: Recurrent(num_layers=2, bidirectional=True, bias=False), TOKENS),
}


def gradients_of(task, x, y):
    """One sample after the other, by autograd."""
    module, found = task.module.train(), []
    for i in range(len(y)):
        loss = nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        parts = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
        found.append(torch.cat([part.reshape(-1) for part in parts]).double())
    return torch.stack(found)


def clipped(gradients, norm):
    return (gradients / (gradients.norm(dim=1, keepdim=True) / norm).clamp(min=1)).sum(dim=0)


@pytest.mark.parametrize("name", LAYERS)
@one_thread()
def test_the_clipped_sum_is_that_of_each_samples_gradient(name):
    model, shape = LAYERS[name]
    task = task_of(model, shape, 3)
    x, y, keys = samples(shape, 3, 11, 5)
    gradients = gradients_of(task, x, y)
    way = Ghost(8, task.layout.size, chunk_factors(task, False), "factors")  # two chunks, one of them short
    for norm in (float(gradients.norm(dim=1).median()), 1e6):  # half of them are clipped; none is
        found = torch.from_numpy(way.clipped_sum(flat_of(task), x, y, keys, norm, 11))
        expected = clipped(gradients, norm)
        assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("name", LAYERS)
@one_thread()
def test_squared_lengths_are_those_of_each_samples_gradient(name):
    model, shape = LAYERS[name]
    task = task_of(model, shape, 3)
    x, y, keys = samples(shape, 3, 6, 7)
    layers = chunk_factors(task, False)(flat_of(task), x, y, keys)
    squares, spreads = (sum(parts) for parts in zip(*(layer.squares() for layer in layers), strict=True))
    torch.testing.assert_close(squares, gradients_of(task, x, y).square().sum(dim=1), rtol=1e-5, atol=0)
    assert (spreads >= squares * (1 - 1e-12)).all()


def test_both_ways_of_products_are_among_the_layers():
    kinds = {}
    for name, (model, shape) in LAYERS.items():
        task = task_of(model, shape, 3)
        for layer in chunk_factors(task, False)(flat_of(task), *samples(shape, 3, 4, 0)):
            kinds.setdefault((type(layer), layer.positions > 1), name)
    assert kinds.keys() == {(Stored, False), (Products, False), (Products, True), (Rows, False)}
    assert is_less_stored(196, 32, 400)
    assert not is_less_stored(4, 64, 32)


@one_thread()
def test_dropout_has_the_masks_of_one_sample_at_a_time():
    def model():
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3)),
        )

    task = task_of(model, (1, 8, 8), 3)
    x, y, keys = samples((1, 8, 8), 3, 9, 2)
    expected = one_by_one(task)(flat_of(task), x, y, keys).double()
    way = Ghost(9, task.layout.size, chunk_factors(task, False), "factors")
    found = torch.from_numpy(way.clipped_sum(flat_of(task), x, y, keys, 0.5, 9))
    assert float((found - clipped(expected, 0.5)).norm()) < 1e-5
    others = one_by_one(task)(flat_of(task), x, y, keys + np.uint64(1)).double()
    assert float((found - clipped(others, 0.5)).norm()) > 1e-2


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3), nn.Linear(16, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x[:, None]))[:, 0])


class Again(Shared):
    def forward(self, x):
        return self.last(self.first(self.first(x[:, None]))[:, 0])


class Elsewhere(nn.Module):
    """A weight that a second, plain product uses."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(30, 4), nn.Linear(30, 3)

    def forward(self, tokens):
        return self.last(self.embedding(tokens).mean(dim=1) @ self.embedding.weight.T)


class Positions(nn.Module):
    """A table whose rows all samples share."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(30, 4), nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.last((self.words(tokens) + self.places(torch.arange(7))).tanh().mean(dim=1))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.conv, self.last = nn.Parameter(torch.ones(1)), nn.Conv1d(1, 1, 3), nn.Linear(18, 3)

    def forward(self, x):
        return self.last(self.conv(self.scale * x[:, None])[:, 0])


class Deciding(nn.Module):
    """Looks at a number to decide on its way: one that no random input reaches."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(1, 1, 3), nn.Linear(18, 3)

    def forward(self, x):
        out = self.last(self.conv(x[:, None])[:, 0])
        return -out if float(x.detach().max()) > 1e6 else out


class InPlace(nn.Module):
    """Changes a layer's output where nobody can see it."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(1, 1, 3), nn.Linear(18, 3)

    def forward(self, x):
        return self.last(self.conv(x[:, None])[:, 0].sigmoid_())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Shared, (20,)),
        (Again, (20,)),
        (Elsewhere, TOKENS),
        (Positions, TOKENS),
        (Scaled, (20,)),
        (Deciding, (20,)),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding_mode="circular", padding=1), nn.Flatten(), nn.Linear(24, 3)),
         (2, 8)),
        (lambda: nn.Linear(20, 3), (20,)),
    ],
    ids=["shared", "called again", "used elsewhere", "positions", "own parameter", "deciding", "circular", "linear"],
)  # fmt: skip
@one_thread()
def test_models_whose_gradients_have_no_such_factors_are_done_another_way(model, shape):
    (way,) = noisy_gradients(task_of(model, shape, 3), 2)
    assert isinstance(way, PerSample)


@one_thread()
def test_an_output_that_is_changed_in_place_still_has_the_right_gradients():
    task = task_of(InPlace, (20,), 3)
    way, *_ = noisy_gradients(task, 1)
    x, y, keys = samples((20,), 3, 5, 1)
    if isinstance(way, Ghost):
        found = torch.from_numpy(way.clipped_sum(flat_of(task), x, y, keys, 1e6, 5))
    else:
        found = torch.cat(list(way.chunks(flat_of(task), x, y, keys))).double().sum(dim=0)
    torch.testing.assert_close(found, gradients_of(task, x, y).sum(dim=0), rtol=1e-4, atol=1e-5)


def bits_of(way, flat, x, y, keys):
    layers = way.of_chunk(flat, x, y, keys)
    parts = [part.reshape(len(y), -1) for layer in layers for part in layer.bits()]
    parts += [part[:, None].view(torch.float32) for layer in layers for part in layer.squares()]
    return torch.cat(parts, dim=1).contiguous().view(torch.int32).numpy()


@one_thread()
def test_a_row_has_the_same_bits_at_any_place_beside_any_others():
    model, shape, classes = MODELS["two convolutions"]
    task = task_of(model, shape, classes)
    way, *_ = noisy_gradients(task, 1)
    assert isinstance(way, Ghost), way.way
    x, y, keys = samples(shape, classes, way.rows, 100)
    expected = bits_of(way, flat_of(task), x, y, keys)
    rng = np.random.default_rng(0)
    for trial in range(8):
        order, others = rng.permutation(way.rows), rng.random(way.rows) < 0.4
        x2, y2, keys2 = samples(shape, classes, way.rows, trial)
        x2[trial % way.rows] = torch.inf if trial % 2 else torch.nan
        x2[~others], y2[~others] = x[order][~others], y[order][~others]
        found = bits_of(way, flat_of(task), x2, y2, np.where(others, keys2, keys[order]))
        np.testing.assert_array_equal(found[~others], expected[order][~others])


@one_thread()
def test_factors_whose_rows_see_each_other_or_are_not_the_gradients_are_not_taken():
    task = task_of(*MODELS["two convolutions"])
    way, *_ = noisy_gradients(task, 1)

    def moved(place, by):
        def of_chunk(*given):
            layers = way.of_chunk(*given)
            (_, part), *_ = layers[0].parts
            part[place] *= 1 + by
            return layers

        return of_chunk

    assert _is_right(way.of_chunk, task, way.rows)
    assert not _is_right(moved(5, 2.0**-23), task, way.rows)  # the last bit, at one place
    assert not _is_right(moved(slice(None), 1e-2), task, way.rows)  # everywhere alike, but another gradient
    sizes = np.array([0, 2**40])  # so many that the sum would round
    assert not _is_right(way.of_chunk, replace(task, train=replace_sizes(task.train, sizes)), way.rows)


def replace_sizes(shards, offsets):
    return Shards(np.broadcast_to(shards.x[:1], (int(offsets[-1]), *shards.x.shape[1:])),
                  np.broadcast_to(shards.y[:1], (int(offsets[-1]),)), offsets)  # fmt: skip


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
@one_thread()
def test_a_sample_that_is_not_finite_counts_as_zero(bad):
    model, shape = LAYERS["convolution"]
    task = task_of(model, shape, 3)
    way = Ghost(8, task.layout.size, chunk_factors(task, False), "factors")
    x, y, keys = samples(shape, 3, 6, 3)
    x[2] = bad
    rest = [0, 1, 3, 4, 5]
    found = way.clipped_sum(flat_of(task), x, y, keys, 0.5, 6)
    expected = way.clipped_sum(flat_of(task), x[rest], y[rest], keys[rest], 0.5, 6)
    # Not every processor's convolution gives a row the same bits at another place; no model is then done so.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_no_sample_is_longer_than_the_bound_and_parts_that_cancel_are_bounded_too():
    generator = torch.Generator().manual_seed(0)
    deltas, inputs = (torch.randn(4, 6, width, generator=generator) for width in (9, 50))
    # The second row: three pairs of positions that cancel up to the last bits.
    deltas[1, 3:], inputs[1, 3:] = -deltas[1, :3], inputs[1, :3] * (1 + 2.0**-20)
    deltas[2] *= 1e-6  # far below the bound
    layer = Products(deltas, inputs, ((slice(0, 450), 50),))
    exact = torch.einsum("rto,rti->roi", deltas.double(), inputs.double()).flatten(1)
    squares, lengths = layer.squares()
    torch.testing.assert_close(squares[[0, 2, 3]], exact.square().sum(dim=1)[[0, 2, 3]], rtol=1e-12, atol=0)
    spread = (deltas.double().norm(dim=2) * inputs.double().norm(dim=2)).sum(dim=1)
    torch.testing.assert_close(lengths.sqrt(), spread, rtol=1e-12, atol=0)
    for clip in (1e-4, 0.7):
        scales = scales_of([layer], 450, clip, 1000)
        assert (exact.norm(dim=1) * scales <= clip).all()
        assert (spread * scales <= SPREAD * clip * (1 + 1e-12)).all()
        assert scales[2] == 1 or clip < 1e-3
        # As long as the bound allows, but for what rounding may take; the one that cancels is shorter.
        assert (exact.norm(dim=1) * scales)[[0, 3]].min() > clip * (1 - 1e-6)
    assert float(scales_of([layer], 450, 1e-4, 1000)[1]) == pytest.approx(SPREAD * 1e-4 / float(spread[1]))


def rounds_of(task, threads, lanes=None):
    engine = open_sequential(task, threads)
    engine = engine if lanes is None else replace(engine, lanes=lanes)
    clients = task.train.sizes.size
    try:
        work = Ask(1, 1, 0, everybody(clients), flat_of(task).numpy(), Problem())
        return engine.train(work, SeededNoise(3, 1)).vectors
    finally:
        engine.close()


def federation(clients=3):
    task = task_of(LAYERS["convolution"][0], (2, 8, 8), 3)
    x, y, _ = samples((2, 8, 8), 3, 20 * clients, 0)
    solver = NoisySGD(up.LocalSGD(lr=0.1, batch_size=6), 0.5, np.full(clients, 0.2))
    return replace(task, train=Shards(x.numpy(), y.numpy(), 20 * np.arange(clients + 1)), solver=solver)


def test_a_round_is_that_of_plain_gradients_up_to_rounding():
    task = federation()
    with one_thread():
        lanes = [per_sample_gradients(task)]
        assert isinstance(noisy_gradients(task, 1)[0], Ghost)
    np.testing.assert_allclose(rounds_of(task, 1), rounds_of(task, 1, lanes), rtol=0, atol=1e-5)


def test_threads_change_no_bits():
    task = federation()
    alone = rounds_of(task, 1)
    for threads in (2, 3):
        assert rounds_of(task, threads).tobytes() == alone.tobytes()


def test_a_model_that_mixes_samples_is_refused_as_before():
    data = up.FederatedData.from_arrays([np.ones((9, 20), np.float32)], [np.arange(9) % 3], num_classes=3)
    with pytest.raises(up.InputError, match=r"change.*samples beside"):
        up.train(data, algorithm=up.FedAvg(), model=Centred(), privacy=up.privacy.DPSGD(1.0, 1.0), iterations=1,
                 progress=False)  # fmt: skip

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from upcycled.core.layout import assign, flatten, layout_of
from upcycled.losses import CrossEntropy
from upcycled.models.prepare import prepare_model


def test_logistic_is_a_linear_map_to_logits():
    module = up.models.logistic((3,), 2, seed=1)
    x = torch.randn(4, 3)
    assert torch.allclose(module(x), x @ module.weight.T + module.bias)


def test_images_are_flattened():
    assert up.models.logistic((4, 5), 3)(torch.zeros(2, 4, 5)).shape == (2, 3)
    assert up.models.mlp((4, 5), 3, hidden=[7, 6])(torch.zeros(2, 4, 5)).shape == (2, 3)


def test_the_papers_mlp_has_155_800_parameters():
    # 784 * 196 + 196 + 196 * 10 + 10 = 155,830.
    assert layout_of(up.models.mlp((28, 28), 10)).size == 155_830


def test_fixed_word_vectors_are_not_trained():
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    module = up.models.lstm(2, vectors=vectors, hidden=3)
    assert "embedding.weight" not in layout_of(module).names
    assert torch.equal(module.embedding.weight, torch.from_numpy(vectors))


def test_the_lstm_reads_both_ways():
    """Its logits equal those of two one-way LSTMs with the same weights, one on the reversed text."""
    module = up.models.lstm(2, vocabulary=9, embedding=4, hidden=3, seed=2)
    tokens = torch.tensor([[1, 5, 2, 8], [3, 3, 0, 1]])
    embedded = module.embedding(tokens)
    last = []
    for suffix, sequence in (("", embedded), ("_reverse", embedded.flip(1))):
        one_way = nn.LSTM(4, 3, batch_first=True)
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            getattr(one_way, name).data = getattr(module.lstm, name + suffix).data
        last.append(one_way(sequence)[1][0][0])
    assert torch.allclose(module(tokens), module.output(torch.cat(last, 1)), atol=1e-6)


def test_weights_depend_on_the_seed_alone_and_the_global_generator_is_untouched():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = flatten(up.models.mlp((5,), 3, hidden=[4], seed=7))
    torch.manual_seed(1)
    assert np.array_equal(one, flatten(up.models.mlp((5,), 3, hidden=[4], seed=7)))
    assert not np.array_equal(one, flatten(up.models.mlp((5,), 3, hidden=[4], seed=8)))
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())


def test_weights_have_the_distribution_of_torchs_default():
    # Uniform within b = 1/sqrt(784): sd b/sqrt(3); the sample sd of 153,664 weights is within 1 % of it.
    weight = up.models.mlp((784,), 10).get_parameter("0.weight").detach().numpy()
    bound = 1 / 28
    assert np.abs(weight).max() <= bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert abs(weight.mean()) < 5 * bound / 3**0.5 / weight.size**0.5


def test_flatten_and_assign_are_inverse():
    module, other = up.models.mlp((5,), 3, hidden=[4], seed=1), up.models.mlp((5,), 3, hidden=[4], seed=2)
    assign(other, flatten(module))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_tied_weights_are_counted_once():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    assert layout_of(module).size == 16 + 4 + 4
    assign(module, np.arange(24, dtype=np.float32))
    assert module[1].weight[0, 1] == 1.0


def tokens(options):
    """A named lstm for token ids 0 to 5, the highest not among the samples that are tried first."""
    data = up.FederatedData.from_arrays([np.array([[0, 1], [2, 3], [4, 5]])], [[0, 1, 0]])
    return prepare_model("lstm", data.facts(counts_tokens=True), CrossEntropy(), 0, options, data.train.x[:2])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: up.models.mlp((5,), 3, hidden=[]), "model hidden"),
        (lambda: up.models.mlp((5,), 3, hidden=[0]), r"model hidden.*0"),
        (lambda: up.models.lstm(2), r"model vocabulary.*missing"),
        (lambda: up.models.lstm(2, vocabulary=5, dropout=1.0), r"model dropout.*1\.0"),
        (lambda: up.models.lstm(2, vectors=np.zeros(5)), r"model vectors.*shape \(5,\)"),
        (lambda: tokens({"hiden": 3}), r"'lstm'.*did you mean 'hidden'\?"),
        (lambda: tokens({"vocabulary": 5}), r"data.*\bid\b 5.*6"),
        (lambda: tokens({"vectors": np.zeros((5, 2))}), r"data.*\bid\b 5.*6"),
    ],
)
def test_a_wrong_option_is_named(make, words):
    with pytest.raises(up.InputError) as error:
        make()
    assert re.search(words, str(error.value))

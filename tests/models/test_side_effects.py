"""Models that change outside of their gradients are rejected by every mechanism, before any work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import upcycled as up
from tests.privacy.runs import QUIET
from upcycled.models.linear import linear_layer
from upcycled.privacy import DPSGD, BoltOnSGD, CentralDPFedAvg, ModelClipping, UpdateClipping

TOKENS = 12
MECHANISMS = {
    "dpsgd": DPSGD(clip_norm=1.0, noise_multiplier=8.0),
    "update_clipping": UpdateClipping(clip_norm=1.0, noise_std=1.0),
    "model_clipping": ModelClipping(clip_norm=1.0, noise_std=1.0),
    "central": CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0),
}


class Bag(nn.Module):
    """The mean of a sample's embedded tokens, and a linear layer."""

    def __init__(self, kind=nn.Embedding, **options):
        super().__init__()
        self.table, self.out = kind(TOKENS, 4, **options), nn.Linear(4, 2)

    def forward(self, x):
        found = self.table(x)
        return self.out(found if isinstance(self.table, nn.EmbeddingBag) else found.mean(dim=1))


class Functional(Bag):
    """The same with a norm that no attribute shows, and that ordinary weights do not reach."""

    def forward(self, x):
        return self.out(nn.functional.embedding(x, self.table.weight, max_norm=20.0).mean(dim=1))


class Writing(nn.Module):
    """A linear model that does something to itself in each forward pass."""

    def __init__(self, write, training_only=False):
        super().__init__()
        self.linear, self.write, self.training_only = nn.Linear(6, 2), write, training_only
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.kept = torch.zeros(6)

    def forward(self, x):
        if self.training or not self.training_only:
            with torch.no_grad():
                self.write(self, x)
        return self.linear(x + self.kept)


class SpectralColumn(nn.Module):
    """Spectral norm of one row, whose power iteration has converged: only other weights move its buffers."""

    def __init__(self):
        super().__init__()
        self.row = nn.utils.spectral_norm(nn.Linear(6, 1))
        self.out = nn.Linear(1, 2)
        with torch.no_grad():
            for _ in range(3):
                self.row(torch.zeros(1, 6))

    def forward(self, x):
        return self.out(self.row(x))


def _mean_into_buffer(model, x):
    model.seen += x.mean(dim=0)


def _new_buffer(model, x):
    model.seen = x[0].clone()


def _hidden_buffer(model, x):
    model.hidden += x.abs().max() > 3


def _clamp(model, x):
    model.linear.weight.clamp_(-100.0, 100.0)


def _attribute(model, x):
    model.kept = 0.9 * model.kept + 0.1 * x.mean(dim=0)


WRITING = {
    "a buffer": (_mean_into_buffer, "'seen' changed"),
    "a buffer that is replaced": (_new_buffer, "'seen' changed"),
    "a buffer that is not saved": (_hidden_buffer, "'hidden' changed"),
    "large weights": (_clamp, "'linear.weight' changed"),
    "a plain attribute": (_attribute, "outputs for the same samples changed"),
}


def tokens():
    rng = np.random.default_rng(0)
    xs, ys = ([rng.integers(0, most, size) for _ in range(2)] for most, size in ((TOKENS, (10, 5)), (2, 10)))
    return up.FederatedData.from_arrays(xs, ys, num_classes=2, vocabulary=TOKENS)


def numbers():
    rng = np.random.default_rng(0)
    xs = [0.1 * rng.normal(size=(10, 6)).astype(np.float32) for _ in range(2)]
    return up.FederatedData.from_arrays(xs, [rng.integers(0, 2, 10) for _ in xs], num_classes=2)


def run(data, model, privacy, **options):
    options = {"local": up.LocalSGD(lr=0.1, batch_size=4), "algorithm": up.FedAvg()} | options
    return up.train(data, model=model, privacy=privacy, iterations=1, **QUIET, **options)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_embedding_with_max_norm_is_rejected(kind, mechanism):
    with pytest.raises(up.InputError, match=rf"'table' \({kind.__name__}\).*max_norm=20, .*expected max_norm=None"):
        run(tokens(), Bag(kind, max_norm=20.0), MECHANISMS[mechanism])


def test_frozen_rows_with_max_norm_are_rejected():
    model = Bag(max_norm=0.5)
    model.table.weight.requires_grad_(False)
    with pytest.raises(up.InputError, match=r"max_norm=0\.5"):
        run(tokens(), model, MECHANISMS["update_clipping"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_norm_that_only_large_weights_reach_is_rejected(mechanism):
    with pytest.raises(up.InputError, match=r"model: 'table\.weight' changed"):
        run(tokens(), Functional(), MECHANISMS[mechanism])


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse"])
def test_dpsgd_rejects_gradients_that_are_not_a_samples_own_or_not_dense(kind, option):
    options = {"mode": "sum"} if kind is nn.EmbeddingBag else {}
    model = Bag(kind, **{option: True}, **options)
    with pytest.raises(up.InputError, match=rf"{option}=True.*expected {option}=False.*DPSGD"):
        run(tokens(), model, MECHANISMS["dpsgd"])
    run(tokens(), model, MECHANISMS["update_clipping"])


@pytest.mark.parametrize("training_only", [False, True])
@pytest.mark.parametrize("case", WRITING)
@pytest.mark.parametrize("mechanism", ["dpsgd", "central"])
def test_a_model_that_writes_into_itself_is_rejected(mechanism, case, training_only):
    write, message = WRITING[case]
    with pytest.raises(up.InputError, match=f"model: {message}|model buffer"):
        run(numbers(), Writing(write, training_only), MECHANISMS[mechanism])


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 3)), nn.Linear(3, 2)),
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 3)), nn.Linear(3, 2)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
        ),
        SpectralColumn,
    ],
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_buffers_that_change_in_training_are_rejected(mechanism, make):
    with pytest.raises(up.InputError, match=r"weight_v|_u'|running_mean|weight_u"):
        run(numbers(), make(), MECHANISMS[mechanism])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_weight_norm_that_is_a_parametrisation_trains(mechanism):
    run(numbers(), nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3)), nn.Linear(3, 2)), MECHANISMS[mechanism])


@pytest.mark.parametrize("privacy", [None, MECHANISMS["dpsgd"]])
def test_a_module_that_cannot_be_copied_is_rejected_with_the_other_weight_norm(privacy):
    with pytest.warns(FutureWarning, match="deprecated"):
        model = nn.utils.weight_norm(nn.Linear(6, 2))
    with pytest.raises(up.InputError, match=r"copied.*use torch\.nn\.utils\.parametrizations\.weight_norm"):
        run(numbers(), model, privacy)


def test_a_model_that_rejects_random_samples_trains():
    """Made-up samples of ones are enough: a model may reject values that no data have."""

    class Careful(nn.Linear):
        def forward(self, x):
            if x.abs().max() > 1.5:
                raise ValueError("features are scaled to 1")
            return super().forward(x)

    run(numbers(), Careful(6, 2), MECHANISMS["update_clipping"])


def test_the_callers_generator_and_model_stay_as_they_were():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    torch.manual_seed(3)
    before, weights = torch.get_rng_state(), [p.detach().clone() for p in model.parameters()]
    run(numbers(), model, MECHANISMS["update_clipping"])
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))


class Doubled(nn.Identity):
    def forward(self, x):
        return 2 * x


class Cubed(nn.Sequential):
    def forward(self, x):
        return super().forward(x) ** 3


def _hooked():
    layer = nn.Linear(6, 2)
    layer.register_forward_hook(lambda module, given, out: out**3)
    return layer


def _replaced():
    layer = nn.Linear(6, 2)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight) ** 3
    return layer


@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(Doubled(), nn.Linear(6, 2)), lambda: Cubed(nn.Linear(6, 2)), _hooked, _replaced]
)
def test_a_linear_layer_with_other_code_around_it_has_no_proof_of_convexity(make):
    """The noise of bolt-on SGD follows from the constants of a linear model's loss, which are not such a model's."""
    assert linear_layer(make()) is None
    with pytest.raises(up.InputError, match="BoltOnSGD"):
        run(numbers(), make(), BoltOnSGD(1.0, noise_std=1.0), algorithm=up.FedProx(0.5))


def test_without_the_check_max_norm_moves_the_release_far_beyond_its_sensitivity(monkeypatch):
    """Two worlds that differ in one token of one record, with the same noise: the release may move by 2 lr C / n."""
    monkeypatch.setattr("upcycled.training.plan.check_private_model", lambda *arguments, **options: None)
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, TOKENS, size=(30, 5)), rng.integers(0, 2, 30)
    local = up.LocalSGD(lr=0.1, batch_size=None)

    def moved(max_norm):
        torch.manual_seed(0)
        model, released = Bag(max_norm=max_norm), []
        with torch.no_grad():
            model.table.weight.mul_(10)
        for token in (0, 1):
            x[0, 0] = token
            data = up.FederatedData.from_arrays([x.copy()], [y], num_classes=2, vocabulary=TOKENS)
            result = run(data, model, MECHANISMS["dpsgd"], local=local)
            released.append(torch.cat([p.detach().flatten() for p in result.model.parameters()]))
        return float((released[0] - released[1]).norm())

    allowed = 2 * 0.1 * 1.0 / 30
    assert moved(None) <= allowed
    assert moved(0.5) > 2000 * allowed

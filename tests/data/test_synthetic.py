import numpy as np
import pytest
from scipy.optimize import linprog

from upcycled.core.errors import InputError
from upcycled.data import load, synthetic


def whole(data):
    """The samples of every client, test part joined on."""
    for i in range(data.num_clients):
        x, y = data.train.client(i)
        tx, ty = data.test.client(i) if data.test is not None else (x[:0], y[:0])
        yield np.concatenate([x, tx]), np.concatenate([y, ty])


def test_features_have_the_published_variances():
    # iid: x ~ N(0, diag(j^-1.2)); 60,000 samples, so a variance is known to sqrt(2/60000) = 0.6 %
    x = synthetic("iid", clients=30, sizes=2000, dim=6, test_fraction=0).train.x
    assert x.var(axis=0) == pytest.approx(np.arange(1, 7) ** -1.2, rel=0.03)
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(len(x))


def test_beta_is_a_standard_deviation_of_the_clients_centers():
    # A client's mean feature is B_k plus the mean of dim draws N(0, 1): variance beta^2 + 1/dim = 4 + 0.01.
    data = synthetic(0.0, 2.0, clients=1500, sizes=30, dim=100, test_fraction=0)
    centers = data.train.x.reshape(1500, 30, 100).mean(axis=(1, 2))
    assert centers.std() == pytest.approx(np.sqrt(4.01), rel=0.08)  # 1/sqrt(3000) = 1.8 %
    # and beta = 0 leaves the N(0, 1) of v_k: 1/dim, plus Sigma's share of far below 1/100 of it
    centers = synthetic(0.0, 0.0, clients=1500, sizes=30, dim=100, test_fraction=0).train.x.reshape(1500, 3000)
    assert centers.mean(axis=1).std() == pytest.approx(0.1, rel=0.08)


def test_labels_of_a_client_come_from_one_linear_model():
    # Labels are the argmax of a linear map, so a plane separates a client's two classes; no plane separates
    # those of four clients with models of their own.
    data = synthetic(1.0, 1.0, clients=4, sizes=60, dim=5, seed=1, test_fraction=0)
    for x, y in whole(data):
        assert separable(x, y)
    assert not separable(data.train.x, data.train.y)


def test_iid_clients_share_one_linear_model():
    data = synthetic("iid", clients=4, sizes=60, dim=5, seed=1, test_fraction=0)
    assert len(np.unique(data.train.y)) == 2
    assert separable(data.train.x, data.train.y)


def separable(x, y):
    """Is there a plane with class 1 on one side and class 0 on the other?"""
    sides = np.hstack([x, np.ones((len(x), 1))]) * np.where(y == 1, 1.0, -1.0)[:, None]
    free = [(None, None)] * sides.shape[1]
    return linprog(np.zeros(sides.shape[1]), A_ub=-sides, b_ub=-np.ones(len(x)), bounds=free).status == 0


def test_alpha_moves_all_logits_alike_and_so_no_label():
    a, b = synthetic(0.0, 1.0, num_classes=4, seed=3), synthetic(50.0, 1.0, num_classes=4, seed=3)
    assert np.array_equal(a.train.x, b.train.x)
    assert np.array_equal(a.train.y, b.train.y)


def test_weights_and_biases_have_the_same_variance():
    # Two samples of a client meet the same normal (w, b): their logit differences w x + b have correlation
    # r = (x x' + 1) / sqrt((x^2 + 1) (x'^2 + 1)), so the labels are the same with chance 1 - arccos(r) / pi.
    data = synthetic(1.0, 1.0, clients=10_000, sizes=2, dim=1, test_fraction=0)
    x, y = data.train.x.astype(np.float64).reshape(-1, 2), data.train.y.reshape(-1, 2)
    r = (x[:, 0] * x[:, 1] + 1) / np.sqrt((x[:, 0] ** 2 + 1) * (x[:, 1] ** 2 + 1))
    expected = np.mean(1 - np.arccos(np.clip(r, -1, 1)) / np.pi)
    same = np.mean(y[:, 0] == y[:, 1])
    assert same == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(10_000))


def test_default_sizes_look_like_the_published_ones(shared_data):
    published = np.concatenate(
        [
            (d := load(shared_data / "upcycled_synthetic.npz", name=name)).sizes + d.test.sizes
            for name in ("syn_iid", "syn_0_0", "syn_0p5_0p5", "syn_1_1")
        ]
    )
    drawn = synthetic("iid", clients=4000, dim=1)
    sizes = drawn.sizes + drawn.test.sizes
    assert (sizes.min(), sizes.max()) == (published.min(), published.max()) == (50, 3104)
    assert sizes.mean() == pytest.approx(published.mean(), rel=0.1)
    assert sizes.std() == pytest.approx(published.std(), rel=0.15)
    assert np.median(sizes) == pytest.approx(np.median(published), rel=0.2)


def test_default_sizes_are_a_shifted_lognormal_with_a_limit():
    # 50 + exp(4 + 2 z): a quarter of the clients is below 50 + exp(4 - 2 * 0.6745) = 64, half below 50 + exp(4) = 105,
    # a quarter above 50 + exp(4 + 2 * 0.6745) = 260, and 2.2 % at the limit: P(z > (log 3054 - 4) / 2 = 2.01).
    drawn = synthetic("iid", clients=4000, dim=1)
    sizes = drawn.sizes + drawn.test.sizes
    assert np.quantile(sizes, [0.25, 0.5, 0.75]) == pytest.approx([64, 105, 260], rel=0.08)
    assert np.mean(sizes == 3104) == pytest.approx(0.022, abs=0.009)


def test_sizes_can_be_given_and_include_the_test_part():
    data = synthetic(0.5, 0.5, clients=3, sizes=[10, 1, 25], test_fraction=0.2)
    assert data.sizes.tolist() == [8, 1, 20]
    assert data.test.sizes.tolist() == [2, 0, 5]
    assert synthetic("iid", clients=2, sizes=np.int64(7), test_fraction=0).sizes.tolist() == [7, 7]


def test_arguments_shape_the_data():
    data = synthetic(0.5, 0.5, clients=7, dim=3, num_classes=5)
    assert (data.num_clients, data.feature_shape, data.num_classes) == (7, (3,), 5)
    assert data.train.y.max() < 5
    assert data.train.x.dtype == np.float32


def test_the_number_of_classes_is_kept_even_when_one_never_comes():
    assert synthetic("iid", clients=1, sizes=2, num_classes=50, test_fraction=0).num_classes == 50


def test_the_seed_decides_and_no_global_generator_is_touched():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (synthetic(0.5, 0.5, clients=3, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.train.x, again.train.x)
    assert np.array_equal(first.test.y, again.test.y)
    assert not np.array_equal(first.train.x[:40], other.train.x[:40])
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("args", "options", "sentence"),
    [
        (("idd",), {}, r"alpha.*'idd'.*>= 0.*'iid'"),
        (("iid", 0.5), {}, r"beta.*0.5.*alpha.*'iid'"),
        ((0.5,), {}, r"beta.*None.*>= 0.*alpha.*0.5.*synthetic\(0.5, 0.5\)"),
        ((-1.0, 0.5), {}, r"alpha.*-1.0.*>= 0"),
        ((0.5, float("nan")), {}, r"beta.*nan.*>= 0"),
        ((1, 1), {"clients": 0}, r"clients.*0.*integer >= 1"),
        ((1, 1), {"dim": 0}, r"dim.*0.*integer >= 1"),
        ((1, 1), {"num_classes": 1}, r"num_classes.*1.*integer >= 2"),
        ((1, 1), {"sizes": 0}, r"sizes.*0.*integer >= 1"),
        ((1, 1), {"sizes": [3, 3]}, r"sizes.*2.*clients.*30"),
        ((1, 1), {"clients": 2, "sizes": [3, 2.5]}, r"sizes\[1\].*2.5.*integer >= 1"),
        ((1, 1), {"test_fraction": 1}, r"test_fraction.*1.*>= 0.*1"),
        ((1, 1), {"seed": -1}, r"seed.*-1.*integer >= 0"),
    ],
)
def test_a_mistake_is_answered_by_its_sentence(args, options, sentence):
    with pytest.raises(InputError, match=sentence):
        synthetic(*args, **options)

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.data import FederatedData, load, save, synthetic

ROWS = {
    "train_x": np.array([[1.0], [2.0], [3.0], [4.0]]),
    "train_y": np.array([0, 1, 1, 0], dtype=np.int8),
    "train_client": np.array([7, 3, 7, 3], dtype=np.int16),
}
TEST = {"test_x": np.array([[5.0], [6.0]]), "test_y": np.array([1, 0]), "test_client": np.array([7, 7])}


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def message(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def same(a: FederatedData, b: FederatedData) -> bool:
    for part in ("train", "test", "validation"):
        ours, theirs = getattr(a, part), getattr(b, part)
        if (ours is None) != (theirs is None):
            return False
        if ours is not None and not all(
            np.array_equal(getattr(ours, f), getattr(theirs, f)) and getattr(ours, f).dtype == getattr(theirs, f).dtype
            for f in ("x", "y", "offsets")
        ):
            return False
    ids = (a.client_ids is None) == (b.client_ids is None) and (
        a.client_ids is None or np.array_equal(a.client_ids, b.client_ids)
    )
    names = ("num_classes", "client_names", "feature_names", "label_names")
    return ids and all(getattr(a, name) == getattr(b, name) for name in names)


def test_rows_are_sorted_by_client_and_keep_their_order(tmp_path):
    data = load(write(tmp_path / "a.npz", **ROWS, **TEST))
    assert data.train.x[:, 0].tolist() == [2, 4, 1, 3]
    assert data.train.y.tolist() == [1, 0, 0, 1]
    assert data.train.offsets.tolist() == [0, 2, 4]
    assert data.test is not None
    assert data.test.offsets.tolist() == [0, 0, 2]
    assert [data.name_of(i) for i in range(2)] == ["3", "7"]
    assert data.client_names is None
    assert data.train.x.dtype == np.float32


def test_clients_counted_from_zero_need_no_ids(tmp_path):
    data = load(write(tmp_path / "a.npz", **(ROWS | {"train_client": np.array([1, 0, 1, 0])})))
    assert data.client_ids is None


def test_clients_may_have_names(tmp_path):
    data = load(write(tmp_path / "a.npz", **(ROWS | {"train_client": np.array(["bob", "ann", "bob", "ann"])})))
    assert data.client_names == ("ann", "bob")
    assert data.train.x[:, 0].tolist() == [2, 4, 1, 3]


def test_bytes_of_images_become_fractions_of_255(tmp_path):
    image = np.array([0, 51, 255, 128], dtype=np.uint8).reshape(4, 1, 1)
    data = load(write(tmp_path / "a.npz", **(ROWS | {"train_x": image, "train_client": np.zeros(4, int)})))
    assert data.train.x.dtype == np.float32
    assert data.train.x.ravel().tolist() == [np.float32(v) for v in (0, 0.2, 1, 128 / 255)]
    assert data.feature_shape == (1, 1)


def test_other_integers_stay_integers(tmp_path):
    data = load(write(tmp_path / "a.npz", **(ROWS | {"train_x": np.ones((4, 2), dtype=np.int32)})))
    assert data.train.x.dtype == np.int64


def test_another_column_can_say_who_the_client_is_or_what_the_label(tmp_path):
    more = {"train_user": np.array([0, 0, 0, 1]), "train_mood": np.array([2, 2, 0, 1])}
    path = write(tmp_path / "a.npz", **ROWS, **more)
    assert load(path, client="user").sizes.tolist() == [3, 1]
    assert load(path, label="mood").train.y.tolist() == [2, 1, 2, 0]
    assert has_all(
        message(lambda: load(path, client="usr")), path, "array train_usr", "did you mean 'user'?", "client", "user"
    )


def test_a_set_is_picked_by_name(tmp_path):
    named = {f"a_{k}": v for k, v in ROWS.items()} | {f"a_b_{k}": v for k, v in (ROWS | TEST).items()}
    path = write(tmp_path / "s.npz", **named)
    assert load(path, name="a").test is None
    assert load(path, name="a_b").test is not None
    assert has_all(message(lambda: load(path)), path, "2 sets", "a_b")
    assert has_all(message(lambda: load(path, name="a-b")), path, "'a-b'", "did you mean 'a_b'?", "a_b)")


def test_a_name_is_not_needed_for_one_set_and_refused_for_a_set_without_name(tmp_path):
    only = write(tmp_path / "one.npz", **{f"syn_{k}": v for k, v in ROWS.items()})
    assert load(only).num_clients == 2
    plain = write(tmp_path / "plain.npz", **ROWS)
    assert has_all(message(lambda: load(plain, name="syn")), plain, "'syn'")


def test_a_named_set_takes_nothing_from_a_set_without_name_beside_it(tmp_path):
    path = write(tmp_path / "s.npz", **ROWS, **TEST, **{f"a_{k}": v for k, v in ROWS.items()})
    assert load(path, name="a").test is None
    assert load(path).test is not None


def without(key):
    return {k: v for k, v in (ROWS | TEST).items() if k != key}


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (without("train_x"), r"array named train_x.*train_x, train_y.*train_client"),
        (
            without("train_y"),
            r"array train_y.*client",
        ),
        (
            without("train_client"),
            r"array train_client.*clients.*'upcycled data make partition'",
        ),
        (without("test_y"), "array test_y"),
        (ROWS | {"train_y": np.array([0, 1])}, r"train.*shape \(4, 1\).*labels \(2,\)"),
        (ROWS | {"train_client": np.array([0])}, r"train.*shape \(4, 1\).*clients \(1,\)"),
        (
            ROWS | {"train_client": np.array([0, 1, 1.5, 0])},
            r"train_client.*1\.5.*row 2",
        ),
        (
            ROWS | {"train_client": np.zeros((4, 1))},
            r"train_client.*shape \(4, 1\).*client.*sample",
        ),
        (
            ROWS | {"train_x": np.array([[1.0], [np.nan], [3.0], [4.0]])},
            r"client 3.*row 0, column 0",
        ),
        (
            ROWS | TEST | {"test_client": np.array([7, 8])},
            r"client 8.*test samples.*training samples",
        ),
        (
            ROWS | TEST | {"test_client": np.array(["7", "eve"])},
            r"test.*clients.*<U3.*int64.*train",
        ),
        (ROWS | {"client_names": np.array(["ann", "bob"])}, r"client_names.*2.*clients"),
        (
            ROWS | {"label_names": np.array(["a", "b", "c"]), "num_classes": 2},
            r"label_names.*3.*2 classes",
        ),
        (ROWS | {"feature_names": np.array(["a", "b"])}, r"feature_names.*2.*sample.*shape \(1,\)"),
        (ROWS | {"num_classes": np.array(1)}, r"num_classes.*1.*integer >= 2"),
        (ROWS | {"train_x": np.array(3.0)}, r"train.*shape.*labels \(4,\)"),
        ({k: v[:0] for k, v in ROWS.items()}, r"data.*clients"),
    ],
)
def test_a_set_that_cannot_be_used_is_answered_by_its_sentence(tmp_path, arrays, sentence):
    path = write(tmp_path / "a.npz", **arrays)
    text = message(lambda: load(path))
    assert text.startswith(str(path))
    assert re.search(sentence, text)


def test_python_objects_are_never_unpickled(tmp_path):
    path = write(tmp_path / "a.npz", **(ROWS | {"train_x": np.array([[print]] * 4, dtype=object)}))
    assert has_all(message(lambda: load(path)), path, ".npz", ".npz")


def test_a_test_fraction_is_for_files_without_a_test_part(tmp_path):
    half = load(write(tmp_path / "a.npz", **ROWS), test_fraction=0.5, seed=3)
    assert half.test is not None
    assert (half.sizes.tolist(), half.test.sizes.tolist()) == ([1, 1], [1, 1])
    path = write(tmp_path / "b.npz", **ROWS, **TEST)
    assert has_all(
        message(lambda: load(path, test_fraction=0.5)), f"{path}: test_fraction", "0.5", "data", "2 test samples", "0"
    )


@pytest.mark.parametrize(
    "data",
    [
        synthetic(0.5, 0.5, clients=4, sizes=12),
        synthetic("iid", clients=3, sizes=20, num_classes=7).with_validation(0.5),
        FederatedData.from_arrays([[[1, 2]], [[3, 4]]], [[0], [0]], num_classes=9, client_names=["zoe", "c10"]),
        FederatedData.from_arrays([np.ones((2, 2, 3))], [[0, 1]], test=([np.zeros((1, 2, 3))], [[1]])),
    ],
)
def test_what_is_saved_is_loaded_equal(tmp_path, data):
    save(data, tmp_path / "a.npz")
    assert same(load(tmp_path / "a.npz"), data)


def test_ids_and_names_survive_saving(tmp_path):
    more = {"label_names": np.array(["no", "yes"]), "feature_names": np.array(["age"])}
    first = load(write(tmp_path / "a.npz", **ROWS, **TEST, **more))
    save(first, tmp_path / "b.npz")
    again = load(tmp_path / "b.npz")
    assert same(first, again)
    assert again.client_ids is not None
    assert again.client_ids.tolist() == [3, 7]
    assert again.label_names == ("no", "yes")


def test_saving_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    target = tmp_path / "a.npz"
    save(synthetic("iid", clients=2, sizes=5), target)
    before = target.read_bytes()

    def broken(stream, **arrays):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", broken)
    text = message(lambda: save(synthetic("iid", clients=3, sizes=5), target))
    assert text == f"path is '{target}', but it must be a file that can be written (No space left on device)"
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_saving_to_a_bad_place_is_refused(tmp_path):
    data = synthetic("iid", clients=2, sizes=5)
    assert has_all(message(lambda: save(data, tmp_path / "a.csv")), "end", ".npz")
    assert "No such file or directory" in message(lambda: save(data, tmp_path / "no" / "a.npz"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_later_zip_version_is_refused(tmp_path):
    # The "version needed" of the first entry in the table of contents: two bytes, 6 after its signature.
    save(synthetic("iid", clients=2, sizes=8, dim=2), tmp_path / "a.npz")
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[raw.index(b"PK\x01\x02") + 6] = 99
    (tmp_path / "a.npz").write_bytes(raw)
    assert has_all(message(lambda: load(tmp_path / "a.npz")), ".npz", ".npz")


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_right(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    good = synthetic("iid", clients=2, sizes=8, dim=2)
    save(good, folder / "a.npz")
    raw = bytearray((folder / "a.npz").read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / "b.npz").write_bytes(raw)
    try:
        found, sentence = load(folder / "b.npz"), None
    except InputError as error:
        found, sentence = None, str(error)
    if sentence is not None:
        assert str(folder / "b.npz") in sentence
        assert "\n" not in sentence
    else:
        # a flipped byte may sit where nothing is checked (dates, or the name of an array that is not needed)
        assert np.array_equal(found.train.x, good.train.x)
        assert np.array_equal(found.train.y, good.train.y)


def test_the_official_sets_have_the_numbers_of_the_papers_table(shared_data):
    # Samples (test), mean and stdev per device, test samples included; the paper's appendix, "Details of datasets".
    table = {
        "syn_iid": (6726, 683, 224, 166),
        "syn_0_0": (13791, 1395, 460, 841),
        "syn_0p5_0p5": (8036, 818, 268, 410),
        "syn_1_1": (10493, 1063, 350, 586),
    }
    for name, (samples, test_samples, mean, sd) in table.items():
        data = load(shared_data / "upcycled_synthetic.npz", name=name)
        assert data.test is not None
        sizes = data.sizes + data.test.sizes
        assert (data.num_clients, data.num_classes, data.feature_shape) == (30, 2, (20,))
        assert (sizes.sum(), data.test.num_rows) == (samples, test_samples)
        assert (round(sizes.mean()), round(sizes.std())) == (mean, sd)


def test_official_features_are_the_files_rounded_to_float32(shared_data):
    with np.load(shared_data / "upcycled_synthetic.npz") as file:
        x, y = file["syn_1_1_train_x"], file["syn_1_1_train_y"]
    data = load(shared_data / "upcycled_synthetic.npz", name="syn_1_1")
    assert np.array_equal(data.train.x, x.astype(np.float32))
    assert np.array_equal(data.train.y, y)


def test_femnist_has_the_numbers_of_the_papers_table(shared_data):
    d = load(shared_data / "femnist10_50dev_wrap.npz").describe()
    assert (d.clients, d.samples, d.test_samples, round(d.mean), round(d.sd)) == (50, 16421, 1924, 328, 273)
    assert (d.features, d.classes, d.max) == ((28, 28), 10, 1950)

"""One record never changes what is public: shapes, types, sizes, classes, and the samples of everybody else."""

import re
import typing
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import upcycled as up
from upcycled.core.errors import InputError
from upcycled.data import FederatedData, load
from upcycled.data.options import DataKeywords, DataOptions

# Client "a" has four samples and "b" six; the changed one is b's third, at place 6.
CLIENTS = ["a"] * 4 + ["b"] * 6
PLACE = 6
NUMBERS = [[i % 7, 10 - i] for i in range(10)]
TOKENS = [[i % 5, (3 * i) % 6, 1] for i in range(10)]
CLASSES = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1]
NAMES = ["no" if c == 0 else "yes" for c in CLASSES]
GAP = None

NUMBER_PAIRS = {
    "another label": ([6, 4], 1),
    "the largest label": ([6, 4], 2),
    "a label that is no class": ([6, 4], 41),
    "a negative label": ([6, 4], -1),
    "half a label": ([6, 4], 0.5),
    "a gap for a label": ([6, 4], GAP),
    "a word for a label": ([6, 4], "maybe"),
    "nan": ([float("nan"), 4], 0),
    "infinity": ([float("inf"), 4], 0),
    "more than float32 holds": ([1e39, 4], 0),
    "more than int64 holds": ([10**25, 4], 0),
    "a gap": ([GAP, 4], 0),
    "a copy of another sample": ([3, 7], 0),
    "a number that changes a type": ([3.5, 4], 0),
    "a word": (["yes", 4], 0),
    "a word in both columns": (["yes", "no"], "none"),
}
TOKEN_PAIRS = {
    "the largest token": ([9, 5, 1], 0),
    "a token outside": ([70, 5, 1], 0),
    "a token beyond int64": ([2**63, 5, 1], 0),
    "a negative token": ([-1, 5, 1], 0),
    "half a token": ([1.5, 5, 1], 0),
    "a gap": ([GAP, 5, 1], 0),
    "a word": (["yes", 5, 1], 0),
    "a copy of another sample": ([0, 0, 1], 0),
}


def changed(rows, labels, pair):
    rows, labels = [list(row) for row in rows], list(labels)
    rows[PLACE], labels[PLACE] = list(pair[0]), pair[1]
    return rows, labels


def column(values):
    """A column as pandas would have it: numbers, or text where one value is none."""
    is_text = any(isinstance(value, str) for value in values)
    return [None if value is None else str(value) for value in values] if is_text else values


def read(kind, folder, rows, labels, **options):
    """Write a file as the values ask for, and read it; each kind has its own idea of a type."""
    path = folder / f"set.{kind}"
    if kind == "csv":
        lines = [",".join("" if v is None else str(v) for v in (c, *r, y)) for c, r, y in
                 zip(CLIENTS, rows, labels, strict=True)]  # fmt: skip
        names = [f"f{j}" for j in range(len(rows[0]))]
        path.write_text("\n".join([",".join(["client", *names, "label"]), *lines, ""]))
    elif kind == "parquet":
        frame = {"client": CLIENTS} | {f"f{j}": column([row[j] for row in rows]) for j in range(len(rows[0]))}
        frame = {name: [float(v) if isinstance(v, int) and abs(v) >= 2**63 else v for v in values]
                 for name, values in (frame | {"label": column(labels)}).items()}  # fmt: skip
        pd.DataFrame(frame).to_parquet(path)
    elif kind == "npz":
        flat = [float("nan") if v is None else v for row in rows for v in row]
        x = np.array(flat)
        x = np.array(flat, dtype=float) if x.dtype == object else x
        y = np.array([float("nan") if v is None else v for v in labels])
        np.savez(path, train_x=x.reshape(len(rows), -1), train_y=y, train_client=np.array(CLIENTS))
    else:
        cut = CLIENTS.index("b")
        test_fraction = options.pop("test_fraction")
        parts = (rows[:cut], rows[cut:]), (labels[:cut], labels[cut:])
        return FederatedData.from_arrays(*parts, **options).split(test_fraction)
    return load(path, **options)


def facts(data):
    return {
        "train": (data.train.x.shape, data.train.x.dtype, data.train.y.dtype, data.sizes.tolist()),
        "test": (data.test.x.shape, data.test.x.dtype, data.test.sizes.tolist()),
        "classes": (data.num_classes, data.label_names, data.vocabulary),
        "names": (data.client_names, data.feature_names, data.has_copies, data.public, data.inferred),
        "repr": (repr(data), str(data.facts(counts_tokens=data.vocabulary is not None).vocabulary)),
    }


def samples(data):
    """All samples as (x, y), with place PLACE left out: which side each is on is part of it."""
    return [(part, i, x.tolist(), int(y)) for part in ("train", "test")
            for i, (x, y) in enumerate(zip(getattr(data, part).x, getattr(data, part).y, strict=True))]  # fmt: skip


def check_pair(kind, folder, rows, labels, pair, **options):
    one = read(kind, folder, rows, labels, test_fraction=0.3, repair=True, **options)
    other = read(kind, folder, *changed(rows, labels, pair), test_fraction=0.3, repair=True, **options)
    assert facts(one) == facts(other)
    assert not one.inferred
    differing = [a for a, b in zip(samples(one), samples(other), strict=True) if a != b]
    assert len(differing) <= 1
    assert np.isfinite(other.train.x).all()
    assert (other.train.y < other.num_classes).all()
    return other


KINDS = ["csv", "parquet", "npz", "arrays"]


@pytest.mark.parametrize("pair", NUMBER_PAIRS.values(), ids=NUMBER_PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_record_changes_no_public_fact_and_no_other_record(kind, pair, tmp_path):
    other = check_pair(kind, tmp_path, NUMBERS, CLASSES, pair, num_classes=3)
    assert other.train.x.dtype == np.float32


@pytest.mark.parametrize("pair", TOKEN_PAIRS.values(), ids=TOKEN_PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_record_of_tokens_changes_no_public_fact_and_no_other_record(kind, pair, tmp_path):
    other = check_pair(kind, tmp_path, TOKENS, CLASSES, pair, num_classes=2, vocabulary=10)
    assert other.train.x.dtype == np.int64
    assert other.facts(counts_tokens=True).vocabulary == 10
    assert other.train.x.max() < 10
    assert other.train.x.min() >= 0


@pytest.mark.parametrize("label", ["yes", "perhaps", "", GAP, 1, 7, float("nan"), "NA"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_label_name_changes_no_public_fact_and_no_other_record(kind, label, tmp_path):
    other = check_pair(kind, tmp_path, NUMBERS, NAMES, ([6, 4], label), label_names=["no", "yes"])
    assert other.label_names == ("no", "yes")


@pytest.mark.parametrize("label", ["yes", "perhaps", GAP, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_among_class_numbers_does_not_change_how_those_are_read(kind, label, tmp_path):
    other = check_pair(kind, tmp_path, NUMBERS, CLASSES, ([6, 4], label), label_names=["no", "yes"])
    assert np.concatenate([other.train.y, other.test.y]).sum() == sum(CLASSES) + (label == "yes")


def test_what_is_repaired_counts_as_zero_and_the_holder_is_told(tmp_path):
    x = [[1.5, float("nan")], [float("inf"), 2], [1e39, -1e39]]
    data = FederatedData.from_arrays([x, [["x", 1]]], [[0, 2, 7], [0.5]], num_classes=3, repair=True)
    assert data.train.x.tolist() == [[1.5, 0], [0, 2], [0, 0], [0, 1]]
    assert data.train.y.tolist() == [0, 2, 0, 0]
    assert data.notes == (
        "y: 2 labels that are no class count as class 0, the first of client 0 at row 2 (counted from 0)",
        "x: 5 values that are not a finite float32 count as 0, "
        "the first of client 0 at row 0, column 1 (counted from 0)",
    )
    sound = FederatedData.from_arrays([[[1.0]]], [[0]], num_classes=2, repair=True)
    assert sound.notes == ()


def test_sound_values_are_the_same_with_and_without_repair(tmp_path):
    rows = [[0.1 * i, float(i)] for i in range(10)]
    for kind in KINDS:
        plain, repaired = (
            read(kind, tmp_path, rows, CLASSES, num_classes=2, test_fraction=0.0, repair=repair)
            for repair in (False, True)
        )
        assert plain.train.x.tobytes() == repaired.train.x.tobytes()
        assert plain.train.y.tolist() == repaired.train.y.tolist()
        assert repaired.notes == ()


def test_a_mapped_file_is_repaired_in_memory_and_left_as_it_is(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1.0], [np.nan], [3.0]], dtype=np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 9, 1]))
    before = (tmp_path / "x.npy").read_bytes(), (tmp_path / "y.npy").read_bytes()
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    data = FederatedData.from_flat(x, y, [0, 1, 3], num_classes=2, repair=True)
    assert data.train.x.tolist() == [[1.0], [0.0], [3.0]]
    assert data.train.y.tolist() == [0, 0, 1]
    assert data.has_copies is False
    assert ((tmp_path / "x.npy").read_bytes(), (tmp_path / "y.npy").read_bytes()) == before
    sound = FederatedData.from_flat(x[:1], y[:1], [0, 1], num_classes=2, repair=True)
    assert np.shares_memory(sound.train.x, x)  # nothing to repair, nothing copied


def test_sizes_follow_from_the_fraction_alone_where_copies_are_not_looked_for(tmp_path):
    # All samples of each client but one are equal to the other client's: a look for copies would move them together.
    rows = [[i, i + 0.5] for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5)]
    data = read("csv", tmp_path, rows, CLASSES, num_classes=2, test_fraction=0.5, repair=True).with_validation(0.5)
    assert data.test.sizes.tolist() == [2, 3]  # 4 - floor(4/2), 6 - floor(6/2)
    assert data.validation.sizes.tolist() == [1, 2]
    assert not data.inferred
    looked = read("csv", tmp_path, rows, CLASSES, num_classes=2, test_fraction=0.5)
    assert "sizes" in looked.inferred
    kept = replace(read("csv", tmp_path, rows, CLASSES, num_classes=2, test_fraction=0.0), has_copies=False)
    assert "sizes" not in kept.split(0.5).inferred
    assert "sizes" not in kept.with_validation(0.5).inferred


def test_what_was_read_off_is_said():
    x, y = np.array([[0.5], [1.5]]), np.array([0, 1])
    assert FederatedData.from_arrays([x], [y]).inferred == {"classes"}
    assert FederatedData.from_arrays([x], [y], num_classes=2).inferred == frozenset()
    assert FederatedData.from_arrays([x], [["no", "yes"]], label_names=["no", "yes"]).inferred == frozenset()
    assert FederatedData.from_arrays([x.astype(int)], [y], num_classes=2).inferred == {"vocabulary"}
    assert FederatedData.from_arrays([x.astype(int)], [y], num_classes=2, vocabulary=2).inferred == frozenset()
    assert FederatedData.from_arrays([x.tolist()], [y], num_classes=2).inferred == {"dtype"}
    assert FederatedData.from_flat(x, y, [0, 2]).inferred == {"classes"}
    assert FederatedData.from_pool(x, y, [[0], [1]]).inferred == {"classes"}
    assert FederatedData.from_pool(x.tolist(), y, [[0], [1]], num_classes=2).inferred == {"dtype"}
    assert FederatedData.from_pool(x, y, [[0, 1]], test_fraction=0.5, num_classes=2).inferred == {"sizes"}
    assert up.data.synthetic(0.5, 0.5, clients=2, sizes=10).with_validation(0.2).inferred == frozenset()


def test_a_file_is_said_what_it_was_read_off(tmp_path):
    for kind in ("csv", "parquet"):
        assert read(kind, tmp_path, NUMBERS, CLASSES, test_fraction=0.0).inferred == {"classes", "dtype", "vocabulary"}
    assert read("npz", tmp_path, NUMBERS, CLASSES, test_fraction=0.0).inferred == {"classes", "vocabulary"}


def test_saving_keeps_what_was_read_off_and_giving_it_replaces_it(tmp_path):
    read_off = FederatedData.from_pool(np.eye(6), [0, 1, 0, 1, 0, 2], [[0, 1, 2], [3, 4]], test_fraction=0.4)
    up.data.save(read_off, tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").inferred == {"classes", "sizes"}
    assert load(tmp_path / "a.npz").num_classes == 3
    assert load(tmp_path / "a.npz", num_classes=5).inferred == {"sizes"}
    assert load(tmp_path / "a.npz", label_names=["a", "b", "c"], repair=True).inferred == {"sizes"}
    given = FederatedData.from_arrays([np.array([[1, 2]])], [[0]], num_classes=2, vocabulary=9)
    up.data.save(given, tmp_path / "b.npz")
    assert load(tmp_path / "b.npz").vocabulary == 9
    assert load(tmp_path / "b.npz").inferred == frozenset()


def test_the_vectors_of_a_repaired_file_say_how_many_tokens_there_are(tmp_path):
    arrays = {"train_x": np.array([[1, 70]]), "train_y": np.array([1]), "train_client": np.array([0])}
    np.savez(tmp_path / "a.npz", **arrays, vectors=np.eye(4), num_classes=2)
    data = load(tmp_path / "a.npz", repair=True)
    assert (data.train.x.tolist(), data.vocabulary) == ([[1, 0]], 4)
    with pytest.raises(InputError, match=r"vectors.*4 rows.*token ids.*0.*8"):
        load(tmp_path / "a.npz", repair=True, vocabulary=9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_classes": 3, "label_names": ["a", "b"]}, r"label_names.*2.*3 classes"),
        ({"label_names": ["a"]}, r"label_names.*\['a'\].*classes"),
        ({"label_names": ["a", "a"]}, r"label_names.*'a' 2"),
        ({"vocabulary": 0}, r"vocabulary.*0.*integer >= 1"),
        ({"num_classes": 2, "vocabulary": 2}, r"client 0.*2.*row 0, column 1.*token \bid\b.*0.*1.*vocabulary.*2"),
        ({"label_names": ["a", "b"]}, r"client 0.*'c'.*row 1.*'a', 'b'"),
    ],
)  # fmt: skip
def test_what_is_given_must_agree(options, sentence):
    labels = ["a", "c"] if options == {"label_names": ["a", "b"]} else [0, 1]
    with pytest.raises(InputError) as error:
        FederatedData.from_arrays([[[1, 2], [0, 1]]], [labels], **options)
    assert re.search(sentence, str(error.value))


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_an_unknown_label_name_in_a_file_is_refused_without_repair(kind, tmp_path):
    with pytest.raises(InputError, match=r"'yes'.*row 1.*'no', 'maybe'"):
        read(kind, tmp_path, NUMBERS, NAMES, label_names=["no", "maybe"], test_fraction=0.0)


@pytest.mark.parametrize("text", ["client,f,label\na,1,0,9\n", "client,f,label\na,1,0\na,1,0,9\n"])
def test_the_shape_of_a_file_is_public_and_may_be_wrong(text, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError):
        load(tmp_path / "a.csv", num_classes=2, repair=True)


def test_a_description_says_what_was_read_off():
    lines = dict(FederatedData.from_arrays([[[1.5], [2.5], [3.5]]], [[0, 1, 1]]).split(0.4).describe().rows())
    assert lines["classes"] == "2 (from the data)"
    assert lines["one sample"] == "1 float32 (from the data)"
    assert lines["per client"].endswith("(from the data)")
    given = FederatedData.from_arrays([np.array([[1.5], [2.5]])], [[0, 1]], num_classes=2).describe()
    assert "from the data" not in str(given)
    assert given.to_dict()["inferred"] == ()


def test_keyword_arguments_and_options_declare_the_same_fields():
    """A type checker sees the keywords, the package reads the options."""
    keywords = typing.get_type_hints(DataKeywords)
    options = typing.get_type_hints(DataOptions)
    assert list(keywords) == list(options)
    for name, hint in options.items():
        plain = Sequence[str] | None if hint == tuple[str, ...] | None else hint
        assert keywords[name] == plain, name
    with pytest.raises(TypeError, match="num_clases"):
        FederatedData.from_arrays([[[1.0], [2.0]]], [[0, 1]], num_clases=2)


def test_every_constructor_takes_every_option():
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    options = {"client_names": ["a", "b"], "num_classes": 3, "test_fraction": 0.4, "seed": 5, "public": True}
    made = [
        FederatedData.from_arrays([x[:3], x[3:]], [y[:3], y[3:]], **options),
        FederatedData.from_flat(x, y, [0, 3, 6], **options),
        FederatedData.from_pool(x, y, [[0, 1, 2], [3, 4, 5]], **options),
        load(pd.DataFrame({"p": x[:, 0], "q": x[:, 1], "label": y, "client": [0, 0, 0, 1, 1, 1]}), **options),
    ]
    for data in made:
        assert (data.client_names, data.num_classes, data.public) == (("a", "b"), 3, True)
        assert data.test.x.tolist() == made[0].test.x.tolist()

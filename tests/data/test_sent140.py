"""Sent140 from every kind of file, its word vectors, and the paper's model on it."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

import upcycled as up
from tests.data.real_files import one_sentence, write_leaf
from upcycled.core.layout import layout_of

WORDS = ("good", "bad", "day", "!")
TEXTS = ("good day!", "bad day", "a GOOD one", "bad, bad")


@pytest.fixture
def vectors(tmp_path):
    """A GloVe file of 50 numbers per word that knows four words."""
    path = tmp_path / "glove.6B.50d.txt"
    rows = [f"{word} " + " ".join(str(i + j / 64) for j in range(50)) for i, word in enumerate(WORDS, start=1)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("UPCYCLED_DATA", raising=False)
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path / "cache"))


def leaf(tmp_path, label=lambda i: "04"[i % 2]):
    """Three users of four tweets in FedProx's rows [id, date, query, user, text]."""
    rows = {
        f"user{u}": (
            [[str(i), "Mon", "NO_QUERY", f"user{u}", TEXTS[i]] for i in range(4)],
            [label(i) for i in range(4)],
        )
        for u in range(3)
    }
    write_leaf(tmp_path / "train" / "a.json", rows)
    write_leaf(tmp_path / "test" / "a.json", {name: (x[:1], y[:1]) for name, (x, y) in rows.items()})
    return tmp_path


def original(path, tweets, users=4):
    """The 6 columns of the original, quoted, in Latin-1; user 0 tweets too little."""
    with path.open("w", encoding="latin-1", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        for i in range(tweets):
            for user in range(users):
                if user or i < 29:
                    writer.writerow(
                        ["04"[i % 2], i, "Mon Apr 06", "NO_QUERY", f"u{user}", f"café {TEXTS[i % 4]} {user}"]
                    )
    return path


def test_json_becomes_ids_and_a_fixed_vector_for_each(tmp_path, vectors):
    data = up.data.sent140(leaf(tmp_path), vectors=vectors, devices=3, length=4)
    assert (data.num_clients, data.num_classes, data.label_names) == (3, 2, ("negative", "positive"))
    assert sorted(set(data.train.x[data.train.x > 1])) == [2, 3, 4, 5]
    assert data.train.y.tolist() == [0, 1, 0, 1] * 3
    assert data.test.num_rows == 3
    assert data.vectors.shape == (6, 50)
    assert (data.vectors[:2] == 0).all()
    by_text = dict(zip(TEXTS, data.train.x[:4].tolist(), strict=True))
    vector_of = {word: i + 1 for i, word in enumerate(WORDS)}
    for text, names in (("good day!", ["good", "day", "!"]), ("bad day", ["bad", "day"])):
        ids = by_text[text]
        assert [data.vectors[i, 0] for i in ids[: len(names)]] == [vector_of[name] for name in names]
        assert ids[len(names) :] == [0] * (4 - len(names))
    # "a", "one" and "," have no vector: unknown.
    assert by_text["a GOOD one"][0] == by_text["a GOOD one"][2] == 1


@pytest.mark.parametrize("label", [lambda i: "04"[i % 2], lambda i: i % 2, lambda i: 4 * (i % 2)])
def test_labels_may_be_written_in_three_ways(tmp_path, label):
    data = up.data.sent140(leaf(tmp_path, label), dimension=None, devices=3)
    assert data.train.y.tolist() == [0, 1, 0, 1] * 3


def test_users_are_merged_in_their_order_or_kept(tmp_path):
    assert up.data.sent140(leaf(tmp_path), dimension=None, devices=1).sizes.tolist() == [12]
    assert up.data.sent140(tmp_path, dimension=None, devices=2).sizes.tolist() == [8, 4]
    assert up.data.sent140(tmp_path, dimension=None, devices=None).sizes.tolist() == [4, 4, 4]
    with pytest.raises(up.InputError, match=r"devices.*52.*users 3"):
        up.data.sent140(tmp_path, dimension=None)


def test_without_vectors_words_must_occur_twice_in_training(tmp_path):
    rows = {"a": (["once twice", "twice", "test"], [0, 1, 0])}
    write_leaf(tmp_path / "train" / "a.json", rows)
    write_leaf(tmp_path / "test" / "a.json", {"a": (["test test twice"], [1])})
    data = up.data.sent140(tmp_path, dimension=None, devices=1, length=3)
    assert data.vectors is None
    assert data.train.x.tolist() == [[1, 2, 0], [2, 0, 0], [1, 0, 0]]
    assert data.test.x.tolist() == [[1, 1, 2]]


def test_the_original_file_gives_users_with_thirty_tweets(tmp_path, vectors):
    path = original(tmp_path / "training.1600000.processed.noemoticon.csv", tweets=30, users=31)
    data = up.data.sent140(path, vectors=vectors, devices=2)
    # 15 users per device; floor(0.8 * 30) = 24 of a user's 30 tweets are for training.
    assert data.sizes.tolist() == [15 * 24, 15 * 24]
    assert data.test.num_rows == 2 * 15 * 6
    # Tweets with "good" have polarity 0 and those with "bad" polarity 4; their vectors begin with 1 and 2.
    first = data.vectors[data.train.x, 0]
    assert ((first == 1).any(axis=1) == (data.train.y == 0)).all()
    assert ((first == 2).any(axis=1) == (data.train.y == 1)).all()
    again, other = (
        up.data.sent140(path, vectors=vectors, devices=2),
        up.data.sent140(path, vectors=vectors, devices=2, seed=1),
    )
    assert np.array_equal(data.train.x, again.train.x)
    assert not np.array_equal(data.test.y, other.test.y) or not np.array_equal(data.train.y, other.train.y)
    with pytest.raises(up.InputError, match=r"30 users.*30 tweets.*772"):
        up.data.sent140(path, vectors=vectors)
    monkey = tmp_path / "folder"
    monkey.mkdir()
    path.rename(monkey / path.name)
    assert np.array_equal(up.data.sent140(monkey, vectors=vectors, devices=2).train.x, data.train.x)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"2","1","d","q","u","t"\n', r"\['2'\].*6 columns.*row 2"),
        ('"0","1","d","q","u"\n', r"\['0'\].*5 columns.*row 2"),
        ("\n", r"0 columns.*row 2"),
    ],
)
def test_a_wrong_row_of_the_original_is_named(tmp_path, line, words):
    path = tmp_path / "a.csv"
    path.write_text('"0","1","d","q","u","t"\n' + line)
    with pytest.raises(up.InputError) as error:
        up.data.sent140(path, dimension=None, devices=1)
    assert re.search(words, one_sentence(error.value))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dimension": 200}, r"dimension.*200.*50, 100.*300.*None"),
        ({"dimension": True}, r"dimension.*True"),
        ({"dimension": None, "vectors": "x"}, r"vectors.*'x'.*dimension.*None"),
        ({"vectors": "none.txt"}, r"vectors.*'none\.txt'"),
        ({"devices": 0}, r"devices.*0.*integer >= 1"),
        ({"length": 0}, r"length.*0.*integer >= 1"),
        ({"seed": -1}, r"seed.*-1"),
    ],
)
def test_wrong_arguments_are_answered_by_one_sentence(tmp_path, options, words):
    with pytest.raises(up.InputError) as error:
        up.data.sent140(leaf(tmp_path), **options)
    assert re.search(words, one_sentence(error.value))


def test_wrong_tweets_and_sources_are_named(tmp_path):
    for x, y in ((["a"], ["5"]), ([3], [0]), (["a"], [True]), ([["a", "b"]], [0])):
        path = write_leaf(tmp_path / "a.json", {"u": (x, y)})
        with pytest.raises(up.InputError, match="user 'u'"):
            up.data.sent140(path, dimension=None, devices=1)
    with pytest.raises(up.InputError, match=r"^source.*'.*none'"):
        up.data.sent140(tmp_path / "none", dimension=None)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(up.InputError, match=r"\.npz, \.parquet, \.csv, \.json"):
        up.data.sent140(tmp_path / "a.txt", dimension=None)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), int))
    with pytest.raises(up.InputError, match=r"array.*pseudo_user, split"):
        up.data.sent140(tmp_path / "a.npz", dimension=None)


def test_nothing_found_is_one_sentence_that_says_where_and_how(monkeypatch, tmp_path):
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    with pytest.raises(up.InputError) as error:
        up.data.sent140()
    text = one_sentence(error.value)
    assert text.startswith("Sent140 is not on this machine: none of sent140_52dev_tokens.npz, ")
    assert "'upcycled data fetch sent140'" in text


def tokens_file(tmp_path):
    """Ids of four words for two users, and one unused tweet."""
    np.savez(
        tmp_path / "sent140_52dev_tokens.npz",
        x=np.array([[2, 3, 0], [4, 1, 0], [5, 5, 5], [2, 0, 0], [3, 3, 0]], dtype=np.int32),
        y=np.array([0, 1, 1, 0, 1], dtype=np.int8),
        device=np.array([0, 0, 1, 1, -1], dtype=np.int8),
        pseudo_user=np.array([0, 0, 1, 1, -1], dtype=np.int16),
        split=np.array([0, 1, 0, 0, 2], dtype=np.int8),
    )
    return tmp_path / "sent140_52dev_tokens.npz"


def test_a_token_file_takes_its_words_from_the_file_beside_it(tmp_path, vectors):
    path = tokens_file(tmp_path)
    assert up.data.sent140(path, dimension=None, devices=2, length=3).train.x.tolist() == [
        [2, 3, 0],
        [5, 5, 5],
        [2, 0, 0],
    ]
    with pytest.raises(up.InputError, match=r"token ids.*glove6B_50d_100d_sent140vocab\.npz"):
        up.data.sent140(path, vectors=vectors, devices=2, length=3)
    np.savez(tmp_path / "glove6B_50d_100d_sent140vocab.npz", words=np.array(WORDS))
    data = up.data.sent140(path, vectors=vectors, devices=2, length=3)
    assert data.vectors[:, 0].tolist() == [0, 0, 1, 2, 3, 4]
    assert (data.sizes.tolist(), data.test.y.tolist()) == ([1, 2], [1])
    assert up.data.sent140(path, dimension=None, devices=2, length=2).feature_shape == (2,)
    with pytest.raises(up.InputError, match=r"length.*4.*3 tokens.*3"):
        up.data.sent140(path, dimension=None, devices=2, length=4)


def test_vectors_survive_saving_splitting_and_validation(tmp_path, vectors):
    data = up.data.sent140(leaf(tmp_path), vectors=vectors, devices=3)
    up.data.save(data, tmp_path / "saved.npz")
    assert np.array_equal(up.data.load(tmp_path / "saved.npz").vectors, data.vectors)
    assert data.with_validation(0.5).vectors is data.vectors


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.zeros((5, 2)), r"vectors.*5 rows.*token ids.*0.*5"),
        (np.zeros(6), r"vectors.*shape \(6,\)"),
        (np.full((6, 2), np.nan), "of finite numbers"),
        (np.array([["a"]]), r"vectors.*values"),
    ],
)
def test_vectors_must_fit_the_token_ids(table, words):
    data = up.FederatedData.from_arrays([[[0, 5], [2, 1]]], [[0, 1]])
    with pytest.raises(up.InputError, match=words):
        data.with_vectors(table)
    with pytest.raises(up.InputError, match=r"features.*float32.*token ids"):
        up.FederatedData.from_arrays([[[0.5], [2.0]]], [[0, 1]]).with_vectors(np.zeros((6, 2)))


def test_the_model_takes_the_datas_vectors_and_neither_trains_nor_sends_them(tmp_path, vectors):
    data = up.data.sent140(leaf(tmp_path), vectors=vectors, devices=3)
    result = up.train(
        data, model="lstm", model_options={"hidden": 3}, algorithm=up.FedAvg(), iterations=2,
        local=up.LocalSGD(lr=0.1, epochs=1, batch_size=2), engine="sequential", progress=False,
    )  # fmt: skip
    # Each way 4 gates of 3 units on 50 inputs and 3 states with two biases, and 2 outputs of 6 + 1.
    size = 2 * (4 * 3 * 50 + 4 * 3 * 3 + 2 * 4 * 3) + 2 * 7
    assert result.params.numel() == size == layout_of(result.model).size
    assert result.history[0].bytes_up == 3 * 4 * size
    assert np.array_equal(result.model.embedding.weight.numpy(force=True), data.vectors)
    assert not result.model.embedding.weight.requires_grad


def test_an_embedding_asked_for_by_name_is_learned(tmp_path, vectors):
    data = up.data.sent140(leaf(tmp_path), vectors=vectors, devices=3)
    result = up.train(
        data, model="lstm", model_options={"hidden": 3, "embedding": 2}, algorithm=up.FedAvg(), iterations=1,
        local=up.LocalSGD(lr=0.1, epochs=1, batch_size=2), engine="sequential", progress=False,
    )  # fmt: skip
    assert result.model.embedding.weight.requires_grad
    assert result.model.embedding.weight.shape[1] == 2


def test_the_papers_lstm_has_its_size():
    # nn.LSTM(300, 128, bidirectional) of the official code: 2 * 4 * 128 * (300 + 128 + 2), and 2 outputs of 256 + 1.
    module = up.models.lstm(2, vectors=np.zeros((10, 300)), hidden=128)
    assert layout_of(module).size == 2 * 4 * 128 * (300 + 128 + 2) + 2 * 257


def test_the_ready_files_are_the_papers_table(shared_data, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    data = up.data.sent140()
    found = data.describe()
    assert (found.clients, found.samples, found.test_samples, found.features) == (52, 32299, 8484, (25,))
    assert (round(found.mean), round(found.sd)) == (621, 105)
    assert data.vectors.shape == (25111, 50)
    assert up.data.sent140(dimension=100).vectors.shape == (25111, 100)


def test_the_texts_give_exactly_the_ids_of_the_token_file(shared_data, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    ready = up.data.sent140()
    texts = up.data.sent140(shared_data / "sent140_50k_52dev.parquet")
    for part in ("train", "test"):
        ours, theirs = getattr(texts, part), getattr(ready, part)
        assert all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("x", "y", "offsets"))
    assert np.array_equal(texts.vectors, ready.vectors)


def table(path, **changes):
    """Four tweets of two users, the first of them unused, with some columns changed."""
    pandas = pytest.importorskip("pandas")
    columns = {
        "text": ["unused", *TEXTS[:3]],
        "label": [0, 0, 1, 1],
        "pseudo_user": ["u", "u", "u", "v"],
        "split": ["unused", "train", "train", "train"],
    }
    pandas.DataFrame(columns | changes).to_parquet(path)
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"label": ["x", "sad", "glad", "glad"]}, r"label 'sad'.*row 1.*0.*1"),
        ({"label": [0, 0, None, 1]}, r"label.*row 2.*0.*1"),
        ({"label": [0, 0, 0.7, 1]}, r"label 0\.7.*row 2.*0.*1"),
        ({"label": [0, 0, 4, 1]}, r"label 4.*row 2.*0.*1"),
        (
            {"pseudo_user": ["u", "u", None, "v"]},
            r"client.*column 'pseudo_user'.*row 2.*row",
        ),
        ({"text": ["a", "b", None, "c"]}, "row 2"),
    ],
)
def test_a_table_of_tweets_with_wrong_values_is_one_sentence(tmp_path, changes, sentence):
    path = table(tmp_path / "a.parquet", **changes)
    with pytest.raises(up.InputError) as error:
        up.data.sent140(path, dimension=None, devices=1)
    assert re.search(sentence, one_sentence(error.value))


def test_wrong_values_in_unused_rows_of_a_table_do_not_matter(tmp_path):
    path = table(
        tmp_path / "a.parquet", label=[None, 0, 1, 1], pseudo_user=[None, "u", "u", "v"], text=[None, *TEXTS[:3]]
    )
    data = up.data.sent140(path, dimension=None, devices=2)
    assert (data.sizes.tolist(), data.train.y.tolist()) == ([2, 1], [0, 1, 1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y": np.array(["a", "b"])}, "{} has y 'a' at row 0 (counted from 0), but it must be 0 or 1"),
        ({"y": np.array([0, 0.7])}, "{} has y 0.7 at row 1 (counted from 0), but it must be 0 or 1"),
        ({"y": np.array([0, np.nan])}, "{} has y nan at row 1 (counted from 0), but it must be 0 or 1"),
        (
            {"pseudo_user": np.array([0, np.nan])},
            "pseudo_user of {} (of tweets with split 0 or 1) is nan at row 1 (counted from 0), "
            "but it must be a whole number or a string",
        ),
    ],
)
def test_token_ids_with_wrong_values_are_one_sentence(tmp_path, changes, sentence):
    arrays = {"x": np.ones((2, 3), int), "y": np.array([0, 1]), "pseudo_user": np.zeros(2, int), "split": np.zeros(2)}
    np.savez(tmp_path / "a.npz", **(arrays | changes))
    with pytest.raises(up.InputError) as error:
        up.data.sent140(tmp_path / "a.npz", dimension=None, devices=1, length=3)
    assert one_sentence(error.value) == sentence.format(tmp_path / "a.npz")


def test_users_without_tweets_are_one_sentence(tmp_path):
    path = write_leaf(tmp_path / "a.json", {"u": ([], []), "v": ([], [])})
    with pytest.raises(up.InputError) as error:
        up.data.sent140(path, dimension=None, devices=1)
    assert one_sentence(error.value) == f"{path} has no training tweets, but it must have some"
    write_leaf(tmp_path / "both" / "train" / "a.json", {"u": ([], [])})
    write_leaf(tmp_path / "both" / "test" / "a.json", {"u": (["good"], [1])})
    with pytest.raises(up.InputError, match="training tweets"):
        up.data.sent140(tmp_path / "both", dimension=None, devices=1)


def test_equal_tweets_are_not_taken_for_copies(tmp_path):
    data = up.data.sent140(leaf(tmp_path), dimension=None, devices=3)
    assert data.has_copies is False

"""Tokens, vocabulary, ids and word vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.real_files import one_sentence
from upcycled.core.errors import InputError
from upcycled.data.sets.word_vectors import (
    READY,
    encode,
    find_vectors,
    read_vectors,
    read_words,
    table,
    tokens,
    vocabulary,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("   :) ;", [";"]),
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("i don't, won't", ["i", "don't", ",", "won't"]),
        ("wait...what?!", ["wait", ".", ".", ".", "what", "?", "!"]),
        ("@Ann #fun http://t.co/x_1", ["ann", "fun", "http", "t", ".", "co", "x_1"]),
        ("$40-50 (half)", ["40", "50", "half"]),
        ("No work tomorrow&amp;tuesday", ["no", "work", "tomorrow", "amp", ";", "tuesday"]),
        ("CAFÉ ☺ naïve", ["café", "naïve"]),
        ("'quoted'", ["'quoted'"]),
        ("tab\tand\nline", ["tab", "and", "line"]),
    ],
)
def test_tokens(text, found):
    assert tokens(text) == found


@given(texts=st.lists(st.text(max_size=30), max_size=5), length=st.integers(1, 8))
def test_ids_stand_for_the_first_tokens_and_nothing_else(texts, length):
    words = vocabulary(texts, lambda _, count: count > 1)
    rows = encode(texts, words, length)
    assert rows.shape == (len(texts), length)
    for row, text in zip(rows, texts, strict=True):
        found = tokens(text)[:length]
        assert (row[len(found) :] == 0).all()
        assert [words[i - 2] if i > 1 else None for i in row[: len(found)]] == [
            t if t in words else None for t in found
        ]


def test_the_vocabulary_is_sorted_by_frequency_then_by_first_use():
    texts = ["c a b", "b c", "b d"]
    assert vocabulary(texts, lambda word, count: True) == ("b", "c", "a", "d")
    assert vocabulary(texts, lambda word, count: count > 1) == ("b", "c")


GLOVE = "the 0.5 -1\nof 2 3.25\n. 1e-3 4\nat name 5 6\n"


def test_gloves_text_file_gives_the_wanted_vectors(tmp_path):
    path = tmp_path / "glove.6B.2d.txt"
    path.write_text(GLOVE)
    found = read_vectors(path, 2, {"of", ".", "at name", "unheard"})
    assert sorted(found) == [".", "at name", "of"]
    assert (found["of"].tolist(), found["at name"].tolist()) == ([2, 3.25], [5, 6])
    assert found["of"].dtype == np.float32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"\bit\b.*\bempty\b"),
        ("the 0.5\n", r"line 1: 1.*2"),
        ("the 1 2 3\n", r"line 1: 3.*2"),
        (GLOVE + "cut 0.", r"line 5: 1.*2"),
        (GLOVE + "of x 1\n", "line 5"),
    ],
)
def test_a_wrong_line_of_vectors_is_named(tmp_path, content, words):
    path = tmp_path / "glove.txt"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_vectors(path, 2, {"of"})
    assert one_sentence(error.value).startswith(f"{path} cannot be read as word vectors")
    assert re.search(words, str(error.value))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_bytes(b"the 1 2\n\xff\xfe 3\n")
    with pytest.raises(InputError, match=r"read.*vectors"):
        read_vectors(path, 2, {"of"})


def test_vectors_of_an_npz(tmp_path):
    path = tmp_path / READY
    np.savez(path, words=np.array(["a", "b"]), vec50=np.ones((2, 50), np.float16), vec100=np.ones((2, 3)))
    assert read_words(path) == ("a", "b")
    assert read_vectors(path, 50, {"b", "c"})["b"].tolist() == [1.0] * 50
    with pytest.raises(InputError, match=r"vec100.*shape \(2, 3\).*100.*2"):
        read_vectors(path, 100, {"b"})
    with pytest.raises(InputError, match="array vec300"):
        read_vectors(path, 300, {"b"})


def test_padding_and_unknown_words_are_zeros():
    made = table(["x", "y"], {"y": np.array([3.0], dtype=np.float32)}, 1)
    assert made.ravel().tolist() == [0, 0, 0, 3]


def test_vectors_are_looked_for_in_the_ready_file_then_in_gloves_own(tmp_path, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"dimension 50.*glove6B.*glove\.6B\.50d\.txt"):
        find_vectors(50)
    (tmp_path / "glove.6B").mkdir()
    (tmp_path / "glove.6B" / "glove.6B.50d.txt").write_text("")
    assert find_vectors(50).name == "glove.6B.50d.txt"
    np.savez(tmp_path / READY, words=np.array(["a"]), vec50=np.zeros((1, 50)))
    assert find_vectors(50).name == READY
    with pytest.raises(InputError, match=r"dimension 300.*glove\.6B\.300d\.txt"):
        find_vectors(300)

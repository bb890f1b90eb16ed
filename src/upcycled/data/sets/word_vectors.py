"""Words and their numbers: tokens of tweets, and GloVe word vectors.

Words and their numbers: what turns a tweet into a row of token ids.

The rule is LEAF's and FedProx's, after lower-casing: a token is a run of letters, digits, underscores and apostrophes,
or one of the marks . , ! ? ; and everything else only separates. Id 0 is padding, 1 an unknown word, i + 2 word i.

GloVe word vectors: the text files glove.6B.50d.txt and so on, or an .npz with ``words`` and ``vec50``, ``vec100``.

A model gets them as one fixed table: rows 0 (padding) and 1 (unknown words) are zeros, row i + 2 is the i-th word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, reason_of
from upcycled.core.vectors import Ints
from upcycled.data.readers.npz import array_names, read_arrays
from upcycled.data.sets.paths import find, missing

PAD, UNKNOWN, FIRST_WORD = 0, 1, 2
LENGTH = 25
_TOKEN = re.compile(r"[\w']+|[.,!?;]")


def tokens(text: str) -> list[str]:
    """Return the tokens of a text.

    >>> tokens("@Ann: don't worry... it's GREAT!! :)")
    ['ann', "don't", 'worry', '.', '.', '.', "it's", 'great', '!', '!']
    """
    return _TOKEN.findall(text.lower())


def vocabulary(texts: Iterable[str], keep: Callable[[str, int], bool]) -> tuple[str, ...]:
    """Return the words of the texts for which ``keep(word, count)`` holds, the most frequent first.

    Words that are equally frequent come in the order in which they first occur.

    >>> vocabulary(["b a", "a c"], lambda word, count: word != "c")
    ('a', 'b')
    """
    counts = Counter(token for text in texts for token in tokens(text))
    return tuple(word for word, count in counts.most_common() if keep(word, count))


def encode(texts: Sequence[str], words: Sequence[str], length: int = LENGTH) -> Ints:
    """Return the ids of every text's first ``length`` tokens, filled up with 0 at the end.

    >>> encode(["a b a", "c"], ["a", "b"], length=4).tolist()
    [[2, 3, 2, 0], [1, 0, 0, 0]]
    """
    ids = {word: i for i, word in enumerate(words, start=FIRST_WORD)}
    rows = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [ids.get(token, UNKNOWN) for token in tokens(text)[:length]]
        row[: len(found)] = found
    return rows


DIMENSIONS = (50, 100, 300)
READY = "glove6B_50d_100d_sent140vocab.npz"


def find_vectors(dimension: int, beside: Path | None = None) -> Path:
    """Return a file with vectors of so many numbers, in a folder or where data lies.

    The ready file goes before GloVe's own where it has them.
    """
    name = f"glove.6B.{dimension}d.txt"
    ready, own = (_near(beside, file) or find(file) for file in (READY, name))
    if ready is not None and f"vec{dimension}" in array_names(ready):
        return ready
    if own is None:
        names = (name,) if ready is not None else (READY, name)
        raise missing(f"the set of GloVe vectors of dimension {dimension}", names, "glove")
    return own


def find_words(beside: Path) -> Path | None:
    """Return the ready file, which says which words token ids stand for."""
    return _near(beside, READY) or find(READY)


def _near(folder: Path | None, name: str) -> Path | None:
    return folder / name if folder is not None and (folder / name).is_file() else None


def read_words(path: Path) -> tuple[str, ...]:
    """Return the words of an .npz in their order: word i is the token id i + 2."""
    words = _array(path, "words")
    if words.ndim != 1 or words.dtype.kind != "U":
        raise InputError(f"has words of type {words.dtype}, but they must be a list of texts", field=str(path))
    return tuple(words.tolist())


def read_vectors(path: Path, dimension: int, wanted: Container[str]) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of the wanted words that a file has."""
    if path.suffix.lower() == ".npz":
        return _from_npz(path, dimension, wanted)
    found: dict[str, NDArray[np.float32]] = {}
    line = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as stream:
            for line, text in enumerate(stream, start=1):
                # From the right: a few words of larger GloVe files hold spaces.
                word, *numbers = text.rstrip("\n").rsplit(" ", dimension)
                if len(numbers) != dimension or (line == 1 and len(text.split()) != dimension + 1):
                    raise ValueError(f"{len(text.split()) - 1} numbers after a word, not {dimension}")
                if word in wanted:
                    found[word] = np.array(numbers, dtype=np.float32)
        if line == 0:
            raise ValueError("it is empty")
    except (OSError, ValueError) as error:
        raise InputError(
            "cannot be read as word vectors, but every line must be a word and its numbers "
            f"(line {line}: {reason_of(error)})",
            field=str(path),
        ) from error
    return found


def table(words: Sequence[str], vectors: Mapping[str, NDArray[np.float32]], dimension: int) -> NDArray[np.float32]:
    """Return the fixed embedding: a word without a vector has zeros, like padding and unknown words.

    >>> table(["a", "b"], {"b": np.array([1.0, 2.0], dtype=np.float32)}, 2).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]
    """
    rows = np.zeros((FIRST_WORD + len(words), dimension), dtype=np.float32)
    for row, word in enumerate(words, start=FIRST_WORD):
        vector = vectors.get(word)
        if vector is not None:
            rows[row] = vector
    return rows


def _from_npz(path: Path, dimension: int, wanted: Container[str]) -> dict[str, NDArray[np.float32]]:
    words, rows = read_words(path), _array(path, f"vec{dimension}").astype(np.float32)
    if rows.shape != (len(words), dimension):
        raise InputError(
            f"has vec{dimension} of shape {rows.shape}, but it must be {dimension} numbers for each of "
            f"{len(words)} words",
            field=str(path),
        )
    return {word: row for word, row in zip(words, rows, strict=True) if word in wanted}


def _array(path: Path, name: str) -> NDArray[Any]:
    if name not in array_names(path):
        raise InputError(f"has no array {name}, but it must have one", field=str(path))
    return read_arrays(path, [name])[name]

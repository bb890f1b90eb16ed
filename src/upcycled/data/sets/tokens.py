"""Words and their numbers: what turns a tweet into a row of token ids.

The rule is LEAF's and FedProx's, after lower-casing: a token is a run of letters, digits, underscores and apostrophes,
or one of the marks . , ! ? ; and everything else only separates. Id 0 is padding, 1 an unknown word, i + 2 word i.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from upcycled.core.vectors import Ints

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

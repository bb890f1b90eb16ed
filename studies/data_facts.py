"""What the real sets are, measured: the tables of docs/data.md.

python -m studies.data_facts            measures, and writes the tables into the page
python -m studies.data_facts --check    measures, and says whether the page has them (exit code 1 if not)
"""

from __future__ import annotations

import sys

import numpy as np

import upcycled as up
from studies.common.data import ROOT, data_folder
from studies.common.page import replaced, table
from upcycled.data.sets.sent140 import PARQUET, TOKENS
from upcycled.data.sets.word_vectors import UNKNOWN, encode

PAGE = ROOT / "docs" / "data.md"
READY, LITERAL, POOL = "femnist10_50dev_wrap.npz", "femnist10_50dev_fedproxcode.npz", "emnist_lower26_pool.npz"
VALIDATION = 0.1
# The table "Details of datasets" of the paper's appendix.
PAPER = {"FEMNIST": (16421, 1924, 50, 328, 273), "Sent140": (32299, 8484, 52, 621, 105)}


def blocks() -> dict[str, list[str]]:
    """Return what stands between the page's marks: the tables, measured."""
    folder = data_folder()
    ready = up.data.femnist(folder / READY)
    full = up.data.femnist(folder / POOL, letters=26)
    tweets = up.data.sent140(folder / TOKENS)
    sets = {
        "FEMNIST": [
            (f"`femnist()` from `{READY}`", ready),
            (f"`femnist(seed=1)` from `{POOL}`", up.data.femnist(folder / POOL, seed=1)),
            (f"`femnist({LITERAL!r})`", up.data.femnist(folder / LITERAL)),
            (f"`femnist(letters=26)` from `{POOL}`", full),
        ],
        "Sent140": [(f"`sent140()` from `{TOKENS}`", tweets)],
    }
    return {"facts": [*_sizes(sets), "", *_images(sets["FEMNIST"]), "", *_words(tweets)]}


def _sizes(sets: dict[str, list[tuple[str, up.FederatedData]]]) -> list[str]:
    rows = []
    for title, versions in sets.items():
        train, test, devices, mean, sd = PAPER[title]
        rows.append([f"{title}, the paper", f"{train:,}", f"{test:,}", str(devices), str(mean), str(sd), "", ""])
        for name, data in versions:
            d = data.describe()
            classes = [np.unique(data.train.client(i)[1]).size for i in range(d.clients)]
            fewest, most = min(classes), max(classes)
            per = f"{fewest} of {d.classes}" if fewest == most else f"{fewest} to {most} of {d.classes}"
            sizes = [f"{d.samples:,}", f"{d.test_samples:,}", str(d.clients), f"{d.mean:.0f}", f"{d.sd:.0f}"]
            rows.append([name, *sizes, per, f"{d.label_skew:.3f}"])
    head = ["set", "training", "test", "devices", "mean", "sd", "classes on a device", "label skew"]
    return table(head, rows)


def _images(versions: list[tuple[str, up.FederatedData]]) -> list[str]:
    rows = []
    for name, data in versions:
        assert data.test is not None
        split = data.with_validation(VALIDATION)
        assert split.validation is not None
        train, kept = _distinct(data.train.x), _distinct(split.train.x)
        seen, seen_in_validation = _seen(data.test.x, train), _seen(split.validation.x, kept)
        rows.append(
            [
                name,
                f"{len(train):,}",
                f"{seen:,} of {data.test.num_rows:,}",
                f"{seen_in_validation:,} of {split.validation.num_rows:,}",
            ]
        )
    head = ["set", "distinct training images", "test images that are training images"]
    return table([*head, f"of {VALIDATION:.0%} held out for validation, images still in training"], rows)


def _words(tweets: up.FederatedData) -> list[str]:
    import pandas

    folder = data_folder()

    frame = pandas.read_parquet(folder / PARQUET)
    with np.load(folder / TOKENS) as file:
        ids = file["x"]
    with np.load(folder / "glove6B_50d_100d_sent140vocab.npz") as file:
        words, has100 = [str(word) for word in file["words"]], file["has100"]
    own = encode(list(frame["text"]), words)
    assert tweets.vectors is not None
    used = ids != 0
    equal = int((own == ids).all(axis=1).sum())
    rows = [
        ["tweets whose 25 ids from the text equal the token file's", f"{equal:,} of {len(ids):,}"],
        ["tokens that are an unknown word", f"{(ids == UNKNOWN).sum() / used.sum():.1%}"],
        ["tweets of 25 tokens or more", f"{used.all(axis=1).mean():.1%}"],
        ["words with a vector of 50 numbers", f"{len(words):,}"],
        ["of these, with one of 100", f"{int(has100.sum()):,}"],
        ["positive tweets, training", f"{tweets.train.y.mean():.1%}"],
    ]
    return table(["Sent140", ""], rows)


def _distinct(x: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in x}


def _seen(x: np.ndarray, known: set[bytes]) -> int:
    return sum(row.tobytes() in known for row in x)


def main() -> int:
    text = PAGE.read_text()
    fresh = replaced(text, blocks())
    if "--check" in sys.argv[1:]:
        print("the page has the measured tables" if fresh == text else "the page differs from what was measured")
        return int(fresh != text)
    PAGE.write_text(fresh)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

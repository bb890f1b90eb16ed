"""The paper's FEMNIST devices, dealt from a pool of letter images.

FedProx's ``my_sample.py`` makes 200 users: user u has the classes u, u+1 and u+2 (modulo the number of letters), as
many of each, lognormal(4, 1) + 5 in all, nine tenths for training. The paper merges them four by four into 50 devices.
Here the images of the two parts come from disjoint pools, and an image is used again only when its class is exhausted:
FedProx's own code starts every user at the first image of a class, so that most test images are training images too.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, Limits
from upcycled.core.vectors import Ints
from upcycled.data.assemble import flat_part
from upcycled.data.checks import Names
from upcycled.data.declared import declare
from upcycled.data.federated import FederatedData, checked
from upcycled.data.readers.npz import pixels

USERS_PER_DEVICE, CLASSES_PER_USER, TRAINING_SHARE = 4, 3, 0.9
LETTERS = Limits(at_least=CLASSES_PER_USER, at_most=len(string.ascii_lowercase), integer=True)
PUBLISHED_LETTERS, PUBLISHED_DEVICES = 10, 50

# Images per class of the 200 users. The device totals are the official ones (osu-srml/Upcycled-FL, user_groups.json);
# how a device divides into its four users is drawn, given those totals, since no source says.
PUBLISHED = (
    *(20, 9, 8, 41, 18, 50, 47, 30, 21, 27, 53, 7, 57, 16, 14, 32, 31, 6, 15, 5, 7, 23, 7, 58, 11, 23, 6, 34, 12, 12),
    *(6, 23, 7, 27, 24, 12, 6, 55, 7, 31, 21, 8, 6, 13, 10, 19, 14, 24, 10, 3, 23, 9, 185, 14, 14, 2, 5, 9, 2, 14),
    *(14, 29, 44, 636, 4, 25, 65, 124, 50, 23, 68, 35, 22, 12, 20, 134, 55, 44, 23, 32, 22, 46, 8, 49, 8, 24, 66, 73),
    *(26, 26, 25, 57, 6, 21, 4, 86, 28, 83, 9, 27, 16, 18, 23, 109, 19, 14, 28, 18, 19, 17, 14, 31, 14, 20, 7, 7, 90),
    *(7, 15, 28, 53, 22, 173, 46, 38, 7, 30, 20, 4, 18, 16, 6, 17, 54, 14, 16, 56, 27, 3, 20, 20, 34, 13, 4, 4, 8),
    *(35, 7, 10, 14, 9, 8, 48, 57, 16, 6, 18, 10, 63, 15, 17, 46, 20, 91, 122, 16, 30, 15, 5, 5, 4, 36, 19, 50, 10),
    *(6, 15, 9, 25, 50, 9, 55, 33, 10, 15, 12, 30, 16, 64, 18, 11, 16, 48, 35, 5, 8, 5, 12, 63, 50),
)


@dataclass(frozen=True)
class Images:
    """Letter images without owners; label i is the i-th letter. The two parts share no image."""

    train_x: NDArray[Any]
    train_y: Ints
    test_x: NDArray[Any]
    test_y: Ints

    def of(self, letters: int) -> Images:
        """Return the images of the first letters only."""
        train, test = self.train_y < letters, self.test_y < letters
        return Images(self.train_x[train], self.train_y[train], self.test_x[test], self.test_y[test])


def letter_names(letters: int) -> tuple[str, ...]:
    """Return the names of the classes.

    >>> letter_names(3)
    ('a', 'b', 'c')
    """
    return tuple(string.ascii_lowercase[:letters])


def drawn_sizes(devices: int, seed: int) -> Ints:
    """Draw images per class for four users per device, as my_sample.py does.

    >>> drawn_sizes(2, seed=0).size, int(drawn_sizes(50, seed=0).min()) >= 2
    (8, True)
    """
    rng = np.random.default_rng([seed, 0])
    samples = rng.lognormal(4.0, 1.0, USERS_PER_DEVICE * devices) + 5.0
    return np.maximum((samples / CLASSES_PER_USER).astype(np.int64), 2)


def deal(images: Images, letters: int, per_class: Ints, seed: int) -> FederatedData:
    """Deal a pool out: user u gets ``per_class[u]`` images of each of its classes; four users are one device."""
    wanted: list[list[Ints]] = [[], []]
    rng = np.random.default_rng([seed, 1])
    for user, count in enumerate(per_class):
        classes = (user + np.arange(CLASSES_PER_USER)) % letters
        labels = rng.permutation(np.repeat(classes, count))
        kept = int(TRAINING_SHARE * labels.size)
        wanted[0].append(labels[:kept])
        wanted[1].append(labels[kept:])
    sides = (("train", images.train_x, images.train_y), ("test", images.test_x, images.test_y))
    parts, declared = [], declare(letters, letter_names(letters))
    for (title, x, y), users in zip(sides, wanted, strict=True):
        labels = np.concatenate(users)
        sizes = np.array([own.size for own in users]).reshape(-1, USERS_PER_DEVICE).sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = _rows(title, labels, y, letters, rng)
        parts.append(flat_part(title, pixels(x[rows]), y[rows], offsets, declared))
    return checked(parts, Names(), declared)


def _rows(title: str, wanted: Ints, pool: Ints, letters: int, rng: np.random.Generator) -> Ints:
    """Return a row of the pool for every wanted label; a class is gone through in random order, again and again."""
    rows = np.empty(wanted.size, dtype=np.int64)
    for label in range(letters):
        places, order = np.flatnonzero(wanted == label), rng.permutation(np.flatnonzero(pool == label))
        if places.size and not order.size:
            raise InputError(
                f"the pool has no {title} image of the letter '{letter_names(letters)[label]}', "
                f"but it must have one of each of {letters} letters"
            )
        rows[places] = np.resize(order, places.size)
    return rows

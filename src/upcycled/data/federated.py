"""``FederatedData``: the samples of all clients, checked once and never again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import FRACTION, InputError
from upcycled.core.facts import Facts
from upcycled.core.objective import TargetKind
from upcycled.core.vectors import Ints, Shards
from upcycled.data import splits
from upcycled.data.arrays import (
    MOST_CLASSES_GUESSED,
    Names,
    RawPart,
    check_parts,
    flat_part,
    is_typed,
    labels_of,
    lists_part,
    numbers,
    row_numbers,
    whole,
)
from upcycled.data.description import Description, describe
from upcycled.data.options import DataKeywords, DataOptions
from upcycled.data.schema.schema import Schema


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Training samples of every client and, where there are some, test and validation samples.

    Make one with :meth:`from_arrays`, :meth:`from_flat` or :meth:`from_pool`, with :func:`upcycled.data.load` or
    with :func:`upcycled.data.sets.synthetic`: they check it, the bare constructor does not. Features are float32, or
    int64 where everything brought was an integer (a model decides whether those are tokens); labels are int64.

    >>> data = FederatedData.from_arrays([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]], [[0, 1], [1]])
    >>> data
    FederatedData(2 clients, 3 training samples of 2 features, 2 classes)
    """

    train: Shards
    """Every client's training samples."""
    test: Shards | None
    """Every client's test samples, where there are some."""
    num_classes: int
    """Labels are whole numbers below it; or how many labels or numbers a target has."""
    client_names: tuple[str, ...] | None = None
    """Names that are not numbers, in the order of the clients."""
    client_ids: Ints | None = None
    """The numbers a file had for the clients, where they are not 0, 1, 2, ..."""
    feature_names: tuple[str, ...] | None = None
    """The columns of a table, where features come from one."""
    other_columns: tuple[str, ...] = ()
    """The columns of that table that are no features: client, label, and what was not asked for."""
    label_names: tuple[str, ...] | None = None
    """What the classes are called."""
    validation: Shards | None = None
    """Samples held out for choosing settings."""
    vectors: NDArray[np.float32] | None = None
    """For token ids: a fixed vector for every id, which a model named "lstm" takes as its embedding."""
    has_copies: bool | None = None
    """Whether equal samples are one sample in several places (FEMNIST's images), so that they are held out together.

    None looks for copies when samples are held out; ``replace(data, has_copies=False)`` spares the look.
    """
    public: bool = False
    """Whether everybody may know the samples, so that nothing about them needs protection."""
    vocabulary: int | None = None
    """How many token ids there are, where that was given."""
    inferred: frozenset[str] = frozenset()
    """Facts that were read off the samples: "classes", "vocabulary", "dtype", "sizes", "schema" (what a draft of one
    took from them); real noise wants them given."""
    targets: TargetKind = "classes"
    """What a sample's target is: one of the classes; one or more numbers; or several labels, each 0 or 1."""
    schema: Schema | None = None
    """What the columns of the tables mean that the samples come from, where a schema says so."""
    notes: tuple[str, ...] = ()
    """What was repaired, and what else a look at the samples said: for their holder, and not to be published."""

    @classmethod
    def from_arrays(
        cls,
        xs: Sequence[ArrayLike],
        ys: Sequence[ArrayLike],
        test: tuple[Sequence[ArrayLike], Sequence[ArrayLike]] | None = None,
        **options: Unpack[DataKeywords],
    ) -> FederatedData:
        """Take one feature array and one label array per client; ``test`` is such a pair of lists.

        A client may have an empty test array, never an empty training array.

        Args:
            xs: the features of every client.
            ys: its labels: class numbers, or names that are in ``label_names``.
            test: the test part: a pair like (xs, ys).
            options: facts and wishes about the data: ``num_classes``, ``label_names``, ``vocabulary``, ``targets``,
                ``client_names``, ``test_fraction``, ``seed``, ``repair``, ``public``
                (:class:`upcycled.data.options.DataOptions` explains each).

        Returns:
            The data, checked.

        Raises:
            InputError: in one sentence that names the client, where shapes, labels or numbers do not fit.

        >>> FederatedData.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]], client_names=["ann", "bob"]).name_of(1)
        'bob'
        >>> FederatedData.from_arrays([[[1.0], ["?"]]], [[0, 7]], num_classes=2, repair=True).train.y.tolist()
        [0, 0]
        """
        given = DataOptions.of(options)
        names = Names(clients=given.client_names)
        parts = [lists_part("train", xs, ys, names, None, given)]
        if test is not None:
            parts.append(lists_part("test", test[0], test[1], names, parts[0].x.shape[1:], given))
        return finished(checked(parts, names, given), given)

    @classmethod
    def from_flat(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        offsets: ArrayLike,
        test: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
        **options: Unpack[DataKeywords],
    ) -> FederatedData:
        """Take flat arrays: client i owns rows ``offsets[i]`` .. ``offsets[i+1] - 1``; ``test`` is such a triple.

        Row-major float32 or int64 features and int64 labels are used as they are, memory-mapped ones too: they are
        read once, in chunks, to check them. Other types are converted, which makes a copy, as a repair does.

        Args:
            x: the features of all clients.
            y: the labels of all clients.
            offsets: where each client's rows begin, and the end of the last.
            test: the test part: a triple like (x, y, offsets).
            options: facts and wishes about the data: ``num_classes``, ``label_names``, ``vocabulary``, ``targets``,
                ``client_names``, ``test_fraction``, ``seed``, ``repair``, ``public``
                (:class:`upcycled.data.options.DataOptions` explains each).

        Returns:
            The data, checked.

        Raises:
            InputError: in one sentence that names the client, where shapes, labels or numbers do not fit.

        >>> FederatedData.from_flat([[1.0], [2.0], [3.0]], [0, 1, 1], [0, 1, 3]).sizes.tolist()
        [1, 2]
        """
        given = DataOptions.of(options)
        parts = [flat_part("train", x, y, offsets, given)]
        if test is not None:
            parts.append(flat_part("test", *test, given))
        return finished(checked(parts, Names(clients=given.client_names), given), given)

    @classmethod
    def from_pool(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        parts: Sequence[ArrayLike],
        **options: Unpack[DataKeywords],
    ) -> FederatedData:
        """Deal pooled rows out to clients: ``parts`` has one array of row numbers per client (see ``partition``).

        The number of classes, where it is not given, comes from the whole pool, also when some of it is not dealt out.

        Args:
            x: the features of all samples.
            y: the labels of all samples.
            parts: the rows of each client.
            options: facts and wishes about the data: ``num_classes``, ``label_names``, ``vocabulary``, ``targets``,
                ``client_names``, ``test_fraction``, ``seed``, ``repair``, ``public``
                (:class:`upcycled.data.options.DataOptions` explains each).

        Returns:
            The data, checked.

        Raises:
            InputError: in one sentence that names the client, where shapes, labels or numbers do not fit.

        >>> FederatedData.from_pool([[1.0], [2.0], [3.0]], [0, 1, 1], [[2, 0], [1]]).train.y.tolist()
        [1, 0, 1]
        """
        given = DataOptions.of(options)
        pool_x, pool_y = numbers("x", x, given.repair), labels_of("y", y, given)
        if pool_x.shape[:1] != pool_y.shape[:1]:
            raise InputError(
                f"has shape {pool_y.shape}, but it must have one label for each sample of x, which is {pool_x.shape}",
                field="y",
            )
        indices = row_numbers(parts, len(pool_y))
        order = np.concatenate(indices)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in indices])])
        is_inferred = given.kind == "classes" and given.classes is None
        known = replace(given, num_classes=_classes_in(pool_y)) if is_inferred else given
        dealt = flat_part("train", pool_x[order], pool_y[order], offsets, given)
        data = checked([replace(dealt, is_typed=is_typed(x))], Names(clients=given.client_names), known)
        inferred = data.inferred | ({"classes"} if is_inferred else set())
        return finished(replace(data, inferred=inferred), given)

    @property
    def num_clients(self) -> int:
        return self.train.num_clients

    def facts(self, *, counts_tokens: bool = False) -> Facts:
        """Return what is public of the data; ``counts_tokens`` looks at every one where a vocabulary was not given.

        Args:
            counts_tokens: whether features are token ids, so that the largest of them counts.

        Returns:
            The facts.

        >>> FederatedData.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]]).facts().sizes.tolist()
        [2, 1]
        """
        vocabulary = self.vocabulary
        if counts_tokens and vocabulary is None:
            parts = [part for part in (self.train, self.test) if part is not None and part.num_rows]
            vocabulary = 1 + max(int(part.x.max()) for part in parts)
        shape, dtype, sizes = self.feature_shape, self.train.x.dtype, self.train.sizes
        return Facts(
            *(shape, dtype, self.num_classes, sizes, self.num_clients),
            targets=self.targets,
            vocabulary=vocabulary,
            vectors=self.vectors,
            has_vectors=self.train.y.ndim > 1,
            feature_names=self.feature_names,
            other_columns=self.other_columns,
            label_names=self.label_names,
            schema=None if self.schema is None else self.schema.plain(),
        )

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(int(n) for n in self.train.x.shape[1:])

    @property
    def num_features(self) -> int:
        """How many numbers one sample has."""
        return int(np.prod(self.feature_shape))

    @property
    def sizes(self) -> Ints:
        return self.train.sizes

    def name_of(self, client: int) -> str:
        """Return what the source called a client, made only when asked for.

        Args:
            client: its number.

        Returns:
            Its name, or its number in the source.

        >>> FederatedData.from_arrays([[[1.0]], [[2.0]]], [[0], [1]]).name_of(1)
        '1'
        """
        return self.names.called(client)

    @property
    def names(self) -> Names:
        """What the source called clients and columns."""
        return Names(self.client_names, self.client_ids, self.feature_names)

    def split(self, test_fraction: float = 0.1, seed: int = 0) -> FederatedData:
        """Hold a random part of every client's training samples out as its test part.

        floor((1 - test_fraction) n) samples of a client stay, at least one. Its choice depends on the seed, its
        number and its size only. A copy of a sample then goes where the first one is, so that none is in both parts
        (``docs/data.md`` says what counts as a copy); where ``has_copies`` is True, a part of the distinct samples is
        held out instead. Copies the rows, so memory-mapped data ends up in memory.

        Args:
            test_fraction: the part to hold out.
            seed: which samples.

        Returns:
            The data with a test part; without one where nothing could be held out.

        Raises:
            InputError: if there is a test part already, or for a fraction that is none.

        >>> data = FederatedData.from_arrays([np.eye(10), np.eye(10)[:1]], [np.arange(10) % 2, [1]])
        >>> data.split(0.3).sizes.tolist()
        [7, 1]
        """
        return self._split_off("test", test_fraction, seed, splits.TEST)

    def with_validation(self, fraction: float = 0.1, seed: int = 0) -> FederatedData:
        """Hold a random part of every client's training samples out for choosing settings; as :meth:`split`.

        Args:
            fraction: the part to hold out.
            seed: which samples.

        Returns:
            The data with a validation part.

        Raises:
            InputError: if there is a validation part already, or for a fraction that is none.

        >>> data = FederatedData.from_arrays([np.eye(10)], [np.arange(10) % 2])
        >>> data.with_validation(0.2).validation.num_rows
        2
        """
        return self._split_off("validation", fraction, seed, splits.VALIDATION)

    def _split_off(self, part: str, fraction: float, seed: int, purpose: int) -> FederatedData:
        FRACTION.check(f"{part}_fraction", fraction)
        there: Shards | None = getattr(self, part)
        if there is not None:
            but = f"the data already has {there.num_rows} {part} samples, so it must be 0"
            raise InputError(field=f"{part}_fraction", value=fraction, but=but)
        train, held = splits.split_off(self.train, fraction, whole("seed", seed, 0), purpose, self.has_copies)
        # Sizes follow copies, if any count.
        inferred = self.inferred | {"sizes"} if fraction and self.has_copies is not False else self.inferred
        changes: dict[str, Any] = {"train": train, part: held if held.num_rows else None}
        return replace(self, inferred=inferred, **changes)

    def with_vectors(self, vectors: ArrayLike) -> FederatedData:
        """Give every token id a fixed vector: row i is the vector of id i. A model "lstm" takes them as its embedding.

        Args:
            vectors: the table, (ids, dimension).

        Returns:
            The data with them.

        Raises:
            InputError: if the features are no token ids, or an id has no row.

        >>> data = FederatedData.from_arrays([[[0, 1], [2, 1]]], [[0, 1]])
        >>> data.with_vectors(np.eye(3)).vectors.shape
        (3, 3)
        """
        table = numbers("vectors", vectors).astype(np.float32)
        if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
            raise InputError(
                f"has shape {table.shape}, but it must be (ids, dimension) of finite numbers", field="vectors"
            )
        parts = [part.x for part in (self.train, self.test, self.validation) if part is not None]
        if any(x.dtype.kind not in "iu" for x in parts):
            raise InputError(
                f"is given for features of type {parts[0].dtype}, but they must be token ids", field="vectors"
            )
        low, high = 0, (self.vocabulary or 0) - 1
        if self.vocabulary is None:
            low, high = min(int(x.min()) for x in parts), max(int(x.max()) for x in parts)
        if low < 0 or high >= len(table):
            raise InputError(
                f"has {len(table)} rows, but the token ids go from {low} to {high}, so they must be >= 0 and "
                f"it must have at least {high + 1}",
                field="vectors",
            )
        return replace(self, vectors=table)

    def describe(self) -> Description:
        """Return sizes, classes and label skew.

        Returns:
            The numbers; ``print`` shows them as a table.

        >>> found = FederatedData.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]]).describe()
        >>> found.samples, found.class_counts, round(found.label_skew, 3)
        (3, (1, 2), 0.25)
        """
        about = (self.num_classes, self.label_names, self.inferred, self.targets)
        return describe(self.train, self.test, self.validation, *about)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.feature_shape))
        clients = f"{self.num_clients} client{'s' * (self.num_clients != 1)}"
        return (
            f"FederatedData({clients}, {self.train.num_rows} training samples of {shape} features, "
            f"{self.num_classes} {self.targets if self.targets == 'classes' else f'{self.targets} a target'})"
        )


def checked(parts: list[RawPart], names: Names, options: DataOptions) -> FederatedData:
    """Check and convert the parts (training first) and put them together; parts without rows are left out."""
    clients = len(parts[0].offsets) - 1
    if names.clients is not None and len(names.clients) != clients:
        raise InputError(f"has {len(names.clients)} names, but there are {clients} clients", field="client_names")
    done = check_parts(parts, names, options)
    by_title = {part.title: found for part, found in zip(parts, done.shards, strict=True) if found.num_rows}
    return FederatedData(
        train=by_title["train"],
        test=by_title.get("test"),
        num_classes=done.num_classes,
        client_names=names.clients,
        client_ids=names.ids,
        feature_names=names.features,
        label_names=options.label_names,
        validation=by_title.get("validation"),
        # What is held out must not depend on what it is equal to.
        has_copies=False if options.repair else None,
        vocabulary=options.vocabulary,
        inferred=done.inferred,
        targets=options.kind,
        notes=done.notes,
    )


def finished(data: FederatedData, options: DataOptions) -> FederatedData:
    """Return the data marked as public and split, as the options say."""
    data = replace(data, public=options.public)
    return data.split(options.test_fraction, options.seed) if options.test_fraction else data


def _classes_in(pool: NDArray[Any]) -> int | None:
    """Return the classes of a whole pool of labels; None where the dealt labels alone should be judged."""
    sound = pool[np.isfinite(pool)]
    top = int(sound.max()) if sound.size else 0
    return top + 1 if 1 <= top < MOST_CLASSES_GUESSED else None

"""What everybody in a federation may know of its data before the first round: enough to plan a run without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, shown
from upcycled.core.objective import TargetKind
from upcycled.core.vectors import Ints


@dataclass(frozen=True, eq=False)
class Facts:
    """Public facts about a federation's data, as whoever plans knows them: a server all n_i, a client its own."""

    shape: tuple[int, ...]
    """Of one sample's features."""
    dtype: np.dtype[Any]
    classes: int
    """Classes; or labels or numbers of a target."""
    sizes: Ints
    """n_i of the clients that are known here."""
    num_clients: int
    """N, all clients."""
    ids: Ints | None = None
    """The numbers of the clients whose sizes are known, ascending; None where that is all of them."""
    targets: TargetKind = "classes"
    vocabulary: int | None = None
    """How many token ids there are, where features are such."""
    vectors: NDArray[np.float32] | None = None
    """The fixed vectors of the token ids, where the federation has some."""
    has_vectors: bool = False
    """Whether a target is a vector, even of one number."""
    feature_names: tuple[str, ...] | None = None
    """What the features are called, where they come from a table."""
    other_columns: tuple[str, ...] = ()
    """The columns of that table that are no features."""
    label_names: tuple[str, ...] | None = None
    """What the classes are called."""
    schema: Mapping[str, Any] | None = None
    """What the columns of the clients' tables mean, in plain values, where a schema says so."""
    class_counts: tuple[int, ...] | None = None
    """Training samples of each class, where everybody may know them and somebody needs them."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """What a client that knows its own n_i only has to be told of the mechanism (see ``Fitted.shared``)."""

    def of_client(self, client: int, shared: Mapping[str, float]) -> Facts:
        """Return what the client with this number has to know: nobody else's size.

        >>> facts = Facts((20,), np.dtype(np.float32), 2, np.array([5, 6, 7]), 3)
        >>> facts.of_client(1, {}).sizes.tolist()
        [6]
        """
        mine = np.array([client], dtype=np.int64)
        return replace(self, sizes=self.sizes[self.rows_of(mine)], ids=mine, shared=shared)

    def rows_of(self, clients: Ints) -> Ints:
        """Return where these clients' numbers lie here."""
        if self.ids is None:
            return clients
        rows = np.searchsorted(self.ids, clients)
        if (rows >= self.ids.size).any() or (self.ids[np.minimum(rows, self.ids.size - 1)] != clients).any():
            raise InputError(f"clients {shown(clients.tolist())} are asked, but {shown(self.ids.tolist())} are here")
        return rows

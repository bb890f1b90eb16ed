"""Which directions of a flat vector a model's predictions can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from upcycled.core.layout import Layout
from upcycled.core.vectors import Real, Vector


@dataclass(frozen=True)
class EffectiveDirections:
    """All of them; or, of softmax regression, those without class means.

    Adding one number to the logits of all classes changes no probability: no data pull in that direction, and privacy
    noise in it does no harm.
    """

    layout: Layout
    is_softmax: bool = False
    """Whether the model is softmax regression, whose parameters all have the classes as their first axis."""

    @cached_property
    def dimension(self) -> float:
        """D, or (K-1)/K of it for softmax over K classes."""
        return self.layout.size * ((self._classes - 1) / self._classes if self.is_softmax else 1.0)

    def of(self, vectors: Vector) -> Real:
        """Return vectors (..., D) in float64 without what nobody can see.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).of(np.array([1.0, 2.0, 3.0, 6.0, 0.0, 1.0])).tolist()
        [-1.0, -2.0, 1.0, 2.0, -0.5, 0.5]
        """
        exact = vectors.astype(np.float64)
        if self.is_softmax:
            for first, last in pairwise(self.layout.offsets):
                block = exact[..., first:last].reshape(*exact.shape[:-1], self._classes, -1)  # only an axis is split
                # What block.mean does, in a fifth of its time: small rounds last a millisecond.
                block -= np.add.reduce(block, axis=-2, keepdims=True) / self._classes
        return exact

    def squares(self, vectors: Real) -> Real:
        """Return ||of(v)||^2 of vectors (..., D) without making of(v): less the class means' part. They are lost.

        Sums and products only: of a small round it is not the numbers that take time but each new function of NumPy.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).squares(np.array([[1.0, 2.0, 3.0, 6.0, 0.0, 1.0]])).tolist()
        [10.5]
        """
        unseen: Real | float = 0.0
        if self.is_softmax:
            classes = self._classes
            for first, last in pairwise(self.layout.offsets):
                block = vectors[..., first:last]
                if last - first == classes:  # a bias: one number for each class
                    sums = np.add.reduce(block, axis=-1)
                    unseen += sums * sums
                else:
                    sums = np.add.reduce(block.reshape(*vectors.shape[:-1], classes, -1), axis=-2)
                    sums *= sums
                    unseen += np.add.reduce(sums, axis=-1)
            unseen /= classes
        vectors *= vectors
        found: Real = np.add.reduce(vectors, axis=-1) - unseen
        return found

    @cached_property
    def _classes(self) -> int:
        return self.layout.shapes[0][0]

"""Which directions of a flat vector a model's predictions can tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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
        classes = self.layout.shapes[0][0] if self.is_softmax else None
        return self.layout.size * (1.0 if classes is None else (classes - 1) / classes)

    def of(self, vectors: Vector) -> Real:
        """Return vectors (..., D) in float64 without what nobody can see.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).of(np.array([1.0, 2.0, 3.0, 6.0, 0.0, 1.0])).tolist()
        [-1.0, -2.0, 1.0, 2.0, -0.5, 0.5]
        """
        exact = vectors.astype(np.float64)
        if self.is_softmax:
            for block, classes in self._by_class(exact):
                # What block.mean does, in a fifth of its time: small rounds last a millisecond.
                block -= np.add.reduce(block, axis=-2, keepdims=True) / classes
        return exact

    def squares(self, vectors: Real) -> Real:
        """Return ||of(v)||^2 for each of vectors (cohort, D) without making of(v): the class means' part is taken off.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).squares(np.array([[1.0, 2.0, 3.0, 6.0, 0.0, 1.0]])).tolist()
        [10.5]
        """
        found: Real = np.einsum("cd,cd->c", vectors, vectors)
        if self.is_softmax:
            for block, classes in self._by_class(vectors):
                sums = np.einsum("ckd->cd", block)  # in a third of the time of np.add.reduce
                found -= np.einsum("cd,cd->c", sums, sums) / classes
        return found

    def _by_class(self, vectors: Real) -> Iterator[tuple[Real, int]]:
        """Yield each parameter of softmax regression as (..., classes, rest), and how many classes there are."""
        offsets = self.layout.offsets
        for shape, first, last in zip(self.layout.shapes, offsets, offsets[1:], strict=False):
            yield vectors[..., first:last].reshape(*vectors.shape[:-1], shape[0], -1), shape[0]  # only an axis is split

"""How wide the kernels' vectors are on this machine: the padding, the tiles and the micro-kernels follow from it."""

from __future__ import annotations

from llvmlite import binding  # type: ignore[import-untyped]

LANES: int = 16 if binding.get_host_cpu_features().get("avx512f", False) else 8
"""float32 numbers in one vector; where registers are smaller, LLVM splits the vectors."""

TILE = 32
"""Samples worked on at once: their rows stay in the first cache levels, and memory does not grow with the batch."""


def padded(count: int) -> int:
    """Return ``count`` rounded up to whole vectors."""
    return -(-count // LANES) * LANES

"""From NumPy to torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_torch(array: NDArray[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Copy an array into torch's own memory.

    Torch aligns what it allocates, NumPy does not, and a matrix product may round by where its operands begin: so the
    same numbers give the same bits in every process.

    >>> to_torch(np.arange(3))
    tensor([0, 1, 2])
    """
    kind = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    out = torch.empty(array.shape, dtype=kind)
    out.numpy()[...] = array
    return out.to(device)

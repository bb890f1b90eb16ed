"""Modules that a function of the user's makes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from upcycled.core.errors import InputError, reason_of


def made_by(factory: Callable[[], object], value: object, seed: int) -> nn.Module:
    """Call a factory with torch's generator set to a seed; the caller's generator is as before.

    Args:
        factory: a function without arguments.
        value: what the user wrote for it, for sentences.
        seed: of the weights that it draws.

    Raises:
        InputError: if it fails, or returns something else than a module.

    >>> made_by(lambda: nn.Linear(3, 2), "linear", seed=0)
    Linear(in_features=3, out_features=2, bias=True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        try:
            module = factory()
        except Exception as error:
            raise _wrong(value, f"calling it failed with {type(error).__name__}: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise _wrong(value, f"it returned {type(module).__name__}")
    return module


def _wrong(value: object, reason: str) -> InputError:
    must = f"a function without arguments that returns a torch module ({reason})"
    return InputError(field="model", value=value, must=must)

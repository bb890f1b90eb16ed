"""The package's mechanisms, one file each, and the table of their names.

What may leave a client: one file a mechanism; the docstring states the guarantee and what it needs.

The package's mechanisms by name, and what an epsilon is called that rests on one of them or on somebody else's.
"""

from __future__ import annotations

from typing import Any

from upcycled.privacy.mechanisms.bolt_on import BoltOnSGD
from upcycled.privacy.mechanisms.central import CentralDPFedAvg
from upcycled.privacy.mechanisms.clipping import ModelClipping, UpdateClipping
from upcycled.privacy.mechanisms.dpsgd import DPSGD
from upcycled.privacy.mechanisms.erm_output import ErmOutput
from upcycled.privacy.mechanisms.objective_perturbation import ObjectivePerturbation

MECHANISMS: dict[str, type[Any]] = {
    made.name: made
    for made in (
        ModelClipping,
        UpdateClipping,
        ErmOutput,
        BoltOnSGD,
        ObjectivePerturbation,
        DPSGD,
        CentralDPFedAvg,
    )
}
"""The mechanisms by name."""
PROVEN = "proven"


def claim_word(*mechanisms: str) -> str:
    """Return what an epsilon is that rests on the mechanisms of these names: proven, or whose claim it is.

    A name tells, in a file of any age too, because a plan refuses somebody else's mechanism that goes by one of these.

    >>> claim_word("erm_output"), claim_word("erm_output", "signs")
    ('proven', 'claimed by signs, not proven by this package')
    """
    others = sorted(set(mechanisms).difference(MECHANISMS))
    return f"claimed by {' and '.join(others)}, not proven by this package" if others else PROVEN


def epsilon_called(claim: str) -> str:
    """Return what a number is called that :func:`claim_word` gave the word for.

    >>> epsilon_called(claim_word("erm_output")), epsilon_called(claim_word("signs"))
    ('proven epsilon', 'epsilon (claimed by signs, not proven by this package)')
    """
    return f"{PROVEN} epsilon" if claim == PROVEN else f"epsilon ({claim})"

"""Privacy: mechanisms that decide what leaves a client, the ledger, accounting, and the audit.

The ``epsilon`` of a mechanism of this package is always proven for what the code did, that of another is called its
claim; the paper's numbers are called ``paper_epsilon``. To add a mechanism: write its file, and add it here and to
``MECHANISMS`` in ``mechanisms/__init__.py``.
"""

from __future__ import annotations

from upcycled.core.errors import BudgetSpentError
from upcycled.core.mechanism import Charge, Promise, Release
from upcycled.privacy import audit
from upcycled.privacy.accounting import *  # noqa: F403
from upcycled.privacy.accounting import __all__ as _accounting
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.charged_scores import ChargedScores
from upcycled.privacy.ledger.budget import Budget
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms import MECHANISMS
from upcycled.privacy.mechanisms.bolt_on import BoltOnSGD
from upcycled.privacy.mechanisms.central import CentralDPFedAvg
from upcycled.privacy.mechanisms.clipping import ModelClipping, UpdateClipping
from upcycled.privacy.mechanisms.dpsgd import DPSGD
from upcycled.privacy.mechanisms.erm_output import ErmOutput
from upcycled.privacy.mechanisms.objective_perturbation import ObjectivePerturbation

__all__ = [
    "DPSGD",
    "MECHANISMS",
    "Account",
    "BoltOnSGD",
    "Budget",
    "BudgetSpentError",
    "CentralDPFedAvg",
    "Charge",
    "ChargedScores",
    "ErmOutput",
    "Ledger",
    "ModelClipping",
    "ObjectivePerturbation",
    "Promise",
    "Release",
    "UpdateClipping",
    "audit",
    *_accounting,
]

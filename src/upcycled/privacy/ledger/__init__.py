"""What every client has spent: written before a release leaves, read from the file alone, composed in one place."""

from upcycled.privacy.ledger.budget import Budget
from upcycled.privacy.ledger.ledger import Ledger

__all__ = ["Budget", "Ledger"]

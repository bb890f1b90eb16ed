"""Clients that an account meets for the first time: a new site, or an old one under another name."""

from __future__ import annotations

from collections.abc import Iterable

from upcycled.data.likeness import Likeness
from upcycled.privacy.accounts.account import Account

_LISTED = 5


def new_to_account(account: Account, clients: Iterable[str]) -> tuple[str, ...]:
    """Say which clients an account that was charged before does not know: names are all it can tell records apart by.

    Args:
        account: the data holder's.
        clients: what the holder calls those of the runs to come.

    Returns:
        One sentence, or none where there is nobody new.
    """
    if not account.charges:
        return ()
    known = dict.fromkeys(name for study in account.studies for name in study.clients)
    unknown = [name for name in dict.fromkeys(clients) if name not in known]
    if not unknown:
        return ()
    alike = Likeness(known)
    nearest = {name: alike.nearest(name) for name in unknown}
    # Those that may have another name already are listed first.
    ordered = sorted(unknown, key=lambda name: nearest[name] is None)
    words = [
        repr(name) if nearest[name] is None else f"{name!r} (nearly {nearest[name]!r}, which it knows)"
        for name in ordered[:_LISTED]
    ]
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return (
        f"new to account {account.id}: {', '.join(words)}{more}; a client that was renamed starts at zero there, and "
        "its records may be charged twice over",
    )

"""What a site gets from whoever runs a federation: one file, without any secret."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled.config.wording import named
from upcycled.core.errors import InputError, reason_of
from upcycled.flower.certificates import fingerprint


@dataclass(frozen=True)
class Invitation:
    """Where the server is, and how it proves itself."""

    federation: str
    site: str
    address: str
    certificate: str
    """The authority's, in PEM."""
    fingerprint: str
    schema: Mapping[str, Any] | None = None
    """What the columns of the sites' tables mean, in plain values, where the experiment says so: whoever has the table
    reads it."""


def read_invitation(path: str | os.PathLike[str]) -> Invitation:
    """Read an invitation.

    Raises:
        InputError: in one sentence, if it is none, or was changed.
    """
    with named(str(path)):
        try:
            raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            given = {key: raw[key] for key in ("federation", "site", "address", "certificate", "fingerprint")}
            if not all(isinstance(value, str) for value in given.values()):
                raise ValueError("a key has no text")
            is_same = fingerprint(given["certificate"].encode()) == given["fingerprint"]
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"the file is no invitation ({reason_of(error)}): ask for it again") from None
        if not is_same:
            raise InputError("the certificate is not the one that the fingerprint is of: ask for the file again")
        return Invitation(**given, schema=raw.get("schema"))

"""What a terminal would decide, decided."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    """Tables and help are as wide as where there is no terminal, whatever the caller's environment says."""
    monkeypatch.setenv("COLUMNS", "80")

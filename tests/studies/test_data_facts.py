"""The numbers of docs/data.md are measured ones."""

from __future__ import annotations

import pytest

from studies import data_facts
from studies.common.page import replaced


@pytest.mark.slow
def test_the_page_has_the_measured_tables(shared_data, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    text = data_facts.PAGE.read_text()
    assert "<!-- facts: begin -->" in text
    assert replaced(text, data_facts.blocks()) == text

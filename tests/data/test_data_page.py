"""The numbers of docs/data.md are measured ones."""

from __future__ import annotations

import pytest

from studies import data_facts


@pytest.mark.slow
def test_the_page_has_the_measured_tables(shared_data, monkeypatch):
    monkeypatch.setattr(data_facts, "FOLDER", shared_data)
    text = data_facts.PAGE.read_text()
    assert data_facts.page_with(text, data_facts.facts()) == text


def test_tables_are_put_between_their_marks():
    page = f"a\n{data_facts.BEGIN}\nold\n{data_facts.END}\nb\n"
    assert data_facts.page_with(page, "new") == f"a\n{data_facts.BEGIN}\nnew\n{data_facts.END}\nb\n"

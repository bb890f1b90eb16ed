"""Sentences are held to their facts, not to their words: a field, a value, a limit, a place."""

from __future__ import annotations


def has_all(sentence: str, *facts: object) -> bool:
    """Tell whether a sentence has all of these, in any order and whatever stands between them."""
    return all(str(fact) in sentence for fact in facts)


def only_line(printed: str) -> str:
    """Return what was printed if it is exactly one line."""
    assert printed.endswith("\n"), printed
    assert printed.count("\n") == 1, printed
    return printed

"""The public API changes only together with a changelog entry that names what changed."""

from __future__ import annotations

import pytest

from tests.api.listing import CHANGELOG, bullets, changes, listed, mark, read_names, read_told, untold
from tests.test_public_docs import exported


def test_every_change_of_the_public_api_is_told_in_the_changelog():
    changed = changes(listed(exported()), read_names())
    missing = untold(changed, CHANGELOG.read_text(encoding="utf-8"), read_told())
    assert missing == [], "tell it in CHANGELOG.md; then `python -m tests.api.record` may keep it"


def test_the_kept_list_holds_functions_classes_methods_and_properties():
    kept = read_names()
    assert kept["up.FedProx"] == "(mu=...)"
    assert kept["up.InputError"] == "error"
    assert kept["up.data.synthetic"].startswith("(")
    assert "up.privacy.Ledger.read" in kept
    assert kept["up.Result.accuracy"] == "property"


class One:
    def __init__(self, width, depth=1, *rest, mu, **more):
        self.width = width

    def area(self, scale=2):
        return self.width * scale

    @property
    def name(self):
        return "one"

    @classmethod
    def of(cls, text):
        return cls(text, mu=1)

    def _own(self):
        return None


def test_a_name_is_kept_with_what_it_takes():
    assert listed([("up.One", One), ("up.STOP", "stop")]) == {
        "up.One": "(width, depth=..., *rest, mu, **more)",
        "up.One.area": "(scale=...)",
        "up.One.name": "property",
        "up.One.of": "(text)",
        "up.STOP": "str",
    }


OLD = "## [Unreleased]\n- `up.train` has a\n  `theory`.\n\n### Fixed\n- A slip.\n"


@pytest.mark.parametrize(
    ("added", "missing"),
    [
        ("", ["up.One.area", "up.train"]),
        ("- `train` takes `speed`.\n", ["up.One.area"]),
        ("- `train` takes `speed`; `One.area` is new.\n", []),
        ("- The constraints and areas of training.\n", ["up.One.area", "up.train"]),
        ("- `up.data` has changed.\n", ["up.One.area", "up.train"]),
    ],
)
def test_a_change_needs_an_entry_of_its_own(added, missing):
    before = {"up.train": "(data)", "up.One.area": "()", "up.load": "(path)"}
    now = {"up.train": "(data, speed)", "up.load": "(path)"}
    told = {mark(entry) for entry in bullets(OLD)}
    assert len(told) == 2
    assert untold(changes(now, before), OLD + added, told) == missing


def test_an_entry_that_is_only_laid_out_anew_is_not_new():
    assert bullets("- `up.train`\n  has a\n  `theory`.\n") == ["- `up.train` has a `theory`."]
    assert bullets("- `up.train` has a\n  `theory`.\n") == ["- `up.train` has a `theory`."]

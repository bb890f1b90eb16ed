"""The public API changes only together with its recorded list."""

from __future__ import annotations

from tests.api.listing import listed, read_names
from tests.test_public_docs import exported


def test_the_public_api_is_the_recorded_one():
    now, before = listed(exported()), read_names()
    changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    assert not changed, "describe the change in CHANGELOG.md, then run `python -m tests.api.record`"


def test_the_kept_list_holds_functions_classes_methods_and_properties():
    kept = read_names()
    assert kept["up.FedProx"] == "(mu=..., server_lr=...)"
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

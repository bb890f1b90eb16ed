"""``python -m tests.api.record`` records the public API as it is now; describe the change in CHANGELOG.md."""

from __future__ import annotations

from tests.api.listing import NAMES, listed
from tests.test_public_docs import exported

HEAD = "# What users may rely on: every public name, and how it is called. Written by `python -m tests.api.record`.\n"

if __name__ == "__main__":
    now = listed(exported())
    NAMES.write_text(HEAD + "".join(f"{name} {shape}\n" for name, shape in now.items()), encoding="utf-8")

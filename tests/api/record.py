"""``python -m tests.api.record`` keeps the public API as it is now, once the changelog tells what has changed."""

from __future__ import annotations

import sys

from tests.api.listing import CHANGELOG, NAMES, TOLD, bullets, changes, listed, mark, read_names, read_told, untold
from tests.test_public_docs import exported

HEAD = "# What users may rely on: every public name, and how it is called. Written by `python -m tests.api.record`.\n"


def main():
    now, text = listed(exported()), CHANGELOG.read_text(encoding="utf-8")
    if NAMES.exists():
        missing = untold(changes(now, read_names()), text, read_told())
        if missing:
            return f"CHANGELOG.md has no new entry that names {', '.join(missing)}"
    NAMES.write_text(HEAD + "".join(f"{name} {shape}\n" for name, shape in now.items()), encoding="utf-8")
    TOLD.write_text("".join(f"{mark(entry)}\n" for entry in bullets(text)), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())

"""``python -m upcycled`` is the command ``upcycled``."""

from __future__ import annotations

import sys

from upcycled.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

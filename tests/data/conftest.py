import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the official sets; tests that need it are skipped where it is absent."""
    named = os.environ.get("UPCYCLED_DATA")
    folder = Path(named) if named else Path(__file__).parents[2].parent / "shared" / "data"
    if not (folder / "upcycled_synthetic.npz").is_file():
        pytest.skip(f"needs upcycled_synthetic.npz in $UPCYCLED_DATA or {folder}")
    return folder

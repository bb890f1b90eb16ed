"""Results that more than one file of tests looks at."""

from __future__ import annotations

import pytest

from tests.report.report_cases import run_all


@pytest.fixture(scope="session")
def several(tmp_path_factory):
    """A folder of five experiments, private and not, vanilla and upcycled; tests must not change it."""
    return run_all(tmp_path_factory.mktemp("report") / "several")

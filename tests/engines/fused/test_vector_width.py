"""Vectors of the other width: what runs on machines with wider registers than this one's, or narrower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, pytest
from upcycled.engines.fused import workspace
workspace.LANES = 24 - workspace.LANES
sys.exit(pytest.main([*sys.argv[1:], "-p", "no:cacheprovider"]))
"""


@pytest.mark.slow
def test_vectors_of_eight_and_of_sixteen_compute_the_same(tmp_path):
    here = Path(__file__).parent
    tests = [str(here / name) for name in ("test_training.py", "test_scoring.py", "test_noisy.py")]
    environment = {**os.environ, "UPCYCLED_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", CODE, *tests]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=here.parents[2])
    assert done.returncode == 0, done.stdout[-3000:]

"""What a command says before a private run charges anything: it follows from the file, never from cells."""

from __future__ import annotations

import os
import shlex

from upcycled.config.experiment import Experiment
from upcycled.config.sources import ColumnsFile


def about_cells(experiment: Experiment) -> tuple[str, ...]:
    """Say how the holder sees what a restricted run replaces without a word; nothing of other experiments.

    The run itself cannot: whether cells fit the schema follows from records. So it is said of every such run alike.
    """
    table = experiment.data
    if not experiment.is_restricted or not isinstance(table, ColumnsFile) or table.schema_ is None:
        return ()
    paths = [table.path] if isinstance(table.path, str) else table.path
    files = shlex.join(os.path.relpath(path) for path in paths)
    return (
        "cells that do not fit the schema are replaced without a word here, labels too: `upcycled data check "
        f"{files} --schema SCHEMA --repair` says how many, to the holder alone",
    )

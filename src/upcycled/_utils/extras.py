"""Packages that not everybody installs: which extra brings each, and the sentence where one is missing."""

from __future__ import annotations

import importlib

from upcycled.core.errors import InputError

EXTRAS = {
    "argcomplete": "completion",
    "flwr": "flower",
    "jinja2": "report",
    "matplotlib": "report",
    "mlflow": "mlflow",
    "openpyxl": "excel",
    "optuna": "sweep",
    "pandas": "data",
    "pooch": "data",
    "pyarrow": "data",
    "sklearn": "metrics",
    "tensorboard": "tensorboard",
    "tqdm": "data",
}
"""Name in an import -> extra in pyproject.toml, all packages of a call below being of one extra."""


def install_hint(extra: str) -> str:
    """Return how to install an extra without asking an index, where the package's name may belong to somebody else."""
    return f"pip install '.[{extra}]' in a checkout, or pip install 'FILE.whl[{extra}]'"


def missing(*packages: str) -> str:
    """Return what installs these packages if one of them is not there, else nothing.

    >>> missing("pandas")
    ''
    """
    try:
        # Imported, not looked up: one that is there without what it needs itself is cured by the same line.
        for package in packages:
            importlib.import_module(package)
    except ImportError:
        return f"needs {' and '.join(packages)}: {install_hint(EXTRAS[packages[0]])}"
    return ""


def needs(what: str, *packages: str) -> None:
    """Refuse to begin what cannot be done without these packages.

    Raises:
        InputError: if one of them is not there.
    """
    if words := missing(*packages):
        raise InputError(words, field=what)

"""The report: one self-contained HTML page made from the plain files of a results folder.

``collect`` reads the files, other modules turn them into values without markup, ``page`` renders those with
``templates``, and ``assets`` holds the style and the script that go into the page.
Nothing here trains, and nothing but the folder's own files is read.
"""

from __future__ import annotations

from pathlib import Path

from upcycled._utils.files import write_whole
from upcycled.core.errors import InputError
from upcycled.report.collect import Part, Results, Seed, collect
from upcycled.report.page import render

__all__ = ["Part", "Results", "Seed", "collect", "render", "write_page", "write_report"]

NAME = "report.html"


def write_report(folder: Path, output: Path | None = None, title: str | None = None) -> Path:
    """Write the page of a results folder and return where it is: ``report.html`` in the folder, or ``output``.

    The folder may be that of a seed, of an experiment, or of several experiments (a demo, a comparison, a sweep). The
    same files give the same page, byte for byte.

    Raises:
        InputError: if there is nothing to report, ``output`` cannot be a file, or Jinja2 (extra ``report``) is
            not there.
        WriteError: if the page cannot be written; an earlier one is still there.
    """
    return write_page(collect(Path(folder)), Path(folder), output, title)


def write_page(results: Results, folder: Path, output: Path | None = None, title: str | None = None) -> Path:
    """Write the page of results that were read already; see :func:`write_report`."""
    target = folder / NAME if output is None else output
    if target.is_dir():
        raise InputError(f"--output is '{target}', which is a folder, but it must be the path of an HTML file")
    write_whole(target, render(results, title).encode())
    return target

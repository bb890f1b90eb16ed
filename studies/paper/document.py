"""``docs/reproduction.md``: its tables and counts are written from the cells, between marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.common.page import duration, table, write_page
from studies.paper.markdown import accuracy_table, choice_table, gain_table, private_table, status_line, time_table
from studies.paper.private import figure_titles
from studies.paper.published.command import published_block
from studies.paper.run import FIGURES, TIME, Book, all_figures, draw_figures, numbers, write_json
from studies.paper.tables import Filled, fill
from studies.paper.verdict import against_server_lr, all_gains, by_method, gains, longer_steps, private_gains


def write_document(book: Book, page: Path, images: Path) -> list[Path]:
    """Write the page's blocks, its pictures, and the numbers as JSON beside the cells; return what was written."""
    folder = book.store.folder
    written = [page, *draw_figures(book, images)]
    for what in (*book.settings.tables, TIME, FIGURES):
        write_json(folder / f"{what}.json", numbers(book, what))
        written.append(folder / f"{what}.json")
    write_page(page, page_blocks(book))
    return written


def page_blocks(book: Book) -> dict[str, list[str]]:
    settings = book.settings
    filled = {name: fill(settings, one, book.store) for name, one in settings.tables.items()}
    found: dict[str, list[str]] = {}
    for name, one in filled.items():
        found[name] = [status_line(one), "", *accuracy_table(one), "", *gain_table(one)]
        found[f"{name}-verdict"] = gains(one)
        found[f"{name}-choices"] = choice_table(one)
    many = filled["seeds"]
    found["seeds-gains"] = [status_line(many), "", *gain_table(many)]
    found["seeds-rho"], found["seeds-methods"] = gain_table(many, of_rho=True), by_method(many)
    for name in ("table1", "table2", "table3"):
        found[f"{name}-server-lr"] = against_server_lr(filled[name])
    private = numbers(book, FIGURES)
    found["status"] = _status(book, filled, private)
    found["steps"] = longer_steps(settings, book.store)
    there = all_figures(book)
    for name in ("convergence-90", "convergence-30", *(f"private-{figure}" for figure in figure_titles())):
        picture = f"![{there[name].title}](images/reproduction-{name}.png)" if name in there else "No figure yet."
        found[f"figure-{name}"] = [picture]
    together = [filled[name] for name in ("table1", "table2", "table3", "seeds")]
    found["verdict"] = [all_gains(one, one.table.about) for one in together]
    found["as-published"] = published_block(book.store)
    found["table4"] = time_table(numbers(book, TIME)["rows"], settings)
    found["private-verdict"] = []
    for name in private["titles"]:
        rows = [row for row in private["panels"] if row["figure"] == name]
        missing = sum(row["runs"]["missing"] for row in rows)
        wanted = sum(row["runs"]["wanted"] for row in rows)
        words = f"**Not computed yet: {missing} of {wanted} runs.**" if missing else f"Complete: {wanted} runs."
        found[f"private-{name}"] = [words, "", *private_table(rows)]
        found["private-verdict"] += private_gains(private["titles"][name], rows)
    return found


def _status(book: Book, filled: Mapping[str, Filled], private: Mapping[str, Any]) -> list[str]:
    """Return what is there of everything, and what it took."""
    rows = []
    for name, one in filled.items():
        seconds = sum(entry.seconds for row in one.rows for entry in row.entries)
        rows.append(_there(one.table.title, one.total, one.missing, seconds, name))
    for name, title in private["titles"].items():
        mine = [row["runs"] for row in private["panels"] if row["figure"] == name]
        wanted, missing, seconds = (sum(one[word] for one in mine) for word in ("wanted", "missing", "seconds"))
        rows.append(_there(title, wanted, missing, seconds, FIGURES))
    timings = [one for row in numbers(book, TIME)["rows"] for each in row["seconds"].values() for one in each]
    times = [one for one in timings if one is not None]
    rows.append(_there("Training time", len(timings), len(timings) - len(times), sum(times), TIME))
    for name in book.store.names("*-validation.*"):
        cells = book.store.named(name)
        seconds = sum(cell.get("seconds") or 0.0 for _, cell in cells.items())
        title = f"grid search, {name.removesuffix('-validation')}"
        rows.append([title, str(len(cells)), "", duration(seconds), ""])
    return table(["what", "runs there", "runs missing", "training time of these runs", "command"], rows)


def _there(title: str, wanted: int, missing: int, seconds: float, command: str) -> list[str]:
    return [title, str(wanted - missing), str(missing), duration(seconds), f"`paper {command}`"]

"""``docs/reproduction.md``: its tables and counts are written from the cells, between marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.core.files import write_whole
from upcycled.experiments.paper.markdown import (
    accuracy_table,
    choice_table,
    duration,
    gain_table,
    private_table,
    status_line,
    time_table,
)
from upcycled.experiments.paper.private import figure_titles
from upcycled.experiments.paper.run import FIGURES, TIME, Book, all_figures, draw_figures, numbers, write_json
from upcycled.experiments.paper.tables import Filled, fill
from upcycled.experiments.paper.verdict import against_server_lr, by_method, gains, longer_steps, private_gains


def write_document(book: Book, page: Path, images: Path) -> list[Path]:
    """Write the page's blocks, its pictures, and the numbers as JSON beside the cells; return what was written."""
    folder = book.store.folder
    written = [page, *draw_figures(book, images)]
    for what in (*book.settings.tables, TIME, FIGURES):
        write_json(folder / f"{what}.json", numbers(book, what))
        written.append(folder / f"{what}.json")
    write_whole(page, replaced(page.read_text(encoding="utf-8"), page_blocks(book)).encode())
    return written


def page_blocks(book: Book) -> dict[str, list[str]]:
    """Return the lines of each block of the page."""
    settings = book.settings
    filled = {name: fill(settings, table, book.store) for name, table in settings.tables.items()}
    found: dict[str, list[str]] = {}
    for name, table in filled.items():
        found[name] = [status_line(table), "", *accuracy_table(table), "", *gain_table(table)]
        found[f"{name}-verdict"] = gains(table)
        found[f"{name}-choices"] = choice_table(table)
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
    found["verdict"] = [line for name in ("table1", "table2", "table3", "seeds") for line in _headline(filled[name])]
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
    lines = ["| what | runs there | runs missing | training time of these runs | command |", "|---|---|---|---|---|"]
    for name, table in filled.items():
        seconds = sum(entry.seconds for row in table.rows for entry in row.entries)
        there = table.total - table.missing
        lines.append(f"| {table.table.title} | {there} | {table.missing} | {duration(seconds)} | `paper {name}` |")
    for name, title in private["titles"].items():
        mine = [row["runs"] for row in private["panels"] if row["figure"] == name]
        wanted, missing, seconds = (sum(one[word] for one in mine) for word in ("wanted", "missing", "seconds"))
        lines.append(f"| {title} | {wanted - missing} | {missing} | {duration(seconds)} | `paper {FIGURES}` |")
    timings = [one for row in numbers(book, TIME)["rows"] for each in row["seconds"].values() for one in each]
    kept_times = [one for one in timings if one is not None]
    lines.append(
        f"| Training time | {len(kept_times)} | {len(timings) - len(kept_times)} | {duration(sum(kept_times))} | "
        f"`paper {TIME}` |"
    )
    for path in sorted(book.store.folder.glob("cells-*validation.jsonl")):
        cells_there = book.store.named(path.name)
        names = cells_there.keys()
        seconds = sum(cells_there[name].get("seconds") or 0.0 for name in names)
        lines.append(
            f"| grid search, {path.stem.removeprefix('cells-').removesuffix('-validation')} | {len(cells_there)} | | "
            f"{duration(seconds)} | |"
        )
    return lines


def replaced(text: str, blocks: Mapping[str, list[str]]) -> str:
    r"""Return a page with the blocks between their marks; blocks that the page does not have are left out.

    >>> page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    >>> replaced(page, {"x": ["new"]})
    'a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n'
    """
    for name, lines in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, found, after = rest.partition(end)
            if not found:
                raise InputError(f"the page has '{begin}' without '{end}', but both marks must be there")
            text = before + "\n".join([begin, "", *lines, "", end]) + after
    return text


def _headline(found: Filled) -> list[str]:
    title, first = found.table.title.removeprefix("Test accuracy (%), "), gains(found)[0]
    named = first.replace("All data sets together", title)
    return [named if named != first else f"- **{title}**: {first.removeprefix('- ').lower()}"]

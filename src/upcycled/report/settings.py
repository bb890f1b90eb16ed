"""What was run: names of the experiments, the settings they share and those they differ in, how to repeat them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import tomli_w

from upcycled._utils.formats import count, setting
from upcycled.algorithms import ALGORITHMS
from upcycled.config.experiment import flat
from upcycled.core.user_code import names_code
from upcycled.report.collect import Part, Results, Row

SCHEMA = "data.schema."
"""What a file says of columns is shown as a whole: the complete file has the rest."""
NOT_SETTINGS = ("name", "seeds", "results", "data.path")
PAIRED = ("upcycle", "iterations")
"""What a vanilla run and its upcycled partner differ in."""


def labels(parts: Sequence[Part], documents: Mapping[str, Row]) -> list[str]:
    """Return a short name for each experiment: its algorithm and kind, or its folder where that is not enough.

    The folders of a sweep have no names that mean anything: its settings have.
    """
    points = _point_labels(documents.get("sweep", {}))
    by_point = [points.get(part.name) for part in parts]
    by_algorithm = [_algorithm_label(part) for part in parts]
    by_step = [_step_label(part) for part in parts]
    by_name = [part.name for part in parts]
    for candidate in (by_point, by_algorithm, by_step, by_name):
        known = [name for name in candidate if name is not None]
        if len(set(known)) == len(parts):
            return known
    return [part.place for part in parts]


def _point_labels(sweep: Row) -> dict[str, str]:
    rows = sweep.get("ranking")
    listed = [("", row) for row in rows] if isinstance(rows, list) else []
    found = {}
    for before, row in [*listed, ("chosen: ", sweep.get("chosen"))]:
        if isinstance(row, dict) and isinstance(row.get("settings"), dict):
            words = (f"{key.rpartition('.')[2]} {setting(value)}" for key, value in row["settings"].items())
            found[str(row.get("folder"))] = before + ", ".join(words)
    return found


def _algorithm_label(part: Part) -> str | None:
    title = algorithm_of(part)
    return None if title is None else f"{title}, {'upcycled' if part.is_upcycled else 'vanilla'}"


def _step_label(part: Part) -> str | None:
    """Return the label with the server learning rate, where it is another than 1."""
    label, table = _algorithm_label(part), part.config.get("algorithm")
    server_lr = table.get("server_lr", 1) if isinstance(table, dict) else 1
    return label if label is None or server_lr == 1 else f"{label}, server_lr = {setting(server_lr)}"


def algorithm_of(part: Part) -> str | None:
    """Return the algorithm's name as published."""
    table = part.config.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    return algorithm_title(name) if isinstance(name, str) else None


def algorithm_title(name: str) -> str:
    """Return the name as published.

    >>> algorithm_title("fedprox"), algorithm_title("other")
    ('FedProx', 'other')
    """
    return ALGORITHMS[name].__name__ if name in ALGORITHMS else name


def families(parts: Sequence[Part]) -> list[int]:
    """Return a number for each experiment; a vanilla one and its upcycled partner share it, and a colour."""
    found: dict[tuple[str, int], int] = {}
    seen: dict[tuple[str, bool], int] = {}
    keys = []
    for part in parts:
        rest = {key: value for key, value in _flat(part).items() if key.split(".")[0] not in PAIRED}
        words = json.dumps(rest, sort_keys=True, default=str) if part.config else part.place
        # The second upcycled one of a family (another coefficient) has a number of its own.
        own = seen[words, part.is_upcycled] = seen.get((words, part.is_upcycled), -1) + 1
        keys.append(found.setdefault((words, own), len(found)))
    return keys


def split_settings(parts: Sequence[Part]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the settings that all experiments share, and for the others the value of each (None: left out)."""
    tables = [_flat(part) for part in parts]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = {name: [table.get(name) for table in tables] for name in names}
    shared = {name: row[0] for name, row in rows.items() if all(value == row[0] for value in row)}
    return shared, {name: row for name, row in rows.items() if name not in shared}


def _flat(part: Part) -> dict[str, Any]:
    found = {name: value for name, value in flat(part.config).items() if name not in NOT_SETTINGS}
    own = {name: found.pop(name) for name in list(found) if name.startswith(SCHEMA)}
    if own:
        columns = {name.removeprefix(f"{SCHEMA}columns.").rpartition(".")[0] for name in own if ".columns." in name}
        known = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:8]
        found["data.schema"] = f"{len(columns)} columns ({known})"
    return found


def shared_settings(parts: Sequence[Part]) -> dict[str, list[tuple[str, str]]]:
    """Return a box for each table of the file, with the settings that all experiments share; the data's first."""
    shared, _ = split_settings(parts)
    words = [dict(data_words(part)) for part in parts]
    data = {key: value if all(own.get(key) == value for own in words) else "several" for key, value in words[0].items()}
    boxes: dict[str, list[tuple[str, str]]] = {"data": list(data.items())}
    for name, value in shared.items():
        table, _, key = name.rpartition(".")
        if table != "data" or key not in data:
            boxes.setdefault(table or "run", []).append((key, setting(value)))
    return {name: items for name, items in boxes.items() if items}


@dataclass(frozen=True)
class Differing:
    """The settings in which experiments differ; the longer side goes down the page."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def differing_settings(parts: Sequence[Part], names: Sequence[str]) -> Differing | None:
    """Return what differs between experiments of these names; None where nothing does."""
    _, differing = split_settings(parts)
    if not differing or len(parts) < 2:
        return None
    columns = [(name, *map(setting, values)) for name, values in differing.items()]
    if len(parts) > len(differing):
        head, *rows = zip(("experiment", *names), *columns, strict=True)
        return Differing(head, tuple(rows))
    return Differing(("setting", *names), tuple(columns))


def complete_file(part: Part) -> str:
    """Return the experiment's file with all finished seeds; paths of this machine are shortened to their last name."""
    values: dict[str, Any] = {**part.config, "seeds": [seed.seed for seed in part.seeds]}
    if isinstance(values.get("results"), str):
        values["results"] = local_path(values["results"])
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str | list):
        paths = data["path"]
        short = [local_path(path) for path in paths] if isinstance(paths, list) else local_path(paths)
        values["data"] = {**data, "path": short}
    return tomli_w.dumps(values)


def local_path(path: str) -> str:
    r"""Return a path below the folder as it is, and of any other the last name.

    >>> local_path("results/demo"), local_path("/home/ada/results"), local_path("C:\\data\\set.npz")
    ('results/demo', 'results', 'set.npz')
    >>> local_path("../../../set.npz")
    'set.npz'
    """
    if PureWindowsPath(path).drive:
        return PureWindowsPath(path).name
    found = PurePosixPath(path)
    return found.name if found.is_absolute() or ".." in found.parts else path


def own_command(documents: Mapping[str, Row]) -> str | None:
    """Return the command that made a folder of several experiments, if it said so."""
    for document in documents.values():
        for key in ("repeat", "command"):
            if isinstance(document.get(key), str):
                return _without_paths(document[key])
    return None


def run_command(part: Part) -> str | None:
    """Return a command that runs an experiment again, from within the results folder; None where only Python has it.

    ``--path DIR`` is for code of the user's, whose folder nobody kept.
    """
    if part.config.get("data", {}).get("source") == "python":
        return None
    first = part.seeds[0].place
    words = ["upcycled", "run", "config.toml" if first == "." else f"{first}/config.toml"]
    if len(part.seeds) > 1:
        words.append(f"seeds={[seed.seed for seed in part.seeds]}")
    return shlex.join([*words, "results=again", *(["--path", "DIR"] if own_modules(part) else [])])


def own_modules(part: Part) -> list[str]:
    """Return the modules of the user's own that an experiment's file names."""
    found = set()
    for key, value in flat(part.config).items():
        for one in value if isinstance(value, list) else [value]:
            if not key.startswith("data.") and names_code(one):
                found.add(str(one).partition(":")[0])
    return sorted(found)


def _without_paths(command: str) -> str:
    try:
        return shlex.join(map(local_path, shlex.split(command)))
    except ValueError:
        return command


def versions(results: Results) -> dict[str, list[str]]:
    """Return what the runs were made with; usually one version each."""
    found: dict[str, list[str]] = {}
    for part in results.parts:
        for seed in part.seeds:
            named = {**(seed.summary.versions or {}), "engine": seed.summary.engine}
            for name, value in named.items():
                if isinstance(value, str) and value not in found.setdefault(name, []):
                    found[name].append(value)
    return {name: values for name, values in found.items() if values}


def data_words(part: Part) -> list[tuple[str, str]]:
    """Return what is known about the data, as names and values."""
    table = part.config.get("data")
    source = table if isinstance(table, dict) else {}
    about: Row = part.seeds[0].summary.data if part.seeds else {}
    words = [("source", _source(source))] if source else []
    for key, name in (
        ("clients", "clients"),
        ("classes", "classes"),
        ("numbers", "numbers a target"),
        ("labels", "labels a target"),
        ("train_samples", "training samples"),
        ("validation_samples", "validation samples"),
        ("test_samples", "test samples"),
    ):
        if isinstance(about.get(key), int) and about[key] > 0:
            is_inferred = isinstance(about.get("inferred"), list) and key in about["inferred"]
            words.append((name, f"{count(about[key])}{' (from the data)' * is_inferred}"))
    if isinstance(about.get("sha256"), str):
        words.append(("SHA-256", about["sha256"][:16]))
    if isinstance(about.get("id"), str):
        words.append(("random id", about["id"]))
    return words


def _source(data: Mapping[str, Any]) -> str:
    """Return the data's name as the paper would write it, or the name of its file."""
    name = str(data.get("source", "unknown"))
    if name == "synthetic":
        alpha, beta = data.get("alpha"), data.get("beta")
        return "Syn(iid)" if alpha == "iid" else f"Syn({setting(alpha)}, {setting(beta)})"
    return f"{name} ({local_path(str(data['path']))})" if isinstance(data.get("path"), str) else name

"""The project's own file format: NumPy's .npz with keys ``[<set>_]{train,test,validation}_{x,y,client}``."""

from __future__ import annotations

import json
import os
import re
import uuid
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.files import check_unpacked
from upcycled.core.errors import InputError, check_path, reason_of, suggest
from upcycled.core.vectors import Shards
from upcycled.data.arrays import labels_of, numbers
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, client_column, group
from upcycled.data.options import DataOptions
from upcycled.data.schema.schema import Schema

PARTS = ("train", "test", "validation")
_NAMES = ("client_names", "feature_names", "other_columns", "label_names")
_ABOUT = (*_NAMES, "num_classes", "vectors", "has_copies", "vocabulary", "inferred", "targets", "schema")
_SET = re.compile(r"(?:(?P<name>.+)_)?train_x")


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file, from its table of contents only."""
    # A damaged file can raise nearly anything: zipfile, zlib, struct, header, memory and "not implemented" errors.
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception as error:
        raise unreadable(path, ".npz", error) from error


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read some arrays of a file: each must be whole, all together not too large, and nothing in them can run code.

    Raises:
        InputError: in one sentence.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
            check_unpacked(path, sum(members[name].file_size for name in names))
            return {name: _read_array(archive, members[name]) for name in names}
    except InputError:
        raise
    except Exception as error:  # as above
        raise unreadable(path, ".npz", error) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def set_names(keys: list[str]) -> list[str]:
    """Return the names of the sets that these arrays make up, "" for one without a name.

    >>> set_names(["train_x", "train_y", "b_train_x", "words"])
    ['', 'b']
    """
    return sorted(match["name"] or "" for key in keys if (match := _SET.fullmatch(key)))


def unreadable(path: Path, kind: str, error: BaseException) -> InputError:
    """Return the sentence for a file that is damaged or is not what its name says."""
    return InputError(
        f"cannot be read as {kind}, but it must be a whole {kind} file ({reason_of(error)})",
        field=str(path),
    )


@dataclass(frozen=True)
class Archive:
    """The arrays of one set that were asked for, without the set's prefix, and the names of all it has."""

    path: Path
    prefix: str
    arrays: dict[str, NDArray[Any]]
    keys: tuple[str, ...]

    def parts(self) -> list[str]:
        """Return the parts that the set has anything of."""
        return [title for title in PARTS if any(key.startswith(f"{title}_") for key in self.arrays)]

    def column(self, title: str, name: str) -> NDArray[Any]:
        """Return an array, or say that it is missing."""
        found = self.arrays.get(f"{title}_{name}")
        if found is not None:
            return found
        missing = f"has no array {self.prefix}{title}_{name}, but it must have one"
        if name == "client":
            raise InputError(
                f"{missing}, or be dealt out to clients first with 'upcycled data make partition'", field=str(self.path)
            )
        others = sorted(key.removeprefix(f"{title}_") for key in self.keys if key.startswith(f"{title}_"))
        raise InputError(missing + suggest(name, others), field=str(self.path))

    def joined(self, name: str) -> NDArray[Any]:
        """Return the rows of an array of all parts."""
        parts = [self.column(title, name) for title in self.parts()]
        if len({part.shape[1:] for part in parts}) > 1:
            raise InputError("the parts have samples of different shapes, but they must be alike to be joined")
        return np.concatenate(parts)


def load_npz(path: Path, name: str | None, client: str | None, label: str | None, given: DataOptions) -> FederatedData:
    """Read one set of a file; ``client`` and ``label`` pick other columns than ``client`` and ``y``.

    The options that were given go before what the file says of itself.
    """
    client, label = client or "client", label or "y"
    archive = read_set(path, name, ("x", label, client))
    options = _options(archive, given)
    data = group(
        [
            GroupedRows(
                title,
                pixels(numbers(f"{archive.prefix}{title}_x", archive.column(title, "x"), options.repair)),
                labels_of(f"{archive.prefix}{title}_{label}", archive.column(title, label), options),
                client_column(f"{archive.prefix}{title}_{client}", archive.column(title, client)),
            )
            for title in archive.parts()
        ],
        options,
        _strings(archive, "feature_names"),
    )
    vectors, copies = archive.arrays.get("vectors"), archive.arrays.get("has_copies")
    data = data if vectors is None else data.with_vectors(vectors)
    inferred = data.inferred | {str(fact) for fact in _strings(archive, "inferred") or ()}
    # The file's arrays have a type, and what is given is not read off.
    inferred -= {"dtype"}
    inferred -= {"classes"} if given.classes is not None else set()
    inferred -= {"vocabulary"} if data.vocabulary is not None else set()
    if copies is not None and not options.repair:
        data = replace(data, has_copies=bool(copies.any()))
    others = _strings(archive, "other_columns") or ()
    return replace(data, inferred=inferred, other_columns=others, schema=_schema(archive))


def read_x(path: Path, name: str | None) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Read features alone, and what they are called: the array ``x``, or all parts of a set joined."""
    keys = array_names(path)
    if name is not None or "x" not in keys:
        if not set_names(keys):
            raise InputError("holds neither an array x nor train_x, but it must have samples", field=str(path))
        archive = read_set(path, name, ("x",))
        return pixels(numbers("x", archive.joined("x"))), _strings(archive, "feature_names")
    arrays = read_arrays(path, [key for key in ("x", "feature_names") if key in keys])
    return pixels(numbers("x", arrays["x"])), _strings(Archive(path, "", arrays, tuple(keys)), "feature_names")


def _options(archive: Archive, given: DataOptions) -> DataOptions:
    """Return the options given, completed by what the file says of itself."""

    def item(key: str) -> Any:
        found = archive.arrays.get(key)
        return None if found is None or found.size != 1 else found.item()

    facts: dict[str, Any] = {"vocabulary": given.vocabulary, "targets": given.targets}
    if given.targets is None and given.classes is None:
        facts["targets"] = item("targets")
    if given.label_names is None and facts["targets"] in (None, "classes"):
        names = _strings(archive, "label_names")
        fits = names is not None and given.num_classes in (None, len(names))
        facts["label_names"] = names if fits else None
        facts["num_classes"] = item("num_classes") if given.num_classes is None else given.num_classes
    if given.vocabulary is None:
        vectors = archive.arrays.get("vectors")
        facts["vocabulary"] = item("vocabulary")
        if given.repair and facts["vocabulary"] is None and vectors is not None and vectors.size:
            facts["vocabulary"] = len(vectors)
    if given.client_names is None:
        facts["client_names"] = _strings(archive, "client_names")
    return replace(given, **facts)


def read_set(path: Path, name: str | None, columns: Sequence[str]) -> Archive:
    """Read the given columns of one set; other arrays of the file are not touched."""
    prefix = _prefix(path, set_names(array_names(path)), name)
    wanted = {*(f"{title}_{column}" for title in PARTS for column in columns), *_ABOUT}
    keys = tuple(key.removeprefix(prefix) for key in array_names(path) if key.startswith(prefix))
    arrays = read_arrays(path, [prefix + key for key in keys if key in wanted])
    return Archive(path, prefix, {key.removeprefix(prefix): array for key, array in arrays.items()}, keys)


def pixels(x: NDArray[Any]) -> NDArray[Any]:
    """Return uint8 images as float32 / 255, anything else as it is."""
    if x.dtype != np.uint8:
        return x
    scaled: NDArray[Any] = np.divide(x, np.float32(255), dtype=np.float32)
    return scaled


def save(data: FederatedData, path: str | os.PathLike[str]) -> None:
    """Write ``data`` to a .npz that :func:`load` reads back equal; the file appears whole or not at all.

    Args:
        data: what to write.
        path: the file, which ends in .npz.

    Raises:
        InputError: if it ends in something else, or cannot be written.

    >>> import tempfile
    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=3, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     up.data.save(data, f"{folder}/set.npz")
    ...     print(up.data.load(f"{folder}/set.npz").num_clients)
    3
    """
    target = Path(check_path("path", path, "file"))
    if target.suffix.lower() != ".npz":
        raise InputError(field="path", value=str(target), but="it must end in .npz")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            np.savez(stream, **_arrays(data))  # type: ignore[arg-type]
        temporary.replace(target)
    except OSError as error:
        raise InputError(
            field="path", value=str(target), must=f"a file that can be written ({error.strerror or error})"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _prefix(path: Path, sets: list[str], name: str | None) -> str:
    if not sets:
        raise InputError(
            "holds no array named train_x, but it must have train_x, train_y and train_client", field=str(path)
        )
    named = [found for found in sets if found]
    if name is None:
        if len(sets) > 1 and "" not in sets:
            raise InputError(f"holds {len(sets)} sets, so name must be one of: {', '.join(named)}", field=str(path))
        chosen = "" if "" in sets else sets[0]
    elif name in sets:
        chosen = name
    elif not named:
        raise InputError(field="name", value=name, but="the file holds one set without a name, so it must be left out")
    else:
        raise InputError(field="name", value=name, but=f"the file has no such set{suggest(name, named)}")
    return f"{chosen}_" if chosen else ""


def _strings(archive: Archive, key: str) -> tuple[str, ...] | None:
    found = archive.arrays.get(key)
    if found is None:
        return None
    if found.ndim != 1 or found.dtype.kind != "U":
        raise InputError(f"is {found.dtype} of shape {found.shape}, but it must be a list of strings", field=key)
    return tuple(str(name) for name in found)


def _schema(archive: Archive) -> Schema | None:
    """Return the schema of the tables that the samples come from; it is kept as JSON."""
    found = _strings(archive, "schema")
    if found is None:
        return None
    try:
        return Schema.from_dict(json.loads("".join(found)))
    except (ValueError, AttributeError) as error:
        raise InputError(f"is no schema ({reason_of(error)})", field="schema") from error


def _arrays(data: FederatedData) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"num_classes": np.array(data.num_classes)}
    if data.targets != "classes":
        arrays = {"targets": np.array(data.targets)}
    for title in PARTS:
        shards: Shards | None = getattr(data, title)
        if shards is None:
            continue
        ids = np.arange(data.num_clients) if data.client_ids is None else data.client_ids
        arrays |= {
            f"{title}_x": shards.x,
            f"{title}_y": shards.y,
            f"{title}_client": np.repeat(ids, shards.sizes),
        }
    for key in _NAMES:
        names: tuple[str, ...] | None = getattr(data, key)
        if names:
            arrays[key] = np.array(names, dtype=np.str_)
    if data.vectors is not None:
        arrays["vectors"] = data.vectors
    if data.has_copies is not None:
        arrays["has_copies"] = np.array(data.has_copies)
    if data.vocabulary is not None:
        arrays["vocabulary"] = np.array(data.vocabulary)
    if data.schema is not None:
        arrays["schema"] = np.array([json.dumps(data.schema.plain())], dtype=np.str_)
    if data.inferred:
        arrays["inferred"] = np.array(sorted(data.inferred), dtype=np.str_)
    return arrays

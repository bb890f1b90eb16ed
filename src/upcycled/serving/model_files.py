"""A model on the disk: ``model.safetensors``, ``model.json`` and, with personal models, ``personal.safetensors``.

``model.json`` has the hash of the weights, so that one file without the other's replacement is noticed; personal models
say which model's they are. No file can run code; one may name a function that makes the module, for a caller that
allows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from upcycled.core.errors import InputError, shown
from upcycled.serving.model_card import ModelCard
from upcycled.serving.privacy_statement import PrivacyStatement
from upcycled.support.files import (
    PRIVATE,
    cannot_write,
    flush_folder,
    json_table,
    make_private,
    reading,
    write_together,
)

WEIGHTS, CARD, PERSONAL = "model.safetensors", "model.json", "personal.safetensors"
MODEL_FORMAT = 2
_EXPECTED = f"a model's {CARD} and {WEIGHTS}. Save the model again, or copy its whole folder"
_ABOUT = "upcycled"
"""In the header of personal models: their format, the clients' names, and which model they belong to."""


def model_files(
    card: ModelCard, module: nn.Module, privacy: PrivacyStatement | None, versions: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the files of a model, weights and buffers first: names -> contents.

    Args:
        card: what it takes and gives.
        module: the model.
        privacy: what can be said of its training; None without a mechanism.
        versions: of the packages that trained it.
    """
    weights = save_tensors(_state(module))
    document = {
        "format": MODEL_FORMAT,
        **card.as_json(),
        "privacy": None if privacy is None else vars(privacy),
        "versions": dict(versions),
        "sha256": _hash(weights),
    }
    text = json.dumps(document, indent=2, allow_nan=False)
    return {WEIGHTS: weights, CARD: f"{text}\n".encode()}


def personal_file(models: Mapping[int, torch.Tensor], called: Callable[[int], str], weights: bytes) -> dict[str, bytes]:
    """Return the file of personal models: flat vectors under their clients' numbers, and the clients' names.

    Args:
        models: client -> its trainable parameters.
        called: what a client is called.
        weights: the global model's file, which they belong to.
    """
    tensors = {str(client): vector for client, vector in models.items()}
    names = {called(client): client for client in models}
    about = {"format": MODEL_FORMAT, "names": names, "sha256": _hash(weights)}
    # In one text: the order of several is not fixed, and equal models should have equal files.
    return {PERSONAL: save_tensors(tensors, metadata={_ABOUT: json.dumps(about)})}


def write_model(folder: Path, public: Mapping[str, bytes], own: Mapping[str, bytes]) -> None:
    """Write a model's files in the place of another's; a kill at any moment leaves one of the two models, whole.

    The new files wait beside the old ones, under names with the hash of the new weights. One rename puts the new
    ``model.json`` in place, and with it the new model: readers take the files of the hash that it says. Then the files
    that waited take the places of the old ones.

    Args:
        folder: where; it is made where it is not there.
        public: the files of :func:`model_files`, and perhaps of :func:`personal_file`.
        own: those that are the data holder's own, for ``private/``.

    Raises:
        WriteError: in one sentence.
    """
    sha256 = _hash(public[WEIGHTS])
    try:
        _put_in_place(folder, _hash_in(folder))  # of a save that was killed
        write_together(folder, {_waiting(name, sha256): public[name] for name in public if name != CARD})
        if own:
            make_private(folder / PRIVATE)
            write_together(folder / PRIVATE, {_waiting(name, sha256): own[name] for name in own}, private=True)
        write_together(folder, {CARD: public[CARD]})
        _put_in_place(folder, sha256)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _put_in_place(folder: Path, sha256: str) -> None:
    """Rename the files that wait for the model of this hash, and remove those of other models."""
    for place in (folder, folder / PRIVATE):
        for name in (WEIGHTS, PERSONAL):
            newest = _newest(place / name, sha256)
            if newest.name != name:
                newest.replace(place / name)
        for name in (CARD, WEIGHTS, PERSONAL):
            for left in (*place.glob(_waiting(name, "*")), *place.glob(f".{name}.*.tmp")):
                left.unlink()
    flush_folder(folder)


def _waiting(name: str, sha256: str) -> str:
    return f"{name}.{sha256[:16]}.new"


def _newest(path: Path, sha256: str) -> Path:
    """Return the file of the model of this hash: the one that waits, if there is one, else the one in its place."""
    waiting = path.with_name(_waiting(path.name, sha256))
    return waiting if waiting.is_file() else path


def _hash_in(folder: Path) -> str:
    """Return the hash that a folder's ``model.json`` says; nothing where there is none, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        return str(json_table((folder / CARD).read_bytes()).get("sha256", ""))
    return ""


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, each with memory of its own, as the file format wants it."""
    held = module.state_dict().items()
    return {name: value.detach().cpu().clone().contiguous() for name, value in held if isinstance(value, torch.Tensor)}


@dataclass(frozen=True)
class StoredModel:
    """A model as it was read, before there is a module."""

    card: ModelCard
    tensors: dict[str, torch.Tensor]
    privacy: PrivacyStatement | None
    sha256: str


def read_model(folder: Path) -> StoredModel:
    """Read a model's files.

    Raises:
        InputError: in one sentence, if they are damaged, of a later format, or not of one model.
    """
    path = folder / CARD
    with reading(path, _EXPECTED):
        document = json_table(path.read_bytes())
        _check_format(document.get("format"), path)
        card = ModelCard.from_json(document)
        stated = TypeAdapter(PrivacyStatement | None).validate_python(document["privacy"])
        sha256 = str(document["sha256"])
    path = _newest(folder / WEIGHTS, sha256)
    with reading(path, _EXPECTED, SafetensorError):
        weights = path.read_bytes()
        if _hash(weights) != sha256:
            raise ValueError(f"it is not the one that {CARD} was written for")
        return StoredModel(card, load_tensors(weights), stated, sha256)


def read_personal(folder: Path, client: int | str, sha256: str) -> torch.Tensor:
    """Read one client's personal model, which in a restricted run lies in the folder of the data's holder.

    Args:
        folder: the model's.
        client: its number, or its name.
        sha256: the hash of the global model's file.

    Raises:
        InputError: in one sentence, if there is none.
    """
    # A folder that is not ours to look into has nothing for us.
    there = []
    for place in (folder, folder / PRIVATE):
        with suppress(OSError):
            path = _newest(place / PERSONAL, sha256)
            there += [path] if path.is_file() else []
    if not there:
        raise InputError(
            f"{folder} holds no personal models, but only an algorithm such as pFedMe makes them, and a run with real "
            f"noise on private data leaves them to the holder, in {PRIVATE}/"
        )
    path = there[0]
    with reading(path, _EXPECTED, SafetensorError), safe_open(path, framework="pt") as file:
        about = json_table((file.metadata() or {})[_ABOUT].encode())
        _check_format(about.get("format"), path)
        if about["sha256"] != sha256:
            raise ValueError(f"it belongs to another {WEIGHTS} than the one beside it")
        names: dict[str, int] = about["names"]
        keys = set(file.keys())
        key = str(names.get(client, "")) if isinstance(client, str) else str(client)
        vector: torch.Tensor | None = file.get_tensor(key) if key in keys else None
    if vector is None:
        few = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
        but = f"it has no personal model in {path}, as only clients have that took part (they are {few})"
        raise InputError(field="client", value=client, but=but)
    return vector


def _check_format(found: object, path: Path) -> None:
    if found != MODEL_FORMAT:
        raise InputError(
            f"{path} has format {shown(found)}, but this version of upcycled reads format {MODEL_FORMAT}: use the "
            "version that wrote it"
        )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""A model on the disk: ``model.safetensors``, ``model.json`` and, with personal models, ``personal.safetensors``.

``model.json`` has the hash of the weights, so that one file without the other's replacement is noticed; personal models
say which model's they are. No file can run code, but one may name a function that makes the module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from upcycled.core.errors import InputError, reason_of, shown
from upcycled.serving.model_card import ModelCard
from upcycled.serving.privacy_statement import PrivacyStatement
from upcycled.support.files import PRIVATE

WEIGHTS, CARD, PERSONAL = "model.safetensors", "model.json", "personal.safetensors"
MODEL_FORMAT = 1
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
        "privacy": None if privacy is None else privacy.as_json(),
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
    try:
        document: Any = json.loads(_bytes(path).decode())
        if not isinstance(document, dict):
            raise TypeError("no table")
        _check_format(document.get("format"), path)
        privacy = document["privacy"]
        card = ModelCard.from_json(document)
        stated = None if privacy is None else PrivacyStatement.from_json(privacy)
        sha256 = document["sha256"]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {reason_of(error)}") from error
    weights = _bytes(folder / WEIGHTS)
    if _hash(weights) != sha256:
        raise _damaged(folder / WEIGHTS, f"it is not the one that {CARD} was written for")
    try:
        return StoredModel(card, load_tensors(weights), stated, sha256)
    except (SafetensorError, ValueError, TypeError) as error:
        raise _damaged(folder / WEIGHTS, reason_of(error)) from error


def read_personal(folder: Path, client: int | str, sha256: str) -> torch.Tensor:
    """Read one client's personal model, which in a restricted run lies in the folder of the data's holder.

    Args:
        folder: the model's.
        client: its number, or its name.
        sha256: the hash of the global model's file.

    Raises:
        InputError: in one sentence, if there is none.
    """
    paths = [folder / PERSONAL, folder / PRIVATE / PERSONAL]
    # A folder that is not ours to look into has nothing for us.
    there = []
    for path in paths:
        with suppress(OSError):
            there += [path] if path.is_file() else []
    if not there:
        raise InputError(
            f"{folder} holds no personal models, but only an algorithm such as pFedMe makes them, and a run with real "
            f"noise on private data leaves them to the holder, in {PRIVATE}/"
        )
    path = there[0]
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_ABOUT])
            names: dict[str, int] = about["names"]
            keys = set(file.keys())
            key = str(names.get(client, "")) if isinstance(client, str) else str(client)
            vector: torch.Tensor | None = file.get_tensor(key) if key in keys else None
    except (SafetensorError, ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {reason_of(error)}") from error
    _check_format(about.get("format"), path)
    if about.get("sha256") != sha256:
        raise _damaged(path, f"it belongs to another {WEIGHTS} than the one beside it")
    if vector is None:
        few = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
        but = f"it has no personal model in {path}, as only clients have that took part (they are {few})"
        raise InputError(field="client", value=client, but=but)
    return vector


def _check_format(found: object, path: Path) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MODEL_FORMAT:
        raise InputError(
            f"{path} has format {shown(found)}, but this version of upcycled reads up to format {MODEL_FORMAT}: use "
            "the version that wrote it"
        )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}), but a model's folder must have {CARD} and {WEIGHTS}"
        ) from error


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged ({reason}): save the model again, or copy its whole folder")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""``load``: from a folder that a run left to a model that answers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from upcycled.core.errors import InputError, check_path, reason_of
from upcycled.core.forked import settle
from upcycled.core.lookup import looked_up
from upcycled.models.builtin import logistic, lstm, mlp
from upcycled.models.factories import made_by
from upcycled.models.prepare import takes_tokens
from upcycled.models.projection import with_projection
from upcycled.serving.model_card import OWN, ModelCard
from upcycled.serving.model_files import CARD, read_model
from upcycled.serving.predictor import Predictor
from upcycled.support.files import PRIVATE, reading

_LISTED = 8


def load(
    folder: str | os.PathLike[str],
    model: nn.Module | Callable[[], nn.Module] | None = None,
    allow: str | Sequence[str] = (),
) -> Predictor:
    """Load a trained model to use it: what ``result.save(DIR)`` wrote, or ``upcycled run`` for each seed.

    A folder is not trusted: it runs no code unless the caller allows it. The package's own models need no permission.
    Of a model that was made by a function of its trainer's, the folder has that function's name; give the module or
    function as ``model``, or allow the code that the folder names.

    Args:
        folder: a model's folder, a seed's, or a results folder with one model in it.
        model: a module, or a function that makes one, to put the weights into.
        allow: names of modules whose functions the folder may name (``"my_module"``, with its submodules), or of single
            functions (``"my_module:make_net"``). The function is imported and called without arguments.

    Returns:
        The model, with ``predict``, ``predict_proba``, ``classes``, ``privacy`` and ``personal``.

    Raises:
        InputError: if there is no model, its files are damaged or of a later format, weights and module do not fit, or
            the folder names code that is not allowed.

    >>> import tempfile
    >>> import upcycled as up
    >>> names = ["healthy", "ill"]
    >>> data = up.FederatedData.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]], label_names=names)
    >>> result = up.train(data, algorithm=up.FedAvg(), iterations=30, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = result.save(folder)
    ...     predictor = up.load(folder)
    >>> predictor.classes, predictor.predict([[9.0]]).tolist()
    (('healthy', 'ill'), ['ill'])
    """
    settle()
    found = model_folder(Path(check_path("folder", folder, "folder")))
    stored = read_model(found)
    card = stored.card
    module = _module(card, model, found, (allow,) if isinstance(allow, str) else tuple(allow))
    _put(module, stored.tensors, found)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in card.frozen)
    if card.norm_bound is not None:
        with_projection(module, card.norm_bound)
    module.eval()
    return Predictor(module, card, stored.privacy, _classes(card, module), found, stored.sha256)


def model_folder(folder: Path) -> Path:
    """Return the folder of the one model in a results folder.

    Raises:
        InputError: in one sentence, if there is none, or several.
    """
    if (folder / CARD).is_file():
        return folder
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder, but it must be one that a run or result.save wrote")
    inside = sorted(path.parent for path in folder.rglob(CARD) if PRIVATE not in path.relative_to(folder).parts)
    if len(inside) == 1:
        return inside[0]
    if inside:
        listed = ", ".join(map(str, inside[:_LISTED])) + (", ..." if len(inside) > _LISTED else "")
        raise InputError(f"{folder} holds {len(inside)} models, so it must be one of: {listed}")
    raise InputError(f"{folder} holds no {CARD}, but it must be the folder of a finished run, or of result.save")


def _factory(name: str, allow: tuple[str, ...], folder: Path) -> Any:
    """Return the function of that name if the caller allows it; nothing is imported otherwise."""
    module, fix = name.partition(":")[0], "or give the module as up.load(DIR, model=module)"
    if name not in allow and not _is_within(module, allow):
        raise InputError(
            f"the folder names the function {name!r}, which loading would import and call; expected code that you "
            f"allow. If you trust it, pass allow={module!r} (--allow {module} on the command line), {fix}",
            where=(str(folder / CARD),),
        )
    try:
        found = looked_up(name, "model")
    except InputError as error:
        raise error.hinted(f"; {fix}").at(str(folder / CARD)) from error
    # A module's imports are attributes of it: "my_module:os.abort" is not a function of my_module.
    if name not in allow and not _is_within(str(getattr(found, "__module__", None)), allow):
        raise InputError(
            f"the folder names {name!r}, which is not defined in an allowed module; expected a function or class of "
            f"{', '.join(allow)}. If you trust it, pass allow={name!r}, {fix}",
            where=(str(folder / CARD),),
        )
    return found


def _is_within(module: str, allow: tuple[str, ...]) -> bool:
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in allow)


def _module(card: ModelCard, given: Any, folder: Path, allow: tuple[str, ...]) -> nn.Module:
    """Return a module of the right structure, with weights that do not matter yet."""
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)
    if given is not None:
        return made_by(given, given, seed=0)
    if card.kind == OWN:
        if card.factory is None:
            raise InputError(
                f"{folder} holds the weights of a module that has no name to be made by: give one of the same "
                "structure as up.load(DIR, model=module)"
            )
        factory = _factory(card.factory, allow, folder)
        try:
            return made_by(factory, card.factory, seed=0)
        except InputError as error:
            raise error.at(str(folder / CARD)) from error
    options = dict(card.options)
    try:
        with reading(folder / CARD, f"the options of a model {card.kind!r}", RuntimeError):
            outputs = options.pop("outputs")
            if card.kind == "lstm":
                return lstm(outputs, **options)
            return (logistic if card.kind == "logistic" else mlp)(card.shape, outputs, **options)
    except InputError as error:
        raise error.at(str(folder / CARD)) from error


def _put(module: nn.Module, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Put weights and buffers into a module of the same names and shapes, or say what differs."""
    held = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    for name in dict.fromkeys([*held, *sorted(tensors)]):
        if name not in held or name not in tensors:
            where, other = ("the folder", "the module") if name in tensors else ("the module", "the folder")
            raise InputError(f"{folder} does not fit the module: '{name}' is in {where}, but not in {other}")
        if held[name].shape != tensors[name].shape:
            saved, own = tuple(tensors[name].shape), tuple(held[name].shape)
            raise InputError(f"{folder} does not fit the module: '{name}' is {saved} in the folder, but {own} in it")
    module.load_state_dict(tensors, strict=False)


@torch.no_grad()
def _classes(card: ModelCard, module: nn.Module) -> tuple[str, ...] | tuple[int, ...] | None:
    """Return what columns of probabilities stand for; a model may have more outputs than there are classes."""
    trial = torch.zeros((1, *card.shape), dtype=torch.int64 if takes_tokens(module) else torch.float32)
    try:
        outputs = module(trial)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise InputError(f"model does not take samples of shape {card.shape}: {reason_of(error)}") from error
    if card.targets == "numbers":
        return None
    count = int(np.prod(outputs.shape[1:])) if card.link == "softmax" else card.num_targets
    if card.label_names is None:
        return tuple(range(max(count, card.num_targets)))
    return (*card.label_names, *map(str, range(len(card.label_names), count)))

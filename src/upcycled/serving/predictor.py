"""A trained model that answers for new samples, and ``load``, which reads one from a folder.

A trained model that answers for new samples.

``load``: from a folder that a run left to a model that answers.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled._utils.files import PRIVATE, reading
from upcycled.core.errors import InputError, check_path, reason_of
from upcycled.core.layout import assign, layout_of
from upcycled.core.machine import settle
from upcycled.core.user_code import looked_up
from upcycled.data.arrays import Names, numbers
from upcycled.data.new_samples import features_by_schema, pick_columns
from upcycled.data.readers.raw_tables import frame_table
from upcycled.models.builtin import logistic, lstm, made_by, mlp
from upcycled.models.linear import with_projection
from upcycled.models.prepare import as_input, takes_tokens
from upcycled.serving.model_files import CARD, OWN, ModelCard, PrivacyStatement, read_model, read_personal

_AT_ONCE = 4096
"""Samples that go through the model together."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with all that is needed to use it; :func:`upcycled.load` makes one.

    Samples are an array, a tensor, a list or a table (pandas, polars) with one row each. The columns of a table are
    taken by name where the model was trained on named ones, and where that was by a schema its rows are as sites have
    them: the schema is part of the model. Other values must be scaled as they were for training; the projection of a
    mechanism is part of the model and happens by itself.

    >>> import tempfile
    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=3, sizes=40, seed=0)
    >>> result = up.train(data, algorithm=up.FedAvg(), iterations=4, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     predictor = up.load(result.save(folder))
    >>> predictor.classes, predictor.predict(data.test.x).shape, predictor.predict_proba(data.test.x[:5]).shape
    ((0, 1), (12,), (5, 2))
    >>> predictor.privacy is None
    True
    """

    model: nn.Module
    """The torch module in evaluation mode, with the map that its training data went through."""
    card: ModelCard
    """What it takes and what its outputs mean."""
    privacy: PrivacyStatement | None
    """What the run's ledger said; None for a run without a mechanism."""
    classes: tuple[str, ...] | tuple[int, ...] | None
    """The classes, or the labels' numbers, in the order of probabilities; None where targets are numbers."""
    folder: Path
    """Where it was loaded from, and personal models lie."""
    sha256: str = field(repr=False, default="")
    """The hash of the file of weights."""

    def predict(self, x: Any) -> NDArray[Any]:
        """Return the answer for each sample.

        Args:
            x: the samples.

        Returns:
            Of classes their names, or numbers where they have none; of labels a row of 0 and 1 each; of numbers the
            number, or a row of them (with the loss ``poisson`` the mean that the model's output is the logarithm of).

        Raises:
            InputError: in one sentence, if samples do not fit the model.
        """
        outputs, targets = self._outputs(x), self.card.targets
        if targets == "numbers":
            values = outputs.exp() if self.card.link == "exp" else outputs
            is_column = values.ndim == 2 and values.shape[1] == 1 and not self.card.is_vector
            found: NDArray[Any] = (values.squeeze(1) if is_column else values).numpy()
            return found
        if targets == "labels":
            return (outputs > 0).to(torch.int64).numpy()
        chosen = (self._logit(outputs) > 0).long() if self.card.link == "sigmoid" else self._logits(outputs).argmax(1)
        named: NDArray[Any] = np.asarray(self.classes)[chosen.numpy()]
        return named

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """Return the probability of each class, or of each label, for each sample.

        Args:
            x: the samples.

        Returns:
            A row for each sample, with a column for each of :attr:`classes`; of classes a row's sum is 1. With a loss
            of your own they are the softmax of the model's outputs, whatever that loss makes of these.

        Raises:
            InputError: in one sentence, if samples do not fit the model, or it answers in numbers.
        """
        if self.card.targets == "numbers":
            raise InputError("the model answers in numbers, which have no probabilities: use predict")
        outputs = self._outputs(x).double()
        if self.card.targets == "labels":
            return outputs.sigmoid().numpy()
        if self.card.link == "sigmoid":
            logit = self._logit(outputs)
            return torch.stack([(-logit).sigmoid(), logit.sigmoid()], 1).numpy()
        return self._logits(outputs).softmax(1).numpy()

    def personal(self, client: int | str) -> Predictor:
        """Return the same with one client's personal model (pFedMe).

        Args:
            client: its number, or its name in the data.

        Returns:
            A predictor; where personal models are the data holder's own, so are its answers.

        Raises:
            InputError: in one sentence, if there is no such model.
        """
        vector = read_personal(self.folder, client, self.sha256)
        model = copy.deepcopy(self.model)
        if vector.shape != (layout_of(model).size,):
            needed = layout_of(model).size
            raise InputError(
                f"the personal model has shape {tuple(vector.shape)}, but this one has {needed} trainable numbers"
            )
        assign(model, vector.numpy())
        return replace(self, model=model)

    def _logit(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.reshape(len(outputs))

    def _logits(self, outputs: torch.Tensor) -> torch.Tensor:
        if outputs.ndim != 2 or outputs.shape[1] < 2:
            raise InputError(
                f"the model gives outputs of shape {tuple(outputs.shape[1:])} a sample for the loss "
                f"'{self.card.loss.get('name')}', which does not say what class they mean: use the outputs of .model"
            )
        return outputs

    @torch.no_grad()
    def _outputs(self, x: Any) -> torch.Tensor:
        taken = self._as_taken(x)
        try:
            return torch.cat([self.model(torch.from_numpy(rows)) for rows in _pieces(taken)])
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise InputError(
                f"the model does not take these samples of shape {taken.shape[1:]} and type {taken.dtype}: "
                f"{reason_of(error)}"
            ) from error

    def _as_taken(self, x: Any) -> NDArray[Any]:
        """Return samples as the model was trained on them, or say what is wrong."""
        array, shape = numbers("x", _array(x, self.card)), self.card.shape
        if array.shape[1:] != shape or array.ndim == 0:
            right = ", ".join(("samples", *map(str, shape)))
            raise InputError(f"has shape {array.shape}, but it must be ({right})", field="x")
        if len(array) == 0:
            raise InputError("has no samples, but it must have at least one", field="x")
        if array.dtype == np.uint8 and self.card.dtype == "float32":
            raise InputError(
                "is of type uint8, but the model was trained on float32: scale it as it was then (up.data.load reads "
                "images as x / 255), and pass floats",
                field="x",
            )
        with np.errstate(over="ignore"):
            taken = as_input(self.model, array)
        fine = np.isfinite(taken) if taken.dtype.kind == "f" else None
        if fine is not None and not fine.all():
            place = tuple(int(i) for i in np.argwhere(~fine)[0])
            where = Names(features=self.card.feature_names).column(place[1:])
            raise InputError(
                f"is {array[place]} at row {place[0]}, {where} (counted from 0), but every feature must be a finite "
                "float32",
                field="x",
            )
        return np.ascontiguousarray(taken)


def _array(x: Any, card: ModelCard) -> Any:
    """Return samples in the place of a tensor or a table; of a table its columns by name."""
    if isinstance(x, torch.Tensor):
        return x.numpy(force=True)
    if not hasattr(x, "columns"):
        return x
    named = {str(column): column for column in x.columns}
    if card.schema is not None:
        return features_by_schema(frame_table(x, "x"), card.schema)
    picked = pick_columns([str(column) for column in x.columns], card.feature_names, card.other_columns)
    # Column by column: a table of whole numbers and flags has no type of its own.
    return np.column_stack([np.asarray(x[named[name]]) for name in picked]) if picked else np.empty((len(x), 0))


def _pieces(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))


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

"""A model on the disk: what it takes, its weights, and what can be said of the privacy of its data.

What can be said of the privacy of those whose data a model was trained on.

What a trained model takes and what its outputs mean: all of it but the weights, in plain values.

A model on the disk: ``model.safetensors``, ``model.json`` and, with personal models, ``personal.safetensors``.

``model.json`` has the hash of the weights, so that one file without the other's replacement is noticed; personal models
say which model's they are. No file can run code; one may name a function that makes the module, for a caller that
allows it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import InstanceOf, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from upcycled._utils.files import PRIVATE, cannot_write, flush_folder, json_table, make_private, reading, write_together
from upcycled.core.errors import InputError, shown
from upcycled.core.facts import Facts
from upcycled.core.objective import Objective, TargetKind
from upcycled.core.user_code import name_of, names_code
from upcycled.data.schema.schema import Schema
from upcycled.losses import Link, link_of
from upcycled.models.builtin import Lstm
from upcycled.models.prepare import KINDS
from upcycled.privacy.ledger.ledger import Ledger


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run's ledger says, as it is kept beside the model; ``print`` shows it in words."""

    mechanism: str
    """Its name."""
    is_simulation: bool
    """Whether the noise follows from a seed, so that it protects nobody."""
    epsilon: float | None
    """Of the worst client, proven or whose claim it is, as the statement says; None where there is none."""
    delta: float
    unit: str
    """``"record"`` or ``"client"``: whose replacement is hard to notice."""
    adversary: str
    """Against whom."""
    items: tuple[tuple[str, str], ...]
    """The whole statement: topics, and what is said of each."""
    head: Mapping[str, Any] | None
    """The head of the run's ledger, which its file can be held against; None without a file."""

    def __str__(self) -> str:
        return "\n".join(f"{topic}: {words}" for topic, words in self.items)


def statement_of(ledger: Ledger) -> PrivacyStatement:
    """Return what a run's ledger says at its usual delta."""
    delta, promise = ledger.default_delta, ledger.promise
    worst = ledger.max_epsilon(delta) if promise.is_claimed else math.inf
    return PrivacyStatement(
        mechanism=ledger.mechanism,
        is_simulation=ledger.is_simulation,
        epsilon=worst if math.isfinite(worst) else None,
        delta=delta,
        unit=promise.unit,
        adversary=promise.adversary,
        items=ledger.statement_items(delta),
        head=None if ledger.head is None else ledger.head.as_json(),
    )


OWN = "own"
"""In the place of a name, for a model that the package does not know how to build."""


@dataclass(frozen=True)
class ModelCard:
    """A model in words and numbers, as ``model.json`` has it; made from public facts and the run's arguments."""

    kind: str
    """One of the package's models by name, or ``"own"``."""
    options: Mapping[str, Any]
    """What the package's model is built with: its options, and how many outputs it has."""
    factory: str | None
    """Of a model of the user's: ``module:name`` of the function that makes it, where it has such a name."""
    frozen: tuple[str, ...]
    """Parameters that were not trained."""
    shape: tuple[int, ...]
    """Of one sample's features."""
    dtype: str
    """Of the features in training: ``float32`` or ``int64``."""
    norm_bound: float | None
    """Features are scaled down to this norm before the model looks at them; None without such a map."""
    targets: TargetKind
    num_targets: int
    """Classes; or labels or numbers of a target."""
    is_vector: bool
    """Whether a target is a vector, even of one number."""
    link: Link
    """What turns outputs into probabilities or values."""
    loss: Mapping[str, Any]
    """The loss's name and options."""
    feature_names: tuple[str, ...] | None
    other_columns: tuple[str, ...]
    """Columns of the table of training that were no features."""
    label_names: tuple[str, ...] | None
    schema: InstanceOf[Schema] | None
    """How the raw rows of a table become features; None where training was on numbers as they are."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        schema = None if self.schema is None else self.schema.plain()
        return {**vars(self), "schema": schema, "schema_sha256": self.schema and self.schema.fingerprint}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelCard:
        """Return the card that :meth:`as_json` gave; KeyError, TypeError or ValueError for anything else."""
        schema = None if document["schema"] is None else Schema.from_dict(document["schema"])
        if schema is not None and schema.fingerprint != document["schema_sha256"]:
            raise ValueError("the schema is not the one that the model was trained with")
        card = TypeAdapter(cls).validate_python({**document, "schema": schema})
        if card.kind not in (*KINDS, OWN):
            raise ValueError(f"{card.kind!r} is none of {', '.join((*KINDS, OWN))}")
        return card


def card_of(
    model: object, module: nn.Module, facts: Facts, objective: Objective, norm_bound: float | None
) -> ModelCard:
    """Describe a run's model.

    Args:
        model: what the user asked for: a name, a module, or a function that makes one.
        module: what it became.
        facts: what is public of the data.
        objective: the loss.
        norm_bound: of the map that the mechanism puts before the model.

    >>> import numpy as np
    >>> from upcycled.losses import CrossEntropy
    >>> facts = Facts((20,), np.dtype(np.float32), 2, np.array([5]), 1, label_names=("ill", "well"))
    >>> card = card_of("logistic", nn.Linear(20, 2), facts, CrossEntropy(), None)
    >>> card.options, card.link, card.label_names
    ({'bias': True, 'outputs': 2}, 'softmax', ('ill', 'well'))
    """
    is_known = isinstance(model, str) and model in KINDS
    outputs = objective.num_outputs(facts.classes)
    return ModelCard(
        kind=model if isinstance(model, str) and is_known else OWN,
        options={**_options(str(model), module), "outputs": outputs} if is_known else {},
        factory=None if is_known else _factory(model),
        frozen=tuple(name for name, parameter in module.named_parameters() if not parameter.requires_grad),
        shape=tuple(facts.shape),
        dtype=str(facts.dtype),
        norm_bound=norm_bound,
        targets=facts.targets,
        num_targets=facts.classes,
        is_vector=facts.has_vectors,
        link=link_of(objective),
        loss=_loss(objective),
        feature_names=facts.feature_names,
        other_columns=facts.other_columns,
        label_names=facts.label_names if facts.targets == "classes" else None,
        schema=None if facts.schema is None else Schema.from_dict(facts.schema),
    )


def _options(kind: str, module: nn.Module) -> dict[str, Any]:
    """Read a model of the package's off its layers: what it was really built with, defaults and the data's included."""
    linears = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if kind == "logistic":
        return {"bias": linears[0].bias is not None}
    if kind == "mlp":
        return {"hidden": [layer.out_features for layer in linears[:-1]]}
    assert isinstance(module, Lstm)
    return {
        "vocabulary": module.embedding.num_embeddings,
        "embedding": module.embedding.embedding_dim,
        "hidden": module.lstm.hidden_size,
        "dropout": module.dropout.p,
    }


def _factory(model: object) -> str | None:
    if isinstance(model, str):
        return model if names_code(model) else None
    return None if isinstance(model, nn.Module) else name_of(model)


def _loss(objective: Objective) -> dict[str, Any]:
    """Return a loss's name and options; of a function of the user's the name it can be found by, if any."""
    names: list[str] = [option.name for option in fields(objective)] if is_dataclass(objective) else []
    options = {name: _plain(getattr(objective, name)) for name in names if name not in ("name", "targets")}
    return {"name": objective.name, **options}


def _plain(value: Any) -> Any:
    if callable(value):
        return name_of(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


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

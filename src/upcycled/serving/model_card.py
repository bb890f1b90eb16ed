"""What a trained model takes and what its outputs mean: all of it but the weights, in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic import InstanceOf, TypeAdapter
from torch import nn

from upcycled.core.facts import Facts
from upcycled.core.lookup import name_of, names_code
from upcycled.core.objective import Objective, TargetKind
from upcycled.data.schema.table_schema import Schema
from upcycled.losses.links import Link, link_of
from upcycled.models.builtin import Lstm
from upcycled.models.prepare import KINDS

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

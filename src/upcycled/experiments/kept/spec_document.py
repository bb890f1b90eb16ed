"""A ``RunSpec`` as an experiment file has it: its tables where a file knows them, else plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import nn

from upcycled.aggregators import Samples, as_aggregator
from upcycled.coefficients import ScalarRule, as_rule
from upcycled.config.registry import TABLES, Choice
from upcycled.config.toml_tables import BuiltTable
from upcycled.core.lookup import name_of
from upcycled.core.solvers import LocalAdam, LocalOptimizer
from upcycled.runtime.checkpointing.fingerprint import plain_form
from upcycled.runtime.spec import RunSpec


def document_of(spec: RunSpec) -> dict[str, Any]:
    """Return everything of a spec but the data, as TOML can hold it.

    A file with it, a name and data makes an equal spec, if all in the spec is of this package or has a name that a file
    may say; the rest stands in plain values, which describe it and make nothing.

    >>> import upcycled as up
    >>> found = document_of(up.RunSpec(algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=8, seed=3))
    >>> found["algorithm"], found["upcycle"], found["seeds"]
    ({'name': 'fedprox', 'mu': 0.5}, {'kind': 'constant', 'coefficient': 0.7}, [3])
    """
    aggregator = as_aggregator(spec.aggregation)
    document = {
        "iterations": spec.iterations,
        "seeds": [spec.seed],
        "eval_every": spec.eval_every,
        "metrics": None if spec.metrics is None else _metrics(spec.metrics),
        "keep_best": spec.keep_best,
        "engine": spec.engine,
        "model": _model(spec),
        "algorithm": _table("algorithm", spec.algorithm),
        "upcycle": None if spec.upcycle is None else _upcycle(as_rule(spec.upcycle)),
        "loss": {"name": spec.loss} if isinstance(spec.loss, str) else _table("loss", spec.loss),
        "aggregation": None if isinstance(aggregator, Samples) else _table("aggregation", aggregator),
        "local": _local(spec.local),
        "clients": {
            "participation": _plain(spec.participation),
            "sampling": spec.sampling,
            "stragglers": spec.stragglers,
        },
        "privacy": _privacy(spec),
    }
    found: dict[str, Any] = _without_none(document)
    return found


def _table(key: str, value: object) -> Any:
    """Return an object as a table with its tag: the package's by their names, others by ``module:name``."""
    choice = TABLES[key]
    if value is None or not isinstance(choice, Choice):
        return None
    for name, table in choice.tables.items():
        if issubclass(table, BuiltTable) and table.makes is type(value):
            return {choice.tag: name, **{own: _plain(getattr(value, field)) for own, field in table.names.items()}}
    kind = type(value)
    if is_dataclass(value) and not isinstance(value, type) and name_of(kind) is not None:
        own = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
        return {choice.tag: name_of(kind), **own}
    return {choice.tag: name_of(value) or repr(kind.__name__), **_plain_table(value)}


def _upcycle(rule: object) -> Any:
    return _table("upcycle", rule.coefficient if isinstance(rule, ScalarRule) else rule)


def _local(local: object) -> Any:
    if local is None:
        return None
    if isinstance(local, LocalOptimizer):
        return {"kind": name_of(local.make) or "an optimiser without a name", **_numbers_of(local)}
    found: dict[str, Any] = _table("local", local)
    if isinstance(local, LocalAdam):
        names = TABLES["local"].tables["adam"].names  # type: ignore[union-attr]
        found = {own: _plain(getattr(local, field)) for own, field in names.items()}
        found = {"kind": "adamw" if local.decoupled else "adam", **found}
    if "batch_size" in found and found["batch_size"] is None:
        found["batch_size"] = "full"
    rate = getattr(local, "lr", None)
    if rate is not None and not isinstance(rate, int | float):
        found["lr"] = _table("local.lr", rate)
    return found


def _numbers_of(local: LocalOptimizer) -> dict[str, Any]:
    size = "full" if local.batch_size is None else local.batch_size
    return {"epochs": local.epochs, "batch_size": size, "max_grad_norm": local.max_grad_norm}


def _model(spec: RunSpec) -> dict[str, Any]:
    if isinstance(spec.model, str):
        return {"kind": spec.model, **{key: _plain(value) for key, value in (spec.model_options or {}).items()}}
    if isinstance(spec.model, nn.Module):
        return {"kind": "module", "structure": repr(spec.model)}
    return {"kind": name_of(spec.model) or "a function without a name"}


def _privacy(spec: RunSpec) -> Any:
    if spec.privacy is None:
        return None
    found = _table("privacy", spec.privacy) | {"noise": spec.noise}
    for key, value in (("budget", spec.budget), ("scores", spec.charged_scores)):
        if value is not None:
            found[key] = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
    return found


def _metrics(metrics: Any) -> list[str]:
    values = metrics.items() if isinstance(metrics, Mapping) else ((None, one) for one in metrics)
    return [one if isinstance(one, str) else name or name_of(one) or type(one).__name__ for name, one in values]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else plain_form(value)


def _plain_table(value: object) -> dict[str, Any]:
    form = plain_form(value)
    return form if isinstance(form, dict) else {"value": form}


def _without_none(value: Any) -> Any:
    """Leave out what TOML has no word for."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value if inner is not None]
    return value

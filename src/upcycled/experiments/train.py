"""``train`` as users call it: one run, whose results may be kept as ``upcycled run`` keeps a seed's.

A ``RunSpec`` as an experiment file has it: its tables where a file knows them, else plain values.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from upcycled.aggregators import Samples, as_aggregator
from upcycled.coefficients import ScalarRule, as_rule
from upcycled.config.overrides import put
from upcycled.config.registry import TABLES, Choice
from upcycled.config.tables import BuiltTable
from upcycled.core.aggregator import Aggregator
from upcycled.core.errors import InputError, shown
from upcycled.core.solvers import LocalAdam, LocalOptimizer
from upcycled.core.user_code import name_of
from upcycled.data import FederatedData
from upcycled.training.checkpoint.fingerprint import plain_form
from upcycled.training.plan import Plan, make_plan
from upcycled.training.publication import publication_of
from upcycled.training.result import Result
from upcycled.training.spec import OPTIONS, SIGNATURE, RunArguments, RunSpec
from upcycled.training.train import spec_from, train_plan

if TYPE_CHECKING:
    from upcycled.experiments.results import FolderRun
    from upcycled.run_folder import RunFolder


def document_of(spec: RunSpec) -> dict[str, Any]:
    """Return everything of a spec but the data, as TOML can hold it.

    A file with it, a name and data makes an equal spec, if all in the spec is of this package or has a name that a file
    may say; the rest stands in plain values, which describe it and make nothing.

    >>> import upcycled as up
    >>> found = document_of(up.RunSpec(algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=8, seed=3))
    >>> found["algorithm"], found["upcycle"], found["seeds"]
    ({'name': 'fedprox', 'mu': 0.5, 'server_lr': 1.0}, {'kind': 'constant', 'coefficient': 0.7}, [3])
    """
    document: dict[str, Any] = {"seeds": [spec.seed], "model": _model(spec)}
    for name, option in OPTIONS.items():
        path, value = option.path, getattr(spec, name)
        is_without_table = path[0] == "privacy" and spec.privacy is None
        if not option.in_bits or name == "seed" or path[0] == "model" or is_without_table:
            continue
        form = _FORMS[name](value) if name in _FORMS else _table(name, value) if option.is_table else _plain(value)
        if form is not None:
            document = put(document, path, form)
    return _without_none(document)  # type: ignore[no-any-return]


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


def _upcycle(value: object) -> Any:
    rule = None if value is None else as_rule(value)
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


def _fields(value: Any) -> Any:
    """Return an object that a key stands for, without a name."""
    return None if value is None else {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.init}


def _aggregation(value: str | Aggregator) -> Any:
    aggregator = as_aggregator(value)
    return None if isinstance(aggregator, Samples) else _table("aggregation", aggregator)


def _metrics(metrics: Any) -> list[str] | None:
    if metrics is None:
        return None
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


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "aggregation": _aggregation,
    "budget": _fields,
    "charged_scores": _fields,
    "local": _local,
    "loss": lambda loss: {"name": loss} if isinstance(loss, str) else _table("loss", loss),
    "metrics": _metrics,
    "upcycle": _upcycle,
}
"""How the values of some fields are written."""


def train(
    data: FederatedData,
    spec: RunSpec | None = None,
    results: str | os.PathLike[str] | None = None,
    **arguments: Unpack[RunArguments],
) -> Result:
    """Train a federation and return the model, its history and how it was made.

    Args:
        data: the clients' training data and, optionally, their test data.
        spec: everything else, as one value; or
        results: an experiment's folder, such as ``"results/mine"``: ``seed-<n>/`` in it gets what ``upcycled run``
            writes for a seed, so that ``upcycled report`` and ``upcycled predict`` read it. Asked for again, a run that
            was broken off goes on, and a finished one is returned at once.
        **arguments: the arguments of :class:`~upcycled.RunSpec` one by one. With both, they change the spec's.

    Returns:
        The result. A run that ends early (its model stopped being finite, no client can pay any more, Ctrl-C) gives the
        result up to its last whole iteration, with the reason as ``result.error`` and a line on standard error.

    Raises:
        InputError: in one sentence, before anything is trained, if something is wrong or does not fit together.
        DivergedError, BudgetSpentError: if that ends the run before its first whole iteration; ``error.result`` then
            has the model it began with, and the ledger, which may have charges already.

    >>> import upcycled as up
    >>> data = up.data.synthetic(0.5, 0.5, clients=5, seed=0)
    >>> result = up.train(data, algorithm=up.FedAvg(), upcycle=0.5, iterations=4, engine="sequential", progress=False)
    >>> [record.kind for record in result.history]
    ['data', 'upcycled', 'data', 'upcycled']
    >>> spec = up.RunSpec(algorithm=up.FedAvg(), upcycle=0.5, iterations=4, engine="sequential", progress=False)
    >>> bool((up.train(data, spec).params == result.params).all())
    True
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = up.train(data, spec, results=f"{folder}/mine")
    ...     (Path(folder) / "mine" / "seed-0" / "summary.json").exists()
    True
    """
    plan = make_plan(data, spec_from(spec, arguments))
    return train_plan(plan) if results is None else _kept(data, plan, results)


train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("data", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=FederatedData),
        inspect.Parameter("spec", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=RunSpec | None),
        inspect.Parameter("results", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | Path | None),
        *SIGNATURE.parameters.values(),
    ],
    return_annotation=Result,
)


def _kept(data: FederatedData, plan: Plan, results: str | os.PathLike[str]) -> Result:
    """Carry out a plan in a results folder, and write its results there."""
    # What writes files is loaded for those who want files.
    import tomli_w

    from upcycled._utils.lock import locked
    from upcycled._utils.messages import say
    from upcycled.experiments.results import FolderRun
    from upcycled.experiments.run_in_folder import drop_checkpoint, run_in_folder
    from upcycled.run_folder import RunFolder

    spec, shown_of_run = plan.spec, publication_of(plan)
    for name, option in OPTIONS.items():
        if option.left_out and getattr(spec, name) is not None:
            raise InputError(field=name, value=getattr(spec, name), must=option.left_out)
    if not isinstance(results, str | os.PathLike) or not str(results):
        raise InputError(field="results", value=results, must="None or the path of a folder")
    home = Path(results)
    folder = RunFolder.of_seed(home, spec.seed)
    about_data: dict[str, Any] = {"source": "python", "public": data.public}
    about_data |= {} if data.schema is None else {"schema": data.schema.plain()}
    document = {"name": home.resolve().name, "results": str(home.parent), **document_of(spec), "data": about_data}
    run = FolderRun(
        folder,
        tomli_w.dumps(document).encode(),
        spec,
        spec.fingerprint,
        data,
        shown_of_run,
        shown_of_run.about(data),
        is_given_back=True,
    )
    _is_done(run, document)
    if not spec.is_reproducible:
        say(
            f"note: {spec.unnamed[0]} has no name that a later process could find it by: this run is written to "
            f"{folder.path}, and can neither go on nor be given back"
        )
    with locked(folder.path):
        # Asked again: another process may have finished it meanwhile.
        if _is_done(run, document) and _is_at_its_end(folder, plan):
            drop_checkpoint(folder, shown_of_run.is_restricted, is_given_back=True)
            return train_plan(plan.kept(**run.places))
        return run_in_folder(run, lambda places: plan.kept(**places), train_plan)[0]


def _is_done(run: FolderRun, document: dict[str, Any]) -> bool:
    """Say whether a folder has this run's results, or refuse one that has something else in it, or cannot give them."""
    folder = run.folder
    is_done = _check_same(folder, document)
    if is_done and not (run.spec.is_reproducible and folder.checkpoint(run.shown.is_restricted).is_dir()):
        raise InputError(
            f"{folder.path} holds a finished run that cannot be given back: results must be another folder"
        )
    return is_done


def _is_at_its_end(folder: RunFolder, plan: Plan) -> bool:
    """Say whether a run with a summary made all its iterations; one that was stopped goes on, with a new summary."""
    from upcycled._utils.files import DamagedError

    with suppress(DamagedError):
        return folder.read_summary().iterations == plan.iterations
    return False


def _check_same(folder: RunFolder, document: dict[str, Any]) -> bool:
    """Say whether a folder has a run's results, or refuse one that has something else in it."""
    import tomllib

    import tomli_w

    from upcycled.config.experiment import ADDED, flat

    if not folder.config.exists():
        return False
    try:
        before = ADDED | flat(tomllib.loads(folder.config.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder.path} holds no readable config.toml: results must be another folder") from error
    now = flat(tomllib.loads(tomli_w.dumps(document)))
    for key in dict.fromkeys([*now, *before]):
        if key != "results" and before.get(key) != now.get(key):
            wanted, other = (shown(held[key]) if key in held else "left out" for held in (now, before))
            raise InputError(
                f"{key} is {wanted}, but {folder.path} holds a run with {other}: results must be another folder"
            )
    return folder.is_finished

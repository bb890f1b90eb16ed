"""``train`` as users call it: one run, whose results may be kept as ``upcycled run`` keeps a seed's."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from upcycled.core.errors import BudgetSpentError, DivergedError, InputError, shown
from upcycled.data import FederatedData
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.publication import publication_of
from upcycled.runtime.result import Result
from upcycled.runtime.spec import RunSpec
from upcycled.runtime.train import spec_from, train_plan

_KEPT = ("checkpoint", "ledger", "ledger_key")
"""What a results folder has its own places for."""


def train(
    data: FederatedData, spec: RunSpec | None = None, results: str | os.PathLike[str] | None = None, **arguments: Any
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
        *inspect.signature(RunSpec).parameters.values(),
    ],
    return_annotation=Result,
)


def _kept(data: FederatedData, plan: Plan, results: str | os.PathLike[str]) -> Result:
    """Carry out a plan in a results folder, and write its results there."""
    # What writes files is loaded for those who want files.
    import tomli_w

    from upcycled.experiments.kept.spec_document import document_of
    from upcycled.experiments.private_files import checkpoint_folder, ledger_key
    from upcycled.experiments.results import open_ledger, write_run
    from upcycled.runtime.checkpointing.own_code import own_code
    from upcycled.support.files import PRIVATE, drop_temporaries, make_private, write_whole
    from upcycled.support.lock import locked
    from upcycled.support.said import say

    spec, shown_of_run = plan.spec, publication_of(plan)
    for name in _KEPT:
        if getattr(spec, name) is not None:
            raise InputError(field=name, value=getattr(spec, name), must="left out: results has a place for it")
    if not isinstance(results, str | os.PathLike) or not str(results):
        raise InputError(field="results", value=results, must="None or the path of a folder")
    home = Path(results)
    folder = home / f"seed-{spec.seed}"
    about_data: dict[str, Any] = {"source": "python", "public": data.public}
    about_data |= {} if data.schema is None else {"schema": data.schema.plain()}
    document = {"name": home.resolve().name, "results": str(home.parent), **document_of(spec), "data": about_data}
    is_done = _check_same(folder, document)
    checkpoint = checkpoint_folder(folder, shown_of_run)
    if is_done and not (spec.is_reproducible and checkpoint.is_dir()):
        raise InputError(f"{folder} holds a finished run that cannot be given back: results must be another folder")
    changes: dict[str, Any] = {"checkpoint": checkpoint if spec.is_reproducible else None}
    if spec.privacy is not None:
        changes["ledger"] = open_ledger(folder, spec.noise, checkpoint)
        changes["ledger_key"] = ledger_key(folder) if spec.noise == "system" else None
    if not spec.is_reproducible:
        say(
            f"note: {spec.unnamed[0]} has no name that a later process could find it by: this run is written to "
            f"{folder}, and can neither go on nor be given back"
        )
    config = tomli_w.dumps(document).encode()
    with locked(folder):
        drop_temporaries(folder / PRIVATE)
        if not is_done:
            (folder / "summary.json").unlink(missing_ok=True)
            write_whole(folder / "config.toml", config)
        if shown_of_run.is_restricted:
            make_private(folder / PRIVATE)
        asked = {"seed": spec.seed, "scored_on": "test", "fingerprint": spec.fingerprint, "code": own_code(spec)}
        try:
            result = train_plan(plan.kept(**changes))
        except (DivergedError, BudgetSpentError) as error:
            write_run(folder, config, asked, data, shown_of_run.about(data), error.result)
            raise
        if not is_done and not isinstance(result.error, KeyboardInterrupt):
            write_run(folder, config, asked, data, shown_of_run.about(data), result)
    return result


def _check_same(folder: Path, document: dict[str, Any]) -> bool:
    """Say whether a folder has this run's results, or refuse one that has something else in it."""
    import tomllib

    import tomli_w

    from upcycled.config.experiment import flat

    if not (folder / "config.toml").exists():
        return False
    try:
        before = flat(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no readable config.toml: results must be another folder") from error
    now = flat(tomllib.loads(tomli_w.dumps(document)))
    for key in dict.fromkeys([*now, *before]):
        if key != "results" and before.get(key) != now.get(key):
            wanted, other = (shown(held[key]) if key in held else "left out" for held in (now, before))
            raise InputError(
                f"{key} is {wanted}, but {folder} holds a run with {other}: results must be another folder"
            )
    return (folder / "summary.json").exists()

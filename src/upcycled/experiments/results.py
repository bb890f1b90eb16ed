"""The results of a run: the tables, the summary and the files of its folder, and whether a folder has them already.

``metrics.parquet`` has the same rows as ``metrics.jsonl``, with the same types whatever the run. ``clients.jsonl`` says
what a run was like for each client.

Scores on clients' own data are computed from records that no epsilon covers. In a restricted run they are the holder's
own; what is left is public or part of the ledger.
"""

from __future__ import annotations

import io
import json
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import nn

import upcycled
from upcycled._utils.extras import needs
from upcycled._utils.files import DamagedError, write_together
from upcycled.config.experiment import ADDED, NOT_COMPARED, Experiment, flat
from upcycled.core.errors import InputError, shown
from upcycled.core.vectors import Real
from upcycled.data import FederatedData
from upcycled.experiments.evaluation import FinalModel, final_model
from upcycled.experiments.metric_choice import CHARGED
from upcycled.experiments.private_files import json_lines, write_own
from upcycled.privacy.ledger.header import SIMULATION
from upcycled.privacy.ledger.statement import scope_of
from upcycled.run_folder import (
    BEST,
    CLIENTS,
    CONFIG,
    EVALUATION,
    METRICS,
    PARQUET,
    SCORES,
    BestSummary,
    EpsilonSummary,
    PaperEpsilonSummary,
    PrivacySummary,
    RepeatedChargesSummary,
    RunFolder,
    Summary,
    plain,
)
from upcycled.serving.model_files import write_model
from upcycled.training import History, Result
from upcycled.training.checkpoint.checkpointer import changed_code, own_code, way_out
from upcycled.training.history import SCALARS
from upcycled.training.publication import Publication
from upcycled.training.result import HoldersOwn
from upcycled.training.spec import RunSpec

INTEGERS = ("iteration", "data_round", "bytes_up", "bytes_down", "messages", "gradient_steps")
WORDS = ("kind",)


def to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows of a history as a Parquet file; a column that is never known is there all the same."""
    needs("--parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys([*SCALARS, *(name for row in rows for name in row)]))
    types = {name: pyarrow.int64() for name in INTEGERS} | {name: pyarrow.string() for name in WORDS}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in names])
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), stream)
    return stream.getvalue()


Epsilons = Sequence[float | None] | None


def client_rows(
    data: FederatedData, result: Result, final: FinalModel | None, epsilons: Epsilons
) -> list[dict[str, Any]]:
    """Return one line per client, as everybody may see it.

    ``accuracy``, ``loss`` and the run's metrics are those of the final model on the client's own test samples, of its
    personal model where it has one, and None without such samples; a restricted run has none of them.

    Args:
        data: what the run was trained and scored on.
        result: the run.
        final: its last model at work on test data.
        epsilons: what each client spent; None without privacy.
    """
    work = _work(result.history, data.num_clients)
    scores = {} if result.private is not None else _score_columns(data, final)
    return _lines(data, work | scores, epsilons)


def own_client_rows(
    data: FederatedData, own: HoldersOwn, final: FinalModel | None, epsilons: Epsilons
) -> list[dict[str, Any]]:
    """Return one line per client of a restricted run with everything, for the holder alone."""
    work = _work(own.history, data.num_clients)
    return _lines(data, work | _score_columns(data, final), epsilons)


def _lines(data: FederatedData, columns: Mapping[str, Sequence[Any]], epsilons: Epsilons) -> list[dict[str, Any]]:
    every = {"train_samples": data.train.sizes.tolist(), **columns}
    if epsilons is not None:
        every["epsilon"] = epsilons
    rows = []
    for client in range(data.num_clients):
        name = data.name_of(client)
        called = {"client": client} if name == str(client) else {"client": client, "name": name}
        rows.append(called | {key: values[client] for key, values in every.items()})
    return rows


def _work(history: History, clients: int) -> dict[str, Sequence[Any]]:
    """Return the data rounds each client took part in, and the gradients it computed; nothing where that is secret."""
    rounds, gradients = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for record in history:
        if record.clients is None or record.client_steps is None or record.gradient_steps is None:
            return {}
        rounds[record.clients] += 1
        # A step may take several gradients (pFedMe): as many for each client.
        each = record.gradient_steps // max(int(record.client_steps.sum()), 1)
        gradients[record.clients] += each * record.client_steps
    return {"data_rounds": rounds.tolist(), "gradient_steps": gradients.tolist()}


def _score_columns(data: FederatedData, final: FinalModel | None) -> dict[str, Sequence[Any]]:
    """Return every client's scores on its own test samples; NaN without any."""
    if final is None:
        nothing = [float("nan")] * data.num_clients
        return {"test_samples": [0] * data.num_clients, "accuracy": nothing, "loss": nothing}
    sizes = final.test.sizes
    owner = np.repeat(np.arange(final.test.num_clients), sizes)
    sums = [np.bincount(owner, weights=values, minlength=sizes.size) for values in final.scores_of_rows()]
    with np.errstate(invalid="ignore"):
        accuracy, loss = ((each / sizes).tolist() for each in sums)
    return {"test_samples": sizes.tolist(), "accuracy": accuracy, "loss": loss, **final.metrics_of_clients()}


PLACE = "name or results folder"
"""What decides where an experiment's results lie."""
SUMMED = ("messages", "bytes_up", "bytes_down", "gradient_steps", "seconds", "eval_seconds")


def seed_folder(experiment: Experiment, seed: int) -> RunFolder:
    """Return where a seed's results lie."""
    return RunFolder.of_seed(Path(experiment.results) / experiment.name, seed)


def config_of(experiment: Experiment, seed: int) -> bytes:
    """Return the complete file of a seed, as it lies in its folder."""
    return experiment.for_seed(seed).resolved_toml(seed_folder(experiment, seed).path).encode()


@dataclass(frozen=True)
class FolderRun:
    """A run, and the folder that it is carried out in."""

    folder: RunFolder
    config: bytes
    """Its complete file."""
    spec: RunSpec
    fingerprint: str
    data: FederatedData
    shown: Publication
    """What may be seen of it."""
    about: Mapping[str, Any]
    """What may be said of its data."""
    scored_on: str = "test"
    is_given_back: bool = False
    """Whether a finished run is asked for again as a whole result, which is read from its last checkpoint."""

    @property
    def places(self) -> dict[str, Any]:
        """The fields of ``RunSpec`` that have a place in the folder."""
        spec, checkpoint = self.spec, self.folder.checkpoint(self.shown.is_restricted)
        found: dict[str, Any] = {"checkpoint": checkpoint}
        if self.is_given_back and not spec.is_reproducible:  # there will be nothing to give back
            found["checkpoint"] = None
        if spec.privacy is not None:
            found["ledger"] = self.folder.open_ledger(spec.noise, checkpoint)
            # The holder's own, which nobody who gets the folder's other files needs.
            found["ledger_key"] = self.folder.ledger_key if spec.noise == "system" else None
        return found


def folder_run(
    experiment: Experiment, seed: int, data: FederatedData, shown: Publication, about: Mapping[str, Any]
) -> FolderRun:
    """Return the run of an experiment's seed in its folder."""
    return FolderRun(
        seed_folder(experiment, seed),
        config_of(experiment, seed),
        experiment.spec(seed),
        experiment.fingerprint(seed),
        data,
        shown,
        about,
        experiment.scored_on,
    )


def write_run(run: FolderRun, result: Result, *, parquet: bool = False) -> Summary:
    """Write all files of a run that is finished, or stopped for good, and return its summary.

    Args:
        run: what was run, and where.
        result: what it gave.
        parquet: write ``metrics.parquet`` too.
    """
    own_result = result.private
    folder, data = run.folder, run.data
    final = final_model(data, result, result.personal_models if own_result is None else own_result.personal_models)
    summary = summarise(run, result, final)
    epsilons = None if summary.privacy is None else summary.privacy.epsilon.clients
    history = plain(result.history.rows())
    files = {
        CONFIG: run.config,
        METRICS: json_lines(history),
        CLIENTS: json_lines(plain(client_rows(data, result, final, epsilons))),
        **({} if result.best is None else {BEST: _weights(result.best.model)}),
        **(_evaluation(final) if own_result is None else {}),
    }
    if parquet:
        files[PARQUET] = to_parquet(history)
    if own_result is not None:
        own = {
            SCORES: json_lines(plain(own_result.history.rows())),
            CLIENTS: json_lines(plain(own_client_rows(data, own_result, final, epsilons))),
            **_evaluation(final),
        }
        write_own(folder, own, own_result.notes, data)
    write_together(folder.path, files)
    write_model(folder.path, *result.model_files())
    folder.write_summary(summary)
    return summary


def _weights(model: nn.Module) -> bytes:
    return save_tensors({name: value.detach().clone().contiguous() for name, value in model.state_dict().items()})


def _evaluation(final: FinalModel | None) -> dict[str, bytes]:
    return {} if final is None else {EVALUATION: json.dumps(plain(final.document())).encode() + b"\n"}


def summarise(run: FolderRun, result: Result, final: FinalModel | None) -> Summary:
    """Return a run in a few plain numbers, as everybody may see them; scores are the last iteration's."""
    last = result.history[-1] if len(result.history) else None  # a run may stop in its first iteration
    totals = {name: result.history.total(name) for name in SUMMED}
    up, down = totals["bytes_up"], totals["bytes_down"]
    best = result.best
    return Summary(
        seed=run.spec.seed,
        scored_on=run.scored_on,
        fingerprint=run.fingerprint,
        code=own_code(run.spec),
        error=None if result.error is None else str(result.error),
        **{name: plain(getattr(last, name, None)) for name in ("accuracy", "loss", "global_accuracy", "global_loss")},
        metrics=plain(result.metrics),
        charged_scores=_charged_scores(result),
        notes=tuple(result.notes),
        iterations=0 if last is None else last.iteration,
        data_rounds=0 if last is None else last.data_round,
        **plain(totals),
        bytes=None if up is None or down is None else up + down,
        engine=result.settings["engine"],
        restricted=result.private is not None,
        privacy=_privacy(result),
        data=run.about,
        versions={
            "upcycled": upcycled.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        best=None
        if best is None
        else BestSummary(by=result.settings["keep_best"], iteration=best.iteration, score=best.score),
        baseline=None if final is None or result.private is not None else plain(final.baseline()),
    )


def _privacy(result: Result) -> PrivacySummary | None:
    """Return what a private run cost its clients, with the statement in words; None without privacy."""
    ledger = result.privacy
    if ledger is None:
        return None
    delta = ledger.default_delta
    epsilons = ledger.epsilon(delta)
    paper = ledger.paper_epsilon(delta) if ledger.states_paper_epsilon else None
    clients = tuple(plain(epsilons.tolist()))
    repeats = RepeatedChargesSummary(
        charges=ledger.repeated, epsilon_without=plain(ledger.epsilon_without_repeats(delta))
    )
    return PrivacySummary(
        mechanism=ledger.mechanism,
        claim=ledger.claim,
        is_simulation=ledger.is_simulation,
        noise=SIMULATION if ledger.is_simulation else ledger.noise,
        delta=delta,
        epsilon=EpsilonSummary(**_worst_and_median(epsilons), clients=clients),
        paper_epsilon=None if paper is None else PaperEpsilonSummary(**_worst_and_median(paper)),
        repeats=repeats if ledger.repeated else None,
        as_planned=ledger.is_as_planned,
        statement=tuple(ledger.statement(delta).splitlines()),
        statement_items=tuple(ledger.statement_items(delta)),
        head=None if ledger.head is None else ledger.head.as_json(),
        account=None if ledger.account is None else ledger.account.to_json(),
        scope=scope_of(None if ledger.account is None else ledger.account.id),
        not_covered=_not_covered(result),
    )


def _worst_and_median(epsilons: Real) -> dict[str, Any]:
    return dict(plain({"max": float(epsilons.max()), "median": float(np.median(epsilons))}))


def _charged_scores(result: Result) -> dict[str, Any] | None:
    """Return the last scores that were charged, where any were asked for: everybody may see them."""
    if result.spec is None or result.spec.charged_scores is None:
        return None
    scored = [record.metrics for record in result.history if f"{CHARGED}accuracy" in record.metrics]
    last = scored[-1] if scored else {}
    return {name: plain(value) for name, value in last.items() if name.startswith(CHARGED)}


def _not_covered(result: Result) -> str:
    """Return what a reader must not take epsilon to be about."""
    if result.private is not None:
        return "when files and messages appear: arrival times follow from the data too"
    whose = "a simulation's" if result.privacy is None or result.privacy.is_simulation else "of data declared public"
    return (
        f"accuracy and loss, here and in metrics.jsonl and clients.jsonl, are {whose}: they are computed from test "
        "data, which epsilon does not cover"
    )


def finished_summary(
    experiment: Experiment, seed: int, data: Mapping[str, Any], is_anyway: bool = False
) -> Summary | None:
    """Return the summary of a seed that is finished or stopped, or None where it has to be run.

    ``data`` is what ``Publication.about`` says. A restricted run is reused whatever the data are now: refusing it would
    tell that a record was changed. ``is_anyway`` reuses one that was made before the user's code was edited.

    Raises:
        InputError: if the folder belongs to something else; nothing in it is touched.
    """
    folder = seed_folder(experiment, seed)
    if not folder.path.exists():
        return None
    try:
        summary = folder.read_summary()
    except DamagedError:  # not finished, or to be written again
        _check_same_config(folder, experiment.for_seed(seed))
        return None
    before = summary.data.get("sha256") if "sha256" in data else None
    if summary.fingerprint != experiment.fingerprint(seed):
        # Of another run: the files say which, and what differs.
        _check_same_config(folder, experiment.for_seed(seed))
    advice = way_out(experiment.noise == "system", PLACE)
    if before != data.get("sha256"):
        raise InputError(f"{folder.path} holds a run on other data: {advice}")
    edited = None if is_anyway else changed_code(own_code(experiment.spec(experiment.seeds[0])), summary.code)
    if edited is not None:
        raise InputError(
            f"{folder.path} holds a run from before {edited} was edited: {advice} (--resume-anyway keeps it as it is)"
        )
    return summary


def _check_same_config(folder: RunFolder, experiment: Experiment) -> None:
    config, path = folder.config, folder.path
    if not config.exists() and path.is_dir() and not any(p for p in path.iterdir() if not p.name.startswith(".")):
        return
    try:
        held = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds files but no readable config.toml: choose another {PLACE}") from error
    before = ADDED | flat(held)
    now = flat(tomllib.loads(experiment.resolved_toml()))
    for key in dict.fromkeys([*now, *before]):
        if key not in NOT_COMPARED and before.get(key) != now.get(key):
            wanted, other = _or_nothing(now, key), _or_nothing(before, key)
            advice = way_out(before.get("privacy.noise") == "system", PLACE)
            raise InputError(f"{key} is {wanted}, but {path} holds a run with {other}: {advice}")


def _or_nothing(values: Mapping[str, Any], key: str) -> str:
    return shown(values[key]) if key in values else "left out"

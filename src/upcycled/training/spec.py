"""``RunSpec``: the one form of a run, everything that makes it but the data."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast, get_type_hints

from torch import nn

from upcycled.aggregators import as_aggregator
from upcycled.core.aggregator import Aggregator
from upcycled.core.algorithm import METHODS, NAMES, Algorithm
from upcycled.core.errors import (
    COUNT,
    MACHINE_COUNT,
    PROBABILITY,
    SEED,
    SHARE,
    InputError,
    check_fields,
    check_path,
    plain_number,
    unknown,
)
from upcycled.core.mechanism import Mechanism
from upcycled.core.sampling import SAMPLERS, Participation, Sampler
from upcycled.core.solvers import Local, LocalSGD
from upcycled.core.user_code import check_members, check_names, looked_up, names_code
from upcycled.metrics import Metric, as_metrics
from upcycled.privacy.charged_scores import ChargedScores
from upcycled.privacy.ledger.budget import Budget
from upcycled.training.callbacks import Callback, Probe, as_callback
from upcycled.training.checkpoint.files import how_often
from upcycled.training.checkpoint.fingerprint import hash_of, plain_form
from upcycled.training.history import SCALARS


def _known_engine(name: str) -> None:
    from upcycled.engines import ENGINES

    if name not in ("auto", *ENGINES):
        raise unknown("engine", name, ["auto", *ENGINES])


def _known_sampling(name: str) -> None:
    if name not in SAMPLERS and not names_code(name):
        raise ValueError("neither a known name nor code of one's own")


def _known_metrics(names: Sequence[str]) -> None:
    as_metrics([name for name in names if not names_code(name)])


def _names_of_code(names: Sequence[str]) -> None:
    if not all(map(names_code, names)):
        raise ValueError("not the names of code")


def _named_callbacks(names: Sequence[str]) -> tuple[Any, ...]:
    """Return the callbacks of these names; a class is called without arguments."""
    found = [looked_up(name, "callbacks") for name in names]
    return tuple(one() if isinstance(one, type) else one for one in found)


@dataclass(frozen=True, kw_only=True)
class Option:
    """How experiment files give a field of :class:`RunSpec`; one that says nothing is a key of the field's name."""

    key: str = ""
    """The key, if it has another name or stands in a table, such as ``"clients.sampling"``."""
    is_table: bool = False
    """Whether it stands for an object of the package, as a table."""
    form: Any = None
    """The type of the key's value, where it is not that of the field."""
    must: str = ""
    """What the value must be, where neither type nor limits say it."""
    check: Callable[[Any], object] | None = None
    """Raises an error for a value that is wrong though its type is right."""
    make: Callable[[Any], object] | None = None
    """Makes the field's value from the key's."""
    in_bits: bool = True
    """Whether it changes what a run computes, and not only how the run is kept and shown."""
    left_out: str = ""
    """Why no file gives it."""

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of the key; of a table its own name."""
        parts = tuple(self.key.split("."))
        return parts[:1] if self.is_table else parts


TABLE = Option(is_table=True)
_KEPT = Option(in_bits=False)
_PLACED = Option(in_bits=False, left_out="left out: results has a place for it")


class SharedArguments(TypedDict, total=False):
    """The fields of :class:`RunSpec` that runs of a comparison share, as keyword arguments for type checkers."""

    algorithm: Algorithm
    model: str | nn.Module | Callable[[], nn.Module]
    model_options: Mapping[str, Any] | None
    loss: object
    aggregation: str | Aggregator
    local: Local | None
    participation: float | Sampler
    sampling: str
    stragglers: float
    privacy: Mechanism | None
    noise: Literal["seeded", "system"]
    budget: Budget | None
    charged_scores: ChargedScores | None
    engine: str
    eval_every: int
    metrics: Sequence[str | Callable[..., Any] | Metric | Mapping[str, Any]] | Mapping[str, Any] | None
    keep_best: Literal["loss", "accuracy"] | None
    device: str
    ledger: str | Path | None
    ledger_key: str | Path | None
    account: str | Path | None
    checkpoint: str | Path | None
    checkpoint_every: int | str
    resume_anyway: bool
    callbacks: Sequence[Callback | Probe | Callable[..., object]]


class RunArguments(SharedArguments, total=False):
    """The fields of :class:`RunSpec` as keyword arguments for type checkers."""

    upcycle: object
    iterations: int
    seed: int
    progress: bool


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that makes a run but the data: the arguments of ``up.train``, checked one by one.

    Args:
        algorithm: such as ``up.FedAvg()`` or ``up.FedProx(mu=0.5)``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"``; a torch module, which starts from its own weights; or a function
            that makes one (``"package.module:factory"`` names it), called with torch's generator set to ``seed``.
        model_options: options of a model named by a string, such as ``{"hidden": [196]}``.
        loss: a name (``"cross_entropy"``, ``"binary_cross_entropy"``, ``"multilabel"``, ``"mse"``, ``"mae"``,
            ``"huber"``, ``"poisson"``, ``"quantile"``, ``"double_softmax"``), one of ``up.losses`` with its options, or
            a function (outputs, targets) -> a loss for each sample; left out, the usual one for the data's targets.
        upcycle: None for a vanilla run; a number, a member of ``up.coefficients``, or ``"auto"`` (a small constant)
            makes every even iteration a server-only extrapolation.
        aggregation: how releases become one vector: ``"samples"`` (weighed by n_i), ``"median"``, ``"trimmed_mean"``,
            ``"precision"`` (by the known privacy noise), one of ``up.aggregators`` with its options, or your own.
        iterations: global iterations, upcycled ones included.
        local: the clients' optimiser: ``up.LocalSGD``, ``up.LocalAdam``, ``up.LocalAdamW`` or ``up.LocalOptimizer``.
        participation: the fraction of clients in a data round, or a :class:`~upcycled.Sampler`.
        sampling: ``"fixed"`` (always the same number of clients) or ``"poisson"`` (each by its own coin).
        stragglers: the probability that a selected client stops after 1 to epochs-1 epochs.
        privacy: a mechanism of ``up.privacy``.
        noise: ``"seeded"`` is a simulation and protects nobody; ``"system"`` is real and cannot be repeated.
        budget: the most each client may spend; one that cannot pay is left out of a round before it trains.
        charged_scores: noisy scores of the global model that a private run may publish, because they are charged.
        engine: ``"auto"``, which takes the same engine for a task on every machine, or the name of an engine.
        seed: fixes clients, stragglers, minibatches, initial weights and simulated noise.
        eval_every: score the test data every so many iterations, and after the last.
        metrics: more scores on the test data, in ``record.metrics`` and ``result.metrics``: a list of names
            (``"auroc"``, ``"f1_macro"``, ``"sensitivity"``, ``"rmse"``, ...), functions (targets, predictions) -> a
            number, and ``up.metrics.Metric``; or a mapping of names to functions.
        keep_best: ``"loss"`` or ``"accuracy"``: score ``data.validation`` whenever the test data are scored, and keep
            the iterate that does best there as ``result.best``, beside the last one.
        device: the torch device of engines that use one.
        ledger: a file (JSON lines) that each charge is written to, durably, before its releases leave.
        ledger_key: a file with the holder's own key, made where there is none: the ledger's heads are signed with it,
            so that nobody else can make one for a ledger with fewer charges. With ``noise="system"`` and a checkpoint
            it lies in that folder, unless another is named; otherwise there is none.
        account: the folder of the data holder's account (:class:`~upcycled.privacy.Account`), which every charge of a
            run with ``noise="system"`` is written to as well, durably, before its releases leave. A run that it cannot
            pay for is refused before it trains; a simulation is charged to nobody.
        checkpoint: a folder that the run is kept in. Started again with the same arguments, the run goes on from there
            and ends in the same bits as one that was never stopped; a finished one is returned at once. A private run
            then keeps its ledger there too, unless ``ledger`` names another file; with ``noise="system"`` a repeated
            round gets new noise and is charged again.
        checkpoint_every: how often it is saved: after so many data rounds, or ``"2s"`` for seconds (less often where
            saving takes over a tenth of that). The last iteration is saved in any case, also of a run broken off.
        resume_anyway: go on from a checkpoint that other versions of this package, NumPy, torch or Numba wrote, or your
            own code before it was edited.
        progress: show a live table on standard error when the run takes longer than a second.
        callbacks: told after each iteration: functions of a record, or of a record and the run, or objects with some of
            :class:`~upcycled.Callback`'s methods. One that returns ``up.STOP`` ends the run there.

    Raises:
        InputError: in one sentence, for a value that no run can have.

    >>> import upcycled as up
    >>> spec = up.RunSpec(algorithm=up.FedAvg(), iterations=4)
    >>> spec.replace(seed=3).seed, spec.fingerprint == spec.replace(progress=False).fingerprint
    (3, True)
    """

    algorithm: Annotated[Algorithm, TABLE]
    model: Annotated[str | nn.Module | Callable[[], nn.Module], Option(key="model.kind", is_table=True)] = "logistic"
    model_options: Annotated[Mapping[str, Any] | None, Option(key="model", is_table=True)] = None
    loss: Annotated[object, TABLE] = None
    upcycle: Annotated[object, TABLE] = None
    aggregation: Annotated[str | Aggregator, Option(key="aggregation.kind", is_table=True)] = "samples"
    iterations: Annotated[int, MACHINE_COUNT] = 100
    local: Annotated[Local | None, TABLE] = None
    participation: Annotated[float | Sampler, Option(key="clients.participation", form=Annotated[float, SHARE])] = 1.0
    sampling: Annotated[
        str,
        Option(key="clients.sampling", must="'fixed' or 'poisson', or 'package.module:Name'", check=_known_sampling),
    ] = "fixed"
    stragglers: Annotated[float, PROBABILITY, Option(key="clients.stragglers")] = 0.0
    privacy: Annotated[Mechanism | None, TABLE] = None
    noise: Annotated[
        Literal["seeded", "system"],
        Option(key="privacy.noise", must="'seeded', which simulates and protects nobody, or 'system', which is real"),
    ] = "seeded"
    budget: Annotated[
        Budget | None,
        Option(
            key="privacy.budget",
            must="a table such as { epsilon = 2.0, delta = 1e-5 }, with an epsilon > 0 and a delta >= 0 and < 1",
        ),
    ] = None
    charged_scores: Annotated[
        ChargedScores | None,
        Option(
            key="privacy.scores",
            must="a table such as { noise_std = 10.0, every = 5 } (scores that are charged), with a noise_std > 0",
        ),
    ] = None
    engine: Annotated[str, Option(must="the name of an engine, or 'auto'", check=_known_engine)] = "auto"
    seed: Annotated[int, SEED] = 0
    eval_every: Annotated[int, COUNT] = 1
    metrics: Annotated[
        Sequence[str | Callable[..., Any] | Metric | Mapping[str, Any]] | Mapping[str, Any] | None,
        Option(
            form=tuple[str, ...],
            must="a list of names such as 'auroc' or 'package.module:function'",
            check=_known_metrics,
        ),
    ] = None
    keep_best: Literal["loss", "accuracy"] | None = None
    device: Annotated[str, Option(must="'cpu', or another device of this machine that torch can compute on")] = "cpu"
    ledger: Annotated[str | Path | None, _PLACED] = None
    ledger_key: Annotated[str | Path | None, _PLACED] = None
    account: Annotated[
        str | Path | None, Option(key="privacy.account", must="the path of an account's folder", in_bits=False)
    ] = None
    checkpoint: Annotated[str | Path | None, _PLACED] = None
    checkpoint_every: Annotated[
        int | str,
        Option(must="a number of data rounds such as 10, or seconds such as '2s'", check=how_often, in_bits=False),
    ] = "1s"
    resume_anyway: Annotated[bool, _KEPT] = False
    progress: Annotated[bool, _KEPT] = True
    callbacks: Annotated[
        Sequence[Callback | Probe | Callable[..., object]],
        Option(
            form=tuple[str, ...],
            must="a list of names such as 'package.module:function'",
            check=_names_of_code,
            make=_named_callbacks,
            in_bits=False,
        ),
    ] = ()

    def __post_init__(self) -> None:
        check_fields(self, of="")
        _check_kinds(self)
        _check_agreement(self)
        how_often(self.checkpoint_every)
        # NumPy's numbers become Python's own, so that equal specs have equal fingerprints.
        for name in ("upcycle", "checkpoint_every"):
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        object.__setattr__(self, "model_options", _plain_numbers(self.model_options))
        asked = tuple(self.metrics) if isinstance(self.metrics, Sequence) else self.metrics
        object.__setattr__(self, "metrics", asked or None)
        object.__setattr__(self, "participation", self.who.fraction)
        object.__setattr__(self, "stragglers", self.who.stragglers)

    @cached_property
    def who(self) -> Participation:
        """How cohorts are drawn."""
        return Participation(self.participation, self.sampling, self.stragglers)

    @property
    def has_real_noise(self) -> bool:
        """Whether the run protects somebody, and is no simulation of that."""
        return self.privacy is not None and self.noise == "system"

    @property
    def account_path(self) -> Path | None:
        """The account that pays; a simulation costs nobody anything."""
        return Path(self.account) if self.account is not None and self.has_real_noise else None

    @property
    def ledger_path(self) -> Path | None:
        """Where charges go: a private run that is kept needs them on the disk too."""
        if self.ledger is not None:
            return Path(self.ledger)
        return None if self.checkpoint is None or self.privacy is None else Path(self.checkpoint) / "ledger.jsonl"

    @property
    def ledger_key_path(self) -> Path | None:
        """Where the key of the ledger's heads lies; a simulation protects nobody, and needs none."""
        if self.ledger_key is not None:
            return Path(self.ledger_key)
        return None if self.checkpoint is None or not self.has_real_noise else Path(self.checkpoint) / "ledger.key"

    def replace(self, **changes: Unpack[RunArguments]) -> RunSpec:
        """Return a spec with some arguments changed."""
        return spec_of(cast(RunArguments, {name: getattr(self, name) for name in ARGUMENTS} | changes))

    def settings(self) -> dict[str, Any]:
        """Return what determines the run's bits, by name."""
        return {name: getattr(self, name) for name in ARGUMENTS if OPTIONS[name].in_bits}

    @cached_property
    def _form(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        opaque: list[str] = []
        form: dict[str, Any] = {}
        for name, value in self.settings().items():
            codes: list[str] = []
            form[name] = plain_form(value, codes.append)
            opaque += [f"{code} (given as {name})" for code in codes]
        return form, tuple(opaque)

    def plain(self) -> dict[str, Any]:
        """Return what determines the run's bits in plain values: modules by structure and weights, code by its name."""
        return dict(self._form[0])

    @property
    def fingerprint(self) -> str:
        """A hash of :meth:`plain`: equal for runs that compute the same on the same data."""
        return hash_of(self._form[0])

    @property
    def unnamed(self) -> tuple[str, ...]:
        """Code in it that has no name to be found again by, such as a lambda: it trains, and cannot be resumed."""
        return self._form[1]

    @property
    def is_reproducible(self) -> bool:
        """Whether everything in it can be found again by its name."""
        return not self.unnamed


ARGUMENTS = tuple(f.name for f in fields(RunSpec))
HINTS: Mapping[str, Any] = get_type_hints(RunSpec, include_extras=True)


def _options() -> Iterator[tuple[str, Option]]:
    for name in ARGUMENTS:
        said = [part for part in getattr(HINTS[name], "__metadata__", ()) if isinstance(part, Option)]
        option = said[0] if said else Option()
        yield name, option if option.key else replace(option, key=name)


OPTIONS: Mapping[str, Option] = dict(_options())
"""How files give each field of a spec."""


SIGNATURE = inspect.signature(RunSpec).replace(
    parameters=[
        one.replace(annotation=RunArguments.__annotations__[name].__forward_arg__)
        for name, one in inspect.signature(RunSpec).parameters.items()
    ]
)
"""The arguments of a run with their types alone, as help and documentation show them."""
RunSpec.__signature__ = SIGNATURE  # type: ignore[attr-defined]


LOCAL_ARGUMENTS = {f.name: f.name for f in fields(LocalSGD)} | {"learning_rate": "lr"}
"""What is the clients' optimiser's, and its other name."""


def local_of(spec: RunSpec) -> Local:
    """Return the clients' optimiser, which is plain SGD unless another was asked for."""
    return LocalSGD() if spec.local is None else spec.local


def spec_of(arguments: RunArguments) -> RunSpec:
    """Return the spec with these arguments; one that does not exist is a TypeError, as for any function."""
    for name in arguments:
        if name not in ARGUMENTS:
            near = difflib.get_close_matches(name, ARGUMENTS, n=1, cutoff=0.6)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            if name in LOCAL_ARGUMENTS:
                hint = f"; did you mean local=up.LocalSGD({LOCAL_ARGUMENTS[name]}=...)?"
            raise TypeError(f"train() has no argument '{name}'{hint}")
    if "algorithm" not in arguments:
        raise TypeError("train() is missing the argument 'algorithm', such as algorithm=up.FedAvg()")
    return RunSpec(**arguments)


def _plain_numbers(value: object) -> object:
    """Return options with all their numbers as Python's own."""
    if isinstance(value, Mapping):
        return {name: _plain_numbers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain_numbers(one) for one in value)
    return plain_number(value)


def _check_kinds(spec: RunSpec) -> None:
    if not hasattr(spec.algorithm, "server_step"):
        raise InputError(field="algorithm", value=spec.algorithm, must="an algorithm such as up.FedAvg()")
    check_members("algorithm", spec.algorithm, ("name", *NAMES, "is_personal"), METHODS)
    check_names(spec.algorithm, NAMES)
    if spec.local is not None and not isinstance(spec.local, Local):
        must = "up.LocalSGD(...), up.LocalAdam(...), up.LocalAdamW(...) or up.LocalOptimizer(...)"
        raise InputError(field="local", value=spec.local, must=must)
    if spec.privacy is not None and (isinstance(spec.privacy, type) or not hasattr(spec.privacy, "fit")):
        raise InputError(field="privacy", value=spec.privacy, must="None or a mechanism of up.privacy")
    as_aggregator(spec.aggregation)
    for name, what in (("checkpoint", "folder"), ("ledger", "file"), ("ledger_key", "file"), ("account", "folder")):
        path = getattr(spec, name)
        if path is not None and not check_path(name, path, what):
            raise InputError(field=name, value=path, must=f"the path of a {what}")
    for metric in as_metrics(spec.metrics):
        if metric.name in SCALARS and metric.name != "accuracy":
            raise InputError(field="metrics", value=metric.name, but="records have another number of that name")
    for one in spec.callbacks:
        as_callback(one)


def _check_agreement(spec: RunSpec) -> None:
    for name, what in (
        ("budget", "spend"),
        ("charged_scores", "charge"),
        ("ledger", "write down"),
        ("ledger_key", "sign"),
        ("account", "pay for"),
    ):
        if getattr(spec, name) is not None and spec.privacy is None:
            reason = f"is given without privacy, but only a private run has something to {what}"
            raise InputError(reason, field=name)
    if spec.ledger_key is not None and spec.ledger_path is None:
        raise InputError(
            "is given without a ledger or a checkpoint, but there must be a file to sign", field="ledger_key"
        )

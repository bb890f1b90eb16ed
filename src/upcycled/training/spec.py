"""``RunSpec``: the one form of a run, everything that makes it but the data."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from torch import nn

from upcycled.aggregators import as_aggregator
from upcycled.core.aggregator import Aggregator
from upcycled.core.algorithm import METHODS, NAMES, Algorithm
from upcycled.core.errors import COUNT, MACHINE_COUNT, SEED, InputError, check_fields, check_path, plain_number, unknown
from upcycled.core.mechanism import Mechanism
from upcycled.core.sampling import Participation, Sampler
from upcycled.core.solvers import Local, LocalSGD
from upcycled.core.user_code import check_members, check_names
from upcycled.metrics import Metric, as_metrics
from upcycled.privacy.charged_scores import ChargedScores
from upcycled.privacy.ledger.budget import Budget
from upcycled.training.callbacks import Callback, Probe, as_callback
from upcycled.training.checkpoint.files import how_often
from upcycled.training.checkpoint.fingerprint import hash_of, plain_form
from upcycled.training.history import SCALARS

NOISES = ("seeded", "system")
CHOSEN_BY = ("loss", "accuracy")
"""What an iterate may be the best by."""
NOT_IN_BITS = (
    *("ledger", "ledger_key", "account", "checkpoint", "checkpoint_every", "resume_anyway", "progress", "callbacks"),
)
"""How a run is kept and shown: none of it changes what it computes."""


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

    algorithm: Algorithm
    model: str | nn.Module | Callable[[], nn.Module] = "logistic"
    model_options: Mapping[str, Any] | None = None
    loss: object = None
    upcycle: object = None
    aggregation: str | Aggregator = "samples"
    iterations: Annotated[int, MACHINE_COUNT] = 100
    local: Local | None = None
    participation: float | Sampler = 1.0
    sampling: str = "fixed"
    stragglers: float = 0.0
    privacy: Mechanism | None = None
    noise: str = "seeded"
    budget: Budget | None = None
    charged_scores: ChargedScores | None = None
    engine: str = "auto"
    seed: Annotated[int, SEED] = 0
    eval_every: Annotated[int, COUNT] = 1
    metrics: Sequence[str | Callable[..., Any] | Metric | Mapping[str, Any]] | Mapping[str, Any] | None = None
    keep_best: str | None = None
    device: str = "cpu"
    ledger: str | Path | None = None
    ledger_key: str | Path | None = None
    account: str | Path | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | str = "1s"
    resume_anyway: bool = False
    progress: bool = True
    callbacks: Sequence[Callback | Probe | Callable[..., object]] = ()

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

    def replace(self, **changes: Any) -> RunSpec:
        """Return a spec with some arguments changed."""
        return spec_of({name: getattr(self, name) for name in ARGUMENTS} | changes)

    def settings(self) -> dict[str, Any]:
        """Return what determines the run's bits, by name."""
        return {name: getattr(self, name) for name in ARGUMENTS if name not in NOT_IN_BITS}

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


LOCAL_ARGUMENTS = {f.name: f.name for f in fields(LocalSGD)} | {"learning_rate": "lr"}
"""What is the clients' optimiser's, and its other name."""


def local_of(spec: RunSpec) -> Local:
    """Return the clients' optimiser, which is plain SGD unless another was asked for."""
    return LocalSGD() if spec.local is None else spec.local


def spec_of(arguments: Mapping[str, Any]) -> RunSpec:
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
    if spec.noise not in NOISES:
        raise unknown("noise", spec.noise, NOISES)
    if spec.keep_best is not None and spec.keep_best not in CHOSEN_BY:
        raise unknown("keep_best", spec.keep_best, CHOSEN_BY)
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

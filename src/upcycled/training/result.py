"""What a run gives back."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from upcycled._utils.formats import Overview, count, fixed, megabytes, score_digits, shortened
from upcycled._utils.messages import say
from upcycled.core.layout import assign
from upcycled.core.vectors import Ints, Vector
from upcycled.data.arrays import Names
from upcycled.metrics import GLOBAL, as_metrics
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.serving.model_files import WEIGHTS, ModelCard, model_files, personal_file, statement_of, write_model
from upcycled.training import plots
from upcycled.training.checkpoint.fingerprint import versions
from upcycled.training.history import History
from upcycled.training.spec import RunSpec

METRICS_SHOWN = 6
OWN = "the data holder's own (result.private)"


class PersonalModels(Mapping[int, nn.Module]):
    """The personal model of each client that trained; modules are made when asked for."""

    def __init__(self, module: nn.Module, clients: Ints, models: Vector, names: Names) -> None:
        self.names = names
        self._module = module
        self._rows = {client: i for i, client in enumerate(clients.tolist())}
        self._models = models

    def params(self, client: int) -> torch.Tensor:
        """Return a client's personal model as a flat tensor."""
        return torch.from_numpy(self._models[self._rows[client]].copy())

    def __getitem__(self, client: int) -> nn.Module:
        module = copy.deepcopy(self._module)
        assign(module, self._models[self._rows[client]])
        return module.eval()

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class HoldersOwn:
    """What a restricted run leaves to the holder of its data alone.

    No epsilon covers any of it: it is computed from records. Showing it to anybody else is a release.
    """

    history: History
    """Every number of every iteration, scores and seconds included."""
    personal_models: PersonalModels | None = None
    """pFedMe only: client -> its personal module."""
    notes: tuple[str, ...] = ()
    """What would have been warnings, if they did not follow from the data."""


@dataclass(frozen=True)
class BestModel:
    """The iterate that did best on the validation samples, of a run with ``keep_best``."""

    params: torch.Tensor
    """As ``Result.params``."""
    model: nn.Module
    """As ``Result.model``."""
    iteration: int
    """Which iteration it came from."""
    score: float
    """Its loss or accuracy on the validation samples, whichever it was chosen by."""


@dataclass(frozen=True)
class Result:
    """The trained model, the history, and how it was made.

    All of it may be published, but ``private``. A run with real noise on data that are not declared public has None in
    the place of what may not. Pickles and copies of a result have no ``private``.
    """

    params: torch.Tensor
    """Flat float32 tensor of the trainable parameters, in ``named_parameters`` order, each row-major."""
    model: nn.Module
    """The torch module with the final weights (and running statistics of batch norm), in evaluation mode.

    Where a mechanism projects features to a norm, the module does so too before it looks at them.
    """
    history: History
    personal_models: PersonalModels | None
    """pFedMe only: client -> its personal module; None in a restricted run."""
    settings: Mapping[str, Any]
    """What the run was asked to do, and the engine that did it."""
    card: ModelCard
    """What the model takes and what its outputs mean, as it is written beside its weights."""
    privacy: Ledger | None = None
    """The per-client ledger of a private run."""
    error: BaseException | None = None
    """What ended the run early, whose result is that of its last whole iteration; None if it ended as planned."""
    spec: RunSpec | None = None
    """What was asked for."""
    private: HoldersOwn | None = None
    """Of a restricted run: exact scores, personal models, notes. Showing them is a release."""
    notes: tuple[str, ...] = ()
    """Warnings, a sentence each: what is odd about the data, or that nothing was learnt; none in a restricted run."""

    best: BestModel | None = None
    """The iterate that did best on the validation samples, of a run with ``keep_best``."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "private": None}

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last scored iteration; None without test data, and in a restricted run."""
        last = self.history.last_scored()
        return None if last is None else last.accuracy

    @property
    def loss(self) -> float | None:
        """Test loss of the last scored iteration; None without test data, and in a restricted run."""
        last = self.history.last_scored()
        return None if last is None else last.loss

    @property
    def metrics(self) -> dict[str, float | None]:
        """The run's metrics at the last scored iteration; None where one is not defined, and in a restricted run."""
        last = self.history.last_scored()
        measured = {} if last is None else last.metrics
        asked = [metric.name for metric in as_metrics(None if self.spec is None else self.spec.metrics)]
        of_global = [f"{GLOBAL}{name}" for name in asked if f"{GLOBAL}{name}" in measured]
        return {name: measured.get(name) for name in (*asked, *of_global)}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model to a folder that :func:`upcycled.load` reads, on this machine or another.

        ``model.safetensors`` has weights and buffers, ``model.json`` what the model takes, what its outputs mean and
        what the ledger says; personal models, where there are some, are in ``personal.safetensors``, of a restricted
        run in the holder's own ``private/``. A kill at any moment leaves the model that was there before, or this one.

        Args:
            folder: where; it is made where it is not there.

        Returns:
            The folder.

        Raises:
            WriteError: in one sentence, if it cannot be written.

        >>> import tempfile
        >>> import upcycled as up
        >>> data = up.data.synthetic("iid", clients=3, sizes=40, seed=0)
        >>> result = up.train(data, algorithm=up.FedAvg(), iterations=2, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(path.name for path in result.save(folder).iterdir())
        ['model.json', 'model.safetensors']
        """
        target = Path(folder)
        write_model(target, *self.model_files())
        module, _, function = (self.card.factory or "").partition(":")
        if module == "__main__":
            say(
                f"note: {function!r}, which made the model, is in the script itself, where no other program finds it: "
                f"there up.load needs model=, or {function!r} a module of its own"
            )
        return target

    def model_files(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Return the model's files, those that everybody may see and those that are the data holder's own."""
        privacy = None if self.privacy is None else statement_of(self.privacy)
        public = model_files(self.card, self.model, privacy, versions())
        own: dict[str, bytes] = {}
        kept = self.private.personal_models if self.private is not None else self.personal_models
        if kept:
            vectors = {client: kept.params(client) for client in kept}
            (public if self.private is None else own).update(personal_file(vectors, kept.names.called, public[WEIGHTS]))
        return public, own

    def plot(self, metric: str | None = None, *, against: str = "data_round", ax: Any = None) -> Any:
        """Draw a metric, or what privacy cost, over the run (needs the extra ``report``).

        Of a restricted run it draws what is public: scores that were charged, and epsilon. What is the data holder's
        own is drawn by ``result.private.history.plot()``, and showing that is a release.

        Args:
            metric: ``"accuracy"``, ``"loss"``, the name of another one that was measured, or ``"epsilon"``, the worst
                client's; left out, the first of them that there is.
            against: ``"data_round"``, which is what costs, or ``"iteration"``.
            ax: matplotlib's axes to draw on; left out, those of a new figure.

        Returns:
            The axes.

        Raises:
            InputError: in one sentence, if that was not measured, or is the data holder's own.

        >>> import upcycled as up
        >>> data = up.data.synthetic("iid", clients=3, sizes=40, seed=0)
        >>> result = up.train(data, algorithm=up.FedAvg(), iterations=2, progress=False)
        >>> from matplotlib.figure import Figure  # in a notebook, result.plot("loss") alone
        >>> result.plot("loss", ax=Figure().subplots()).get_title(loc="left")
        'test loss'
        """
        found = plots.chosen(metric, [self.history], [self.privacy], self.private is not None)
        if found == plots.EPSILON and self.privacy is not None:
            points = plots.spent(self.privacy, against)
        else:
            points = plots.points(self.history, found, against)
        return plots.draw(ax, plots.titled(found, self.privacy), against, [(None, [points])])

    @property
    def title(self) -> str:
        """What was run, in a line."""
        upcycled = "" if self.settings.get("upcycle") is None else "upcycled "
        algorithm = getattr(self.settings.get("algorithm"), "name", "run")
        rounds = self.history[-1].data_round if len(self.history) else 0
        done = f"{count(len(self.history))} iterations, {count(rounds)} data rounds"
        return f"{upcycled}{algorithm}, {done}"

    @property
    def scores(self) -> tuple[tuple[str, str], ...]:
        """Names and values of what was measured last, for a reader."""
        if self.private is not None:
            last = self.history[-1].metrics if len(self.history) else {}
            charged = [(name, fixed(value, *score_digits(name))) for name, value in last.items()]
            return (("scores", OWN), *charged[:METRICS_SHOWN])
        known = {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}
        named = [(name, value) for name, value in known.items() if value is not None][: METRICS_SHOWN + 2]
        unit = {"accuracy": " %"}
        return tuple(
            (shortened(name, 24), f"{fixed(value, *score_digits(name))}{unit.get(name, '')}") for name, value in named
        )

    @property
    def overview(self) -> Overview:
        """Its numbers in a dozen rows: what was run, what it reached, what it cost."""
        history, ledger = self.history, self.privacy
        up, down = history.total("bytes_up"), history.total("bytes_down")
        moved = None if up is None or down is None else up + down
        rows = [*self.scores, ("sent", f"{count(history.total('messages'))} messages, {megabytes(moved)} MB")]
        if ledger is not None:
            rows += [("privacy", f"{ledger.mechanism}{', simulation: not private' * ledger.is_simulation}")]
            rows += [("worst client's epsilon", ledger.worst_in_words)]
        rows += [("engine", str(self.settings.get("engine"))), ("seed", str(self.settings.get("seed")))]
        if self.error is not None:
            rows += [("ended early", shortened(str(self.error) or type(self.error).__name__, 200))]
        rows += [("warning", shortened(words, 200)) for words in self.notes[:2]]
        return Overview(self.title, tuple(rows))

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value}" for name, value in self.scores)
        return f"<Result of {self.title}{f': {scores}' if scores else ''}>"

    def __str__(self) -> str:
        return self.overview.text

    def _repr_html_(self) -> str:
        return self.overview.html

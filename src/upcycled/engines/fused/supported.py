"""What the fused engine can train: a description of it, or the sentence that says why not. Imports no compiler."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.layout import Layout
from upcycled.core.solvers import LocalAdam, LocalSGD, MoreauSGD, NoisySGD
from upcycled.core.vectors import Shards
from upcycled.engines.certified import CERTIFIED, refuses_certified
from upcycled.losses import BinaryCrossEntropy, CrossEntropy, DoubleSoftmax, Huber, SquaredError
from upcycled.models.linear import runs_other_code

SOLVERS: tuple[type, ...] = (LocalSGD, LocalAdam, MoreauSGD, NoisySGD, *CERTIFIED)


@dataclass(frozen=True)
class Dense:
    """One Linear layer and where its parameters start in the flat vector."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None


@dataclass(frozen=True)
class DenseStack:
    """Linear layers with a ReLU between each two."""

    layers: tuple[Dense, ...]
    flattens: bool


@dataclass(frozen=True)
class FusedLoss:
    """A loss as the kernels know it."""

    code: int
    targets: int = 1
    """Numbers of a sample's target."""
    classes: int = 0
    """Labels are below it; 0 where targets are no classes."""
    threshold: float = 0.0


def loss_of(task: Task, outputs: int) -> FusedLoss | str:
    """Describe the task's loss, or say why the kernels have none such."""
    objective = task.objective
    if objective == CrossEntropy():
        return FusedLoss(0, classes=outputs)
    if objective == DoubleSoftmax():
        return FusedLoss(4, classes=outputs)
    if objective == BinaryCrossEntropy() and outputs == 1:
        return FusedLoss(1, classes=2)
    if isinstance(objective, SquaredError | Huber):
        targets = 1 if task.train.y.ndim == 1 else int(np.prod(task.train.y.shape[1:]))
        if targets != outputs or task.train.y.ndim > 2:
            return f"the model gives {outputs} outputs, but a target has {targets} numbers"
        if isinstance(objective, Huber):
            return FusedLoss(3, targets, threshold=objective.threshold)
        return FusedLoss(2, targets)
    return f"the fused engine has cross-entropy, binary, squared and Huber loss without weights, not {objective.name}"


def refuses(task: Task) -> str | None:
    """Return why the task cannot be trained here, in one sentence, or None."""
    found = stack_of(task.module, task.layout)
    if isinstance(found, str):
        return found
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _about_solver(task),
        lambda: reason if isinstance(reason := loss_of(task, found.layers[-1].outputs), str) else None,
        lambda: _about_data("training", task.train, found),
        lambda: None if task.test is None else _about_data("test", task.test, found),
        lambda: _about_place(task, found),
    )
    return next((reason for reason in (check() for check in checks) if reason), None)


def stack_of(module: nn.Module, layout: Layout) -> DenseStack | str:
    """Describe the module as a stack, or say why it is none."""
    parts = list(module) if type(module) is nn.Sequential else [module]
    flattens = bool(parts) and type(parts[0]) is nn.Flatten
    if flattens:
        flat = parts.pop(0)
        if flat.start_dim != 1 or flat.end_dim != -1:
            return "the fused engine knows Flatten with its default dimensions only"
    for i, part in enumerate(parts):
        wanted = nn.ReLU if i % 2 else nn.Linear
        if type(part) is not wanted:
            return (
                "the fused engine trains a Linear layer or a Sequential of an optional Flatten and alternating Linear "
                f"and ReLU, but found {type(part).__name__} where {wanted.__name__} should be"
            )
    if len(parts) % 2 == 0:
        return "the fused engine needs a model that ends in a Linear layer"
    if any(map(runs_other_code, module.modules())):
        return "the fused engine does not run module hooks"
    return _laid_out([part for part in parts if isinstance(part, nn.Linear)], layout, flattens)


def _laid_out(linears: list[nn.Linear], layout: Layout, flattens: bool) -> DenseStack | str:
    sizes = [sum(p.numel() for p in linear.parameters()) for linear in linears]
    if sum(sizes) != layout.size:
        return "the fused engine trains every parameter of the model, none of them frozen or shared between layers"
    layers, start = [], 0
    for before, linear in zip([None, *linears], linears, strict=False):
        if before is not None and before.out_features != linear.in_features:
            return f"a layer gives {before.out_features} numbers, but the next one takes {linear.in_features}"
        after = start + linear.weight.numel()
        layers.append(Dense(linear.in_features, linear.out_features, start, None if linear.bias is None else after))
        start = after + (0 if linear.bias is None else linear.out_features)
    return DenseStack(tuple(layers), flattens)


def _about_solver(task: Task) -> str | None:
    if type(task.solver) in CERTIFIED and (reason := refuses_certified(task)) is not None:
        return reason
    # DP-SGD's noisy gradients take the place of another solver's.
    solver = task.solver.plain if type(task.solver) is NoisySGD else task.solver
    if type(solver) in SOLVERS:
        return None
    known = ", ".join(kind.__name__ for kind in SOLVERS)
    return f"the fused engine has the local solvers {known}, but not {type(solver).__name__}"


def _about_data(part: str, shards: Shards, stack: DenseStack) -> str | None:
    x, inputs = shards.x, stack.layers[0].inputs
    if x.dtype != np.float32 or not x.dtype.isnative:
        return f"the fused engine takes float32 features, but the {part} features are {x.dtype}"
    if not x.flags.c_contiguous or not x.flags.aligned:
        return f"the fused engine takes features that lie row by row in memory, but the {part} features do not"
    is_numbers = shards.y.dtype == np.float32 and shards.y.flags.c_contiguous
    if not is_numbers and (shards.y.dtype != np.int64 or shards.y.ndim != 1):
        return f"the fused engine takes int64 labels or float32 numbers, but the {part} targets are {shards.y.dtype}"
    per_sample = int(np.prod(x.shape[1:]))
    if per_sample != inputs or (x.ndim != 2 and not stack.flattens):
        shape = "x".join(str(n) for n in x.shape[1:])
        return f"the model takes {inputs} numbers a sample, but the {part} features are {shape}"
    return None


def _about_place(task: Task, stack: DenseStack) -> str | None:
    if task.device != "cpu":
        return f"the fused engine runs on the cpu, not on {task.device}"
    if task.objective in (CrossEntropy(), DoubleSoftmax()) and stack.layers[-1].outputs < task.num_classes:
        return f"the model gives {stack.layers[-1].outputs} logits, but there are {task.num_classes} classes"
    if importlib.util.find_spec("numba") is None:
        return "the fused engine needs numba, which is not installed"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "the fused engine needs numba's compiler, which NUMBA_DISABLE_JIT switches off"
    return None

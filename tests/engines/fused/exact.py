"""Local training of stacks of Linear and ReLU in float64 NumPy, one step after the other, as the definitions read.

Shares nothing with the kernels but core's random streams.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.layout import flatten, layout_of
from upcycled.core.mechanism import Ask
from upcycled.core.randomness import Purpose, client_keys, permutations
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import MoreauSGD, Problem
from upcycled.core.vectors import Shards
from upcycled.engines.fused import FUSED
from upcycled.losses import CrossEntropy


def federation(sizes, shape, classes, seed=0):
    """Clients of the given sizes whose labels depend on the features, so that training has something to find."""
    rng = np.random.default_rng(seed)
    rows = int(sum(sizes))
    x = rng.normal(0, 1, (rows, *shape)).astype(np.float32)
    x += np.repeat(rng.normal(0, 0.5, len(sizes)), sizes).reshape(-1, *[1] * len(shape)).astype(np.float32)
    scores = x.reshape(rows, np.prod(shape)) @ rng.normal(0, 1, (np.prod(shape), classes))
    scores += rng.gumbel(0, 1, scores.shape)
    return Shards(x, scores.argmax(1).astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def stack(*widths, bias=True, flattens=False):
    layers = [nn.Flatten()] if flattens else []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def task_for(module, train, solver, classes, test=None, seed=3):
    """A task whose module starts at numbers of its own."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return Task(module, layout_of(module), classes, train, test, solver, seed, CrossEntropy())


def layers_of(module, flat):
    """The (weight, bias) pairs of a flat vector; no bias is zero."""
    found, at = [], 0
    for linear in (m for m in module.modules() if isinstance(m, nn.Linear)):
        size = linear.in_features * linear.out_features
        weight = flat[at : at + size].reshape(linear.out_features, linear.in_features)
        at += size
        bias = flat[at : at + linear.out_features] if linear.bias is not None else np.zeros(linear.out_features)
        at += linear.out_features if linear.bias is not None else 0
        found.append((weight, bias))
    return found


def logits_of(module, flat, x):
    """The inputs of every layer, and the logits."""
    acts = [x.reshape(len(x), np.prod(x.shape[1:])).astype(np.float64)]
    layers = layers_of(module, flat.astype(np.float64))
    for i, (weight, bias) in enumerate(layers):
        z = acts[-1] @ weight.T + bias
        acts.append(np.maximum(z, 0) if i < len(layers) - 1 else z)
    return acts[:-1], acts[-1]


def log_softmax(z):
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def gradient(module, flat, x, y):
    """The gradient of the mean cross-entropy, by the chain rule."""
    acts, z = logits_of(module, flat, x)
    delta = np.exp(log_softmax(z))
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    parts = []
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    layers = layers_of(module, flat)
    for i in range(len(layers) - 1, -1, -1):
        if linears[i].bias is not None:
            parts.insert(0, delta.sum(0))
        parts.insert(0, (delta.T @ acts[i]).ravel())
        delta = (delta @ layers[i][0]) * (acts[i] > 0)
    return np.concatenate(parts)


def batches(task, work, lane):
    """Yield the rows of every local step."""
    client, epochs = int(work.cohort.clients[lane]), int(work.cohort.epochs[lane])
    x, y = task.train.client(client)
    size = task.solver.local.batch_size
    key = client_keys(task.seed, Purpose.BATCHES, work.round, work.cohort.clients, work.attempt)[lane]
    orders = permutations(int(key), len(y), epochs) if size else [np.arange(len(y))] * epochs
    for order in orders:
        for at in range(0, len(y), size or len(y)):
            rows = order[at : at + (size or len(y))]
            yield x[rows], y[rows]


def trained(task, work):
    """What the cohort's local work gives: vectors, steps and private vectors, in float64."""
    outs, steps, thetas = [], [], []
    for lane in range(len(work.cohort.clients)):
        w = work.model.astype(np.float64)
        b = 0.0 if work.problem.b is None else work.problem.b[lane].astype(np.float64)
        x, theta, v, count = w.copy(), w.copy(), np.zeros_like(w), 0
        for features, labels in batches(task, work, lane):
            count += 1
            if isinstance(task.solver, MoreauSGD):
                s = task.solver
                for _ in range(s.inner_steps):
                    g = gradient(task.module, theta, features, labels) + work.problem.a * (theta - w) + b
                    theta = theta - s.inner_lr * (g + s.lam * (theta - x))
                x = x - s.local.lr * s.lam * (x - theta)
            else:
                g = gradient(task.module, x, features, labels) + work.problem.a * (x - w) + b
                v = task.solver.momentum * v + g
                x = x - task.solver.lr * v
        outs.append(x)
        steps.append(count)
        thetas.append(theta)
    return np.array(outs), np.array(steps), np.array(thetas)


def rounds(task, cohorts, a=0.0, with_b=False):
    """Works of several rounds that go on from the float64 mean of the round before."""
    model, rng = flatten(task.module), np.random.default_rng(5)
    for number, (clients, epochs) in enumerate(cohorts, start=1):
        b = rng.normal(0, 0.05, (len(clients), model.size)).astype(np.float32) if with_b else None
        cohort = Cohort(np.array(clients, dtype=np.int64), np.array(epochs, dtype=np.int64))
        work = Ask(number, number, number % 2, cohort, model, Problem(a, b))
        exact = trained(task, work)
        yield work, exact
        model = exact[0].mean(0).astype(np.float32)


def open_fused(task, threads=1):
    assert FUSED.refuses(task) is None
    return FUSED.open(task, threads)


def distance(found, exact):
    """The largest error relative to the largest number."""
    return np.abs(found - exact).max() / np.abs(exact).max()

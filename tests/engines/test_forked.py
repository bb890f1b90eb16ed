"""Processes made in every way there is: runs end in them, and in the same bits."""

from __future__ import annotations

import multiprocessing
import os

import pytest

import upcycled as up
from upcycled.core import machine as forked

WIDE = {"model": "mlp", "model_options": {"hidden": [300]}}
KINDS = {
    "vectorised": WIDE | {"engine": "vectorised"},
    "fused": {"engine": "fused"},
    "sequential": {"engine": "sequential"},
}


def federation():
    return up.data.synthetic("iid", clients=8, sizes=100, seed=0)


def bits(kind, at_once=2):
    """Train alone, and some runs at once, and return all that came of it."""
    spec = up.RunSpec(algorithm=up.FedAvg(), iterations=2, progress=False, **KINDS[kind])
    data = federation()
    alone = up.train(data, spec)
    several = up.train_many([(data, spec.replace(seed=seed)) for seed in range(at_once)], progress=False)
    return [one.params.numpy().tobytes() for one in (alone, *several)]


def put_bits(kind, at_once, queue):
    queue.put(bits(kind, at_once))


def of_child(context, kind, at_once=2, daemon=False):
    """Return what a child computes; one that waits for nobody is killed, and fails the test."""
    queue = context.Queue()
    child = context.Process(target=put_bits, args=(kind, at_once, queue), daemon=daemon)
    child.start()
    try:
        return queue.get(timeout=120)
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_computes_what_its_parent_did_and_does_not_wait_for_its_workers(kind):
    at_once = 2 if kind == "fused" else 0  # in threads; the others' worker processes take long to start
    own = bits(kind, at_once)
    assert of_child(multiprocessing.get_context("fork"), kind, at_once) == own
    assert bits(kind, at_once) == own, "the parent goes on as before"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("daemon", [False, True], ids=["process", "daemon"])
def test_a_child_of_any_kind_computes_the_same_bits(method, daemon):
    assert of_child(multiprocessing.get_context(method), "vectorised", daemon=daemon) == bits("vectorised")


def test_only_a_copy_of_the_process_that_loaded_the_package_is_forked(monkeypatch):
    assert not forked.is_forked()
    monkeypatch.setattr(forked, "IMPORTED_IN", os.getpid() + 1)
    assert forked.is_forked()
    assert not forked.may_have_workers()

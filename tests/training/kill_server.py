"""Runs cases in forked children and kills them: importing torch for each of a hundred runs would take minutes.

This process never trains with threads, so a fork is safe. It reads a request per line from standard input and answers
with a line: ``{"case", "folder", "every", "out", "kill", "limit"}`` -> ``{"status": "done" | "killed" | "failed"}``.
The result, or the sentence of the error that ended the run, goes to the file ``out``.

A kill is ``{"after": seconds}``, or ``{"call": name, "count": k}``: in place of the k-th call of that name, or half-way
through it for writes. A limit is the most bytes that a file can have, which is how a full disk looks.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from itertools import count
from pathlib import Path

from tests.training.kill_cases import as_json, plan_of, summary_of
from upcycled.core.errors import UpcycledError
from upcycled.privacy.ledger import chain
from upcycled.training import round as data_round
from upcycled.training.train import run_plan


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class HalfWriter:
    """A stream that dies half-way through what it is given."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stream.close()

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, content):
        self._stream.write(content[: len(content) // 2])
        self._stream.flush()
        die()


def arm(call, at):
    """Die at the ``at``-th call of os.fsync, os.replace or os.unlink, or within the ``at``-th write of a kind."""
    counter = count(1)

    def fatal(original):
        def wrapped(*arguments, **options):
            if next(counter) == at:
                die()
            return original(*arguments, **options)

        return wrapped

    def halving(original, modes):
        def opened(*arguments, **options):
            stream = original(*arguments, **options)
            return HalfWriter(stream) if arguments[1:2] in modes and next(counter) == at else stream

        return opened

    if call == "checkpoint write":
        Path.open = halving(Path.open, [("wb",)])
    elif call == "ledger write":
        chain.open = halving(open, [("r+b",)])
    else:
        setattr(os, call, fatal(getattr(os, call)))


def log_releases(path):
    """Write down a hash of every release that reaches the server, at the moment it does."""
    original = data_round.RoundResult

    def arrived(**parts):
        digest = hashlib.sha256(parts["mean"].tobytes() + parts["release"].vectors.tobytes()).hexdigest()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{digest}\n".encode())
        os.close(handle)
        return original(**parts)

    data_round.RoundResult = arrived


def child(request):
    folder, kill = request.get("folder"), request.get("kill") or {}
    if folder is not None:
        log_releases(Path(folder).with_suffix(".released"))
    if "call" in kill:
        arm(kill["call"], kill["count"])
    if request.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], resource.RLIM_INFINITY))
    result = run_plan(plan_of(request["case"], folder, request.get("every", 1)), [], threads=1)
    Path(request["out"]).write_text(as_json(summary_of(result)))


def serve(request):
    if request["case"] == "dpsgd":
        importlib.import_module("torch._dynamo")  # torch.func imports it when first used: once for all children
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(request)
            code = 0
        except UpcycledError as error:
            Path(request["out"]).write_text(f"{type(error).__name__}: {error}")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    limit = (request.get("kill") or {}).get("after", 120.0)
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.perf_counter() - began >= limit:
            os.kill(pid, signal.SIGKILL)
            found = os.waitpid(pid, 0)
            break
        time.sleep(0.0005)
    code = os.waitstatus_to_exitcode(found[1])
    return {"status": {0: "done", -signal.SIGKILL: "killed"}.get(code, "failed")}


def warm_up():
    """Load the kernels once for all children, and make sure that no thread is left."""
    for case in ("fedavg-fused-vanilla", "pfedme-fused-vanilla", "pfedme-fused-upcycled", "erm"):
        run_plan(plan_of(case), [], threads=1)
    assert len(os.listdir("/proc/self/task")) == 1


if __name__ == "__main__":
    warm_up()
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)

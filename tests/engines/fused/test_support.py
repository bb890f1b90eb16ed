"""What the engine takes, what it refuses and in which words, and its threads."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch import nn

from tests.engines.fused.exact import federation, open_fused, stack, task_for
from upcycled.core.layout import layout_of
from upcycled.core.solvers import LocalSGD, MoreauSGD
from upcycled.core.vectors import Shards
from upcycled.engines.fused import FUSED
from upcycled.engines.thread_pool import ThreadPool


def task_of(module, shape=(6,), classes=3, **changes):
    task = task_for(module, federation((4, 5), shape, classes), LocalSGD(), classes, federation((2, 3), shape, classes))
    return replace(task, **changes)


class Own(nn.Linear):
    pass


@dataclass(frozen=True)
class OtherSolver(LocalSGD):
    pass


def frozen():
    module = stack(6, 5, 3)
    module[0].weight.requires_grad = False
    return module


def tied():
    module = stack(6, 6, 3)
    return nn.Sequential(module[0], nn.ReLU(), module[0], nn.ReLU(), module[2])


def hooked():
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 3), (6,)),
        (nn.Linear(6, 3, bias=False), (6,)),
        (nn.Sequential(nn.Linear(6, 3)), (6,)),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (2, 3)),
        (stack(6, 4, 5, 3, flattens=True), (6,)),
        (stack(6, 4, 4, 3, bias=False), (6,)),
        (nn.Linear(6, 9), (6,)),
    ],
)
def test_it_takes_linear_models_and_stacks(module, shape):
    assert FUSED.refuses(task_of(module, shape)) is None
    assert FUSED.refuses(task_of(module, shape, solver=MoreauSGD(LocalSGD(), 1.0, 2, 0.1), test=None)) is None


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), r"Tanh.*ReLU"),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3)), r"Dropout.*Linear"),
        (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), r"Linear.*ReLU"),
        (nn.Sequential(nn.Linear(6, 3), nn.ReLU()), "Linear layer"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)), r"Flatten.*default"),
        (nn.Sequential(stack(6, 4, 3)), r"Sequential.*Linear"),
        (Own(6, 3), r"Own.*Linear"),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(5, 3)), r"4.*next.*5"),
        (frozen(), r"frozen.*shared"),
        (tied(), r"frozen.*shared"),
        (hooked(), "module hooks"),
        (nn.Linear(7, 3), r"7.*sample.*training features.*6"),
        (nn.Linear(6, 2), r"2 logits.*3 classes"),
    ],
)
def test_it_refuses_other_modules_in_one_sentence(module, says):
    task = replace(task_of(nn.Linear(6, 3)), module=module, layout=layout_of(module))
    reason = FUSED.refuses(task)
    assert re.search(says, reason)
    assert "\n" not in reason


def test_it_refuses_other_solvers_devices_and_types():
    task = task_of(nn.Linear(6, 3))
    assert "NominalSGD, but not OtherSolver" in FUSED.refuses(replace(task, solver=OtherSolver()))
    assert "not on cuda" in FUSED.refuses(replace(task, device="cuda"))
    x, y, offsets = task.train.x, task.train.y, task.train.offsets
    doubled = Shards(x.astype(np.float64), y, offsets)
    assert "training features are float64" in FUSED.refuses(replace(task, train=doubled))
    assert "test features are float64" in FUSED.refuses(replace(task, test=doubled))
    columns = Shards(np.asfortranarray(x), y, offsets)
    assert "row by row in memory" in FUSED.refuses(replace(task, train=columns))
    assert "training targets are int32" in FUSED.refuses(replace(task, train=Shards(x, y.astype(np.int32), offsets)))
    images = Shards(np.zeros((9, 2, 3), dtype=np.float32), y, offsets)
    assert "features are 2x3" in FUSED.refuses(replace(task, train=images))


def test_a_refused_task_opened_all_the_same_says_why():
    with pytest.raises(ValueError, match="found Tanh"):
        FUSED.open(task_of(nn.Sequential(nn.Linear(6, 3), nn.Tanh())), 1)
    with pytest.raises(ValueError, match="OtherSolver"):
        FUSED.open(task_of(nn.Linear(6, 3), solver=OtherSolver()), 1)


def test_nothing_imports_numba_before_an_engine_is_opened():
    code = (
        "import sys, numpy as np; from torch import nn; from upcycled.core.layout import layout_of\n"
        "from upcycled.core.vectors import Shards; from upcycled.core.solvers import LocalSGD\n"
        "from upcycled.core.engine import Task; from upcycled.engines.fused import FUSED\n"
        "from upcycled.losses import CrossEntropy\n"
        "m = nn.Linear(2, 2); s = Shards(np.zeros((3, 2), np.float32), np.zeros(3, np.int64), np.array([0, 3]))\n"
        "assert FUSED.refuses(Task(m, layout_of(m), 2, s, None, LocalSGD(), 0, CrossEntropy())) is None\n"
        "assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith("upcycled-")]


def test_one_thread_means_no_pool_and_close_stops_the_others():
    task = task_of(nn.Linear(6, 3))
    before = len(own_threads())
    alone = open_fused(task, 1)
    assert len(own_threads()) == before
    several = open_fused(task, 3)
    assert len(own_threads()) == before + 2
    several.close()
    several.close()
    alone.close()
    assert len(own_threads()) == before
    assert np.isfinite(several.score(np.zeros(21, dtype=np.float32)).loss)


def test_an_error_in_a_helper_reaches_the_caller_and_the_pool_goes_on():
    pool, all_here = ThreadPool(2), threading.Barrier(3)
    done = []

    def fails(thread):
        all_here.wait()
        if thread == 2:
            raise ArithmeticError("here")
        done.append(thread)

    def works(thread):
        all_here.wait()
        done.append(thread)

    with pytest.raises(ArithmeticError, match="here"):
        pool.run(fails)
    pool.run(works)
    pool.close()
    assert sorted(done) == [0, 0, 1, 1, 2]


def test_a_helper_that_comes_late_is_neither_waited_for_nor_let_in():
    pool, busy, go_on = ThreadPool(1), threading.Event(), threading.Event()
    done = []

    def keeps_the_helper(thread):
        if thread == 1:
            busy.set()
            go_on.wait()
        else:
            busy.wait()

    first = threading.Thread(target=pool.run, args=(keeps_the_helper,))
    first.start()
    busy.wait()
    pool.run(done.append)
    assert done == [0]
    go_on.set()
    first.join()
    pool.close()
    assert done == [0]

"""One torch thread inside an engine, the caller's own number outside; and copies that torch has aligned."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from upcycled.engines.determinism import one_blas_thread, one_thread, to_torch


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_one_thread_inside_and_the_callers_setting_after_an_error():
    @one_thread()
    def fail():
        raise RuntimeError(f"with {torch.get_num_threads()} thread")

    with pytest.raises(RuntimeError, match="1 thread"):
        fail()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_it_holds_in_the_thread_that_does_the_work_and_in_no_other():
    seen = []

    def work():
        torch.set_num_threads(2)
        with one_thread():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    with one_thread():
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 1
    assert seen == [1, 2]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_a_copy_is_aligned_whatever_the_array_is(dtype):
    for skip in range(1, 9):
        array = np.arange(100).astype(dtype)[skip:]
        array.flags.writeable = False
        copy = to_torch(array)
        assert copy.data_ptr() % 64 == 0
        assert np.array_equal(copy.numpy(), array)
        assert not np.shares_memory(copy.numpy(), array)


def blas_threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_blas_has_one_thread_until_the_last_of_several_runs_has_left():
    """The first to come need not be the last to go."""
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        if before == {1}:
            pytest.skip("BLAS has one thread here in any case")
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert blas_threads() == {1}
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before
        with pytest.raises(KeyError), one_blas_thread():
            raise KeyError
        assert blas_threads() == before

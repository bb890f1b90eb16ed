"""Locks of folders: where they do not work, or their file was removed, nobody spends a budget twice."""

from __future__ import annotations

import errno
import fcntl
import os

import numpy as np
import pytest

from upcycled._utils import lock
from upcycled._utils.files import WriteError
from upcycled._utils.lock import LOCK, InUseError, locked
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge, Promise
from upcycled.privacy import Account
from upcycled.privacy.ledger.entries import Entry


def pay(account, round):
    """Charge one Gaussian release."""
    run = account.begin("r", "some", Promise("something", ()), ("ann",), np.array([100]))
    nobody_else = np.zeros(1, dtype=np.int64)
    charge = Charge("gaussian", nobody_else, np.ones(1), np.full(1, 4.0), draws=np.full(1, 10))
    run.pay(Entry(round, "data", round, 0, nobody_else, charge))


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, None])
def no_locks(request, monkeypatch):
    """A file system whose locks fail, or that grants every lock to everybody."""

    def flock(*arguments):
        if request.param is not None:
            raise OSError(request.param, os.strerror(request.param))

    return lambda: monkeypatch.setattr(fcntl, "flock", flock)


def test_without_working_locks_no_account_is_opened_read_or_charged(tmp_path, no_locks):
    account = Account.open(tmp_path / "a", epsilon=2.0, delta=1e-5)
    pay(account, 1)
    before = account.content
    no_locks()
    for refused in (
        lambda: pay(account, 2),
        account.close,
        lambda: Account.read(tmp_path / "a"),
        lambda: Account.open(tmp_path / "b", epsilon=2.0, delta=1e-5),
    ):
        with pytest.raises(WriteError, match=r"locks.*work"):
            refused()
    assert account.content == before
    assert not (tmp_path / "b" / "account.jsonl").exists()


def test_without_working_locks_other_folders_are_used_unlocked(tmp_path, no_locks):
    no_locks()
    with locked(tmp_path), locked(tmp_path):
        pass


@pytest.mark.parametrize("is_private", [False, True])
def test_a_lock_file_that_was_removed_while_it_was_waited_for_is_not_taken(tmp_path, monkeypatch, is_private):
    """Whoever waits locks the removed file when its holder goes; the next one to come would lock a new one."""
    taken = []

    def removed_first(handle, blocking):
        if not taken:
            (tmp_path / LOCK).unlink()
            (tmp_path / LOCK).touch()
        taken.append(os.fstat(handle).st_ino)
        return real(handle, blocking=blocking)

    real = lock.lock_descriptor
    with monkeypatch.context() as patch:
        patch.setattr(lock, "lock_descriptor", removed_first)
        with locked(tmp_path, is_private=is_private, waits=True):
            patch.undo()
            assert len(set(taken)) == 2
            with pytest.raises(InUseError, match=r"use.*process"), locked(tmp_path, is_private=is_private):
                pass


def test_a_lock_file_that_is_replaced_every_time_is_refused(tmp_path, monkeypatch):
    def always_removed(handle, blocking):
        (tmp_path / LOCK).unlink()
        return True

    monkeypatch.setattr(lock, "lock_descriptor", always_removed)
    os.close(before := os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(InUseError, match="replaced"), locked(tmp_path, waits=True):
        pass
    os.close(after := os.open(os.devnull, os.O_RDONLY))
    assert after == before  # no handle is left open


def test_an_account_does_not_cut_off_a_charge_that_came_in_spite_of_the_lock(tmp_path, monkeypatch):
    """The lock file of a holder at work is removed: the next process gets in beside it."""
    account, other = Account.open(tmp_path, epsilon=2.0, delta=1e-5), Account.read(tmp_path)
    pay(account, 1)
    fits = Account._fits

    def beside(self, *arguments):
        monkeypatch.setattr(Account, "_fits", fits)
        (tmp_path / LOCK).unlink()
        pay(other, 2)
        return fits(self, *arguments)

    monkeypatch.setattr(Account, "_fits", beside)
    with pytest.raises(InputError, match=r"process wrote"):
        pay(account, 3)
    assert [charged.entry.round for charged in Account.read(tmp_path).charges] == [1, 2]
    pay(account, 3)
    assert [charged.entry.round for charged in Account.read(tmp_path).charges] == [1, 2, 3]


def test_an_account_that_cannot_be_written_does_not_advise_another_folder(tmp_path, monkeypatch):
    account = Account.open(tmp_path, epsilon=2.0, delta=1e-5)
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(WriteError, match=r"permissions.*space$"):
        pay(account, 1)

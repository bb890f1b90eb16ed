"""One file over HTTP: goes on where it was stopped, is checked against its published sum, appears whole or not at all.

What has arrived lies in ``NAME.part``. It stays there when the network, the server or the disk fails, and the next call
goes on with it. When all of it has arrived but its sum is wrong, it is removed: going on could never make it right.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import TypeAlias

from upcycled.core.errors import InputError, UpcycledError
from upcycled.support.formats import count

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes that are there and, where it is known, how many there will be."""

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
_AGAIN = "run the command again to go on from there"


@dataclass(frozen=True)
class Sums:
    """What is published about a file; None is what nobody has published."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None

    @property
    def best(self) -> tuple[str, str] | None:
        """The name and the value of the strongest published sum."""
        if self.sha256 is not None:
            return "sha256", self.sha256
        return None if self.md5 is None else ("md5", self.md5)


def download(url: str, target: Path, sums: Sums, progress: Progress, timeout: float = _TIMEOUT) -> None:
    """Bring ``url`` to ``target``.

    Raises:
        InputError: when the address cannot be one.
        UpcycledError: in one sentence, when it cannot be had or is not what was published.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InputError(field="url", value=url, but="it must begin with http:// or https://")
    part = target.with_name(f"{target.name}.part")
    try:
        have = part.stat().st_size if part.is_file() else 0
        answer = None if have and have == sums.size else _ask(url, have, timeout)
        with nullcontext() if answer is None else answer:
            # Only now: an address that cannot be reached leaves no folder and no empty file behind.
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                if answer is not None:
                    _receive(answer, url, file, sums.size, progress, timeout)
                file.flush()
                os.fsync(file.fileno())
        _check(url, part, sums)
        part.replace(target)
    except OSError as error:
        raise cannot_keep(target, error) from error


def cannot_keep(path: Path, error: OSError) -> UpcycledError:
    """Return the sentence for a full disk, or a folder that cannot be written."""
    way = (
        "free some space and run the command again" if error.errno == errno.ENOSPC else "choose a folder with --to DIR"
    )
    return UpcycledError(f"{path} cannot be written ({error.strerror or error}): {way}")


def _receive(
    answer: http.client.HTTPResponse,
    url: str,
    file: BufferedWriter,
    size: int | None,
    progress: Progress,
    timeout: float,
) -> None:
    """Append what is missing to the open file."""
    start, total = _extent(url, answer, file.tell())
    if size is not None and total not in (None, size):
        raise UpcycledError(
            f"{url} has {total:,} bytes, but the published file has {size:,}: give another address with --url"
        )
    total = size if total is None else total
    if start != file.tell():
        # It does not go on where we stopped, but sends everything.
        file.truncate(0)
    done = start
    while block := _next(url, answer, done, total, timeout):
        if total is not None and done + len(block) > total:
            file.truncate(0)
            raise UpcycledError(f"{url} sends more than the {total:,} bytes it announced: run the command again")
        file.write(block)
        done += len(block)
        progress(done, total)
    if total is not None and done < total:
        raise UpcycledError(f"{url} stopped after {done:,} of {total:,} bytes: {_AGAIN}")


def _ask(url: str, have: int, timeout: float) -> http.client.HTTPResponse | None:
    """Return the answer to a request for what is missing; None when the server says that all of it is there."""
    request = urllib.request.Request(url, headers={"User-Agent": "upcycled", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            # Nothing lies beyond what we have: it is all of it, or of another file than the one there now.
            found = _RANGE.fullmatch(error.headers.get("Content-Range", ""))
            return None if found is not None and found[2] == str(have) else _ask(url, 0, timeout)
        raise UpcycledError(
            f"{url} answers {error.code} ({error.reason}): try again later, or give another address with --url"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            reason = f"no answer within {timeout:g} seconds"
        raise UpcycledError(
            f"{url} cannot be reached ({reason}): check the network, or give another address with --url"
        ) from error
    return answer


def _extent(url: str, answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return where the answer begins in the file, and the file's size where the answer tells it."""
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, answer.length
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or found[1] is None or int(found[1]) not in (0, have):
        raise UpcycledError(f"{url} sends another part of the file than was asked for: give another address with --url")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _next(url: str, response: http.client.HTTPResponse, done: int, total: int | None, timeout: float) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        why = f"nothing for {timeout:g} seconds" if isinstance(error, TimeoutError) else str(error) or "connection lost"
        of = "" if total is None else f" of {count(total)}"
        raise UpcycledError(f"{url} stopped after {done:,}{of} bytes ({why}): {_AGAIN}") from error


def wrong_sum(path: Path, sums: Sums) -> str | None:
    """Return a file's sum and the published one, in words, where they differ."""
    if sums.best is None:
        return None
    name, right = sums.best
    with path.open("rb") as file:
        found = hashlib.file_digest(file, name).hexdigest()
    return None if found == right else f"the {name} {found}, but the published one is {right}"


def _check(url: str, part: Path, sums: Sums) -> None:
    wrong = wrong_sum(part, sums)
    if wrong is not None:
        part.unlink()
        raise UpcycledError(
            f"{url} gave a file with {wrong}: it was removed, run the command again or give another address with --url"
        )

"""Real data: fetched from its publishers, and what is there on this machine.

Real data from its publishers: download, check, unpack what is needed, keep nothing else.

Addresses and sums are those that torchvision, TensorFlow Datasets and the publishers give. For GloVe none is published,
so its archive is checked by the sums inside it only.

Which real sets are on this machine, and in which file.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj

from upcycled._utils.extras import needs
from upcycled.core.errors import InputError, UpcycledError, reason_of, unknown
from upcycled.data.sets import word_vectors
from upcycled.data.sets.femnist import EMNIST, POOL
from upcycled.data.sets.femnist import READY as FEMNIST_READY
from upcycled.data.sets.paths import chosen_folder, fetched_folder, find
from upcycled.data.sets.sent140 import ORIGINAL, PARQUET, TOKENS

TIMEOUT = 30.0
"""Seconds without an answer after which a download fails."""
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Package:
    """An archive at its publisher's, and which of its files are kept, in which folder."""

    title: str
    url: str
    sha256: str | None
    """None if the publisher gives none."""
    folder: str
    files: tuple[str, ...]


PACKAGES = {
    "femnist": Package(
        title="EMNIST (NIST), the pool FEMNIST's devices are dealt from",
        url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        folder="emnist",
        files=tuple(
            f"emnist-byclass-{part}-{kind}-ubyte.gz"
            for part in ("train", "test")
            for kind in ("images-idx3", "labels-idx1")
        ),
    ),
    "sent140": Package(
        title="Sentiment140 (Go, Bhayani, Huang 2009)",
        url="https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
        sha256="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
        folder="sent140",
        files=("training.1600000.processed.noemoticon.csv",),
    ),
    "glove": Package(
        title="GloVe 6B word vectors (Pennington, Socher, Manning 2014)",
        url="https://nlp.stanford.edu/data/glove.6B.zip",
        sha256=None,
        folder="glove.6B",
        files=("glove.6B.50d.txt", "glove.6B.100d.txt", "glove.6B.300d.txt"),
    ),
}


@dataclass(frozen=True)
class Fetched:
    """What is there now, and how far it was checked."""

    name: str
    files: tuple[Path, ...]
    checked: str
    was_there: bool = False


def package_of(name: str) -> Package:
    if name not in PACKAGES:
        raise unknown("the set", name, PACKAGES)
    return PACKAGES[name]


def fetch(
    name: str, to: str | os.PathLike[str] | None = None, url: str | None = None, *, shows_progress: bool = False
) -> Fetched:
    """Download a set and unpack its files, unless they are there.

    An archive that is in the folder already is used if its checksum is right.

    Args:
        name: "femnist", "sent140" or "glove".
        to: the data folder; default UPCYCLED_DATA, else ``data`` in the cache folder.
        url: another address of the same archive.
        shows_progress: whether to print a progress bar to stderr.

    Raises:
        InputError: for an unknown name, or if the extra ``data`` is not installed.
        UpcycledError: if the archive cannot be downloaded, has a wrong checksum, or cannot be written.
    """
    package = package_of(name)
    folder = (Path(to) if to is not None else chosen_folder() or fetched_folder()) / package.folder
    files = tuple(folder / file for file in package.files)
    if all(file.is_file() for file in files):
        return Fetched(name, files, "not checked again", was_there=True)
    needs("a download", "pooch", "tqdm")
    import pooch

    address, known = url or package.url, package.sha256
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(shows_progress, chunk_size=_BLOCK, timeout=TIMEOUT)
    archive = folder / PurePosixPath(package.url).name
    try:
        pooch.retrieve(address, known, archive.name, folder, downloader=downloader)
        unpack(archive, files)
        archive.unlink()
    except (OSError, ValueError) as error:
        raise UpcycledError(
            f"{address} cannot be fetched to {folder} ({reason_of(error)}); expected the published archive and enough "
            "space. Check the network and the disk, or give another address with --url or folder with --to"
        ) from error
    checked = "sha256 is the published one" if known else "no checksum is published; the archive's own sums are right"
    return Fetched(name, files, checked)


def unpack(archive: Path, files: tuple[Path, ...]) -> None:
    """Write the members of a .zip that have the files' names; each file appears whole or not at all.

    Only the last part of a member's name counts, so that none can lead out of the folder.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            members = {PurePosixPath(info.filename).name: info for info in content.infolist() if not info.is_dir()}
            for file in files:
                if file.name not in members:
                    raise zipfile.BadZipFile(f"it has no {file.name}")
                _write(content, members[file.name], file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink(missing_ok=True)
        raise UpcycledError(
            f"{archive} was not whole ({reason_of(error)}) and is removed: run the command again, or give another --url"
        ) from error


def _write(content: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with content.open(member) as source, temporary.open("wb") as target:
            copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class RealSet:
    """A set, the file it would be read from, and what ``upcycled data fetch`` calls it."""

    name: str
    path: Path | None
    fetch: str


def inventory() -> list[RealSet]:
    """Return all real sets; nothing but tables of contents is read."""
    return [
        RealSet("femnist", find(FEMNIST_READY, POOL, *EMNIST), "femnist"),
        RealSet("femnist, 26 letters", find(POOL, *EMNIST), "femnist"),
        RealSet("sent140", find(TOKENS, PARQUET, ORIGINAL), "sent140"),
        *(RealSet(f"word vectors, {size}", _vectors(size), "glove") for size in word_vectors.DIMENSIONS),
    ]


def _vectors(dimension: int) -> Path | None:
    try:
        return word_vectors.find_vectors(dimension)
    except InputError:
        return None

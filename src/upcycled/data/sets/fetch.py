"""Real data from its publishers: download, check, unpack what is needed, keep nothing else.

Addresses and sums are those that torchvision, TensorFlow Datasets and the publishers give. For GloVe none is published,
so its archive is checked by the sums inside it only.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj

from upcycled.core.errors import InputError, UpcycledError, reason_of, unknown
from upcycled.data.paths import chosen_folder, fetched_folder
from upcycled.data.sets.download import Progress, Sums, cannot_keep, download, wrong_sum


@dataclass(frozen=True)
class Package:
    """An archive at its publisher's, and which of its files are kept, in which folder."""

    title: str
    url: str
    sums: Sums
    folder: str
    files: tuple[str, ...]


PACKAGES = {
    "femnist": Package(
        title="EMNIST (NIST), the pool FEMNIST's devices are dealt from",
        url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        sums=Sums(
            size=561_753_746,
            sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            md5="58c8d27c78d21e728a6bc7b3cc06412e",
        ),
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
        sums=Sums(
            size=81_363_704,
            sha256="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
            md5="1647eb110dd2492512e27b9a70d5d1bc",
        ),
        folder="sent140",
        files=("training.1600000.processed.noemoticon.csv",),
    ),
    "glove": Package(
        title="GloVe 6B word vectors (Pennington, Socher, Manning 2014)",
        url="https://nlp.stanford.edu/data/glove.6B.zip",
        sums=Sums(),
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
    name: str, to: str | os.PathLike[str] | None = None, url: str | None = None, progress: Progress = lambda *_: None
) -> Fetched:
    """Bring a set to this machine, unless it is there.

    Args:
        name: "femnist", "sent140" or "glove".
        to: the data folder: UPCYCLED_DATA, else ``data`` in the cache folder, if left out.
        url: another address of the very same archive.
        progress: is told how many bytes have come.

    Raises:
        InputError: for a name or an address that cannot be.
        UpcycledError: in one sentence, when it cannot be had.
    """
    package = package_of(name)
    folder = (Path(to) if to is not None else chosen_folder() or fetched_folder()) / package.folder
    files = tuple(folder / file for file in package.files)
    if all(file.is_file() for file in files):
        return Fetched(name, files, "not checked again", was_there=True)
    archive = folder / PurePosixPath(package.url).name
    if archive.is_file():
        _check_found(archive, package)
    else:
        download(url or package.url, archive, package.sums, progress)
    unpack(archive, files)
    archive.unlink(missing_ok=True)
    best = package.sums.best
    checked = (
        f"{best[0]} is the published one" if best else "no checksum is published; the archive's own sums are right"
    )
    return Fetched(name, files, checked)


def _check_found(archive: Path, package: Package) -> None:
    """Refuse an archive that lay there already and is not the published one; it is the user's, so it stays."""
    try:
        wrong = wrong_sum(archive, package.sums)
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error}), but it must be readable", field=str(archive)
        ) from error
    if wrong is not None:
        raise InputError(f"has {wrong}: remove it to have the published one fetched", field=str(archive))


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
    except OSError as error:
        raise cannot_keep(archive.parent, error) from error


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

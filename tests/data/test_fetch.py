"""Downloads from a server on this machine that does all that servers do wrong."""

from __future__ import annotations

import gc
import hashlib
import io
import sys
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.data.real_files import one_sentence
from tests.wording import has_all
from upcycled.core.errors import InputError, UpcycledError
from upcycled.data.sets import fetch as module
from upcycled.data.sets.fetch import PACKAGES, Package, fetch, unpack

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@dataclass
class Site:
    """What a server sends, how it misbehaves, and how often it was asked."""

    content: bytes = b""
    cut_after: int | None = None
    """Close the connection after so many bytes of the answer."""
    stall_after: int | None = None
    status: int | None = None
    tells_length: bool = True
    asked: list[str] = field(default_factory=list)
    url: str = ""
    done: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            site.asked.append(self.path)
            if site.status is not None:
                self.send_error(site.status)
                return
            self.send_response(200)
            if site.tells_length:
                self.send_header("Content-Length", str(len(site.content)))
            self.send_header("Connection", "close")
            self.end_headers()
            end = min(x for x in (len(site.content), site.cut_after, site.stall_after) if x is not None)
            self.wfile.write(site.content[:end])
            self.wfile.flush()
            if site.stall_after is not None:
                site.done.wait(120)
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/set.zip"
    try:
        yield site
    finally:
        site.done.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """No proxy between the test and this machine."""
    monkeypatch.setenv("no_proxy", "*")
    yield
    gc.collect()  # pooch leaves the sockets of failed downloads to the garbage collector


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def package(monkeypatch):
    """A set of two files in an archive that holds more, served instead of a real one."""
    content = archive(**{"gzip/a.txt": b"A" * 5000, "gzip/b.txt": b"B", "gzip/unwanted": b"C"})
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(
        PACKAGES, "femnist", Package("a set", "https://x.invalid/set.zip", sha256, "own", ("a.txt", "b.txt"))
    )
    return content


def refused(site, folder):
    with pytest.raises(UpcycledError) as error:
        fetch("femnist", folder, site.url)
    assert list(folder.rglob("*.*")) == []
    text = one_sentence(error.value)
    assert text.startswith(f"{site.url} cannot be fetched to {folder / 'own'} (")
    return text


@pytest.mark.parametrize("tells_length", [True, False])
def test_fetch_unpacks_what_is_needed_and_keeps_nothing_else(tmp_path, package, tells_length):
    with serving(Site(content=package, tells_length=tells_length)) as site:
        found = fetch("femnist", tmp_path, site.url)
        again = fetch("femnist", tmp_path, site.url)
        assert len(site.asked) == 1
    assert [path.relative_to(tmp_path).as_posix() for path in found.files] == ["own/a.txt", "own/b.txt"]
    assert found.files[0].read_bytes() == b"A" * 5000
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["a.txt", "b.txt"]
    assert (found.checked, found.was_there) == ("sha256 is the published one", False)
    assert again.was_there


def test_fetch_puts_data_where_it_is_looked_for(tmp_path, package, monkeypatch):
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UPCYCLED_DATA", raising=False)
    with serving(Site(content=package)) as site:
        assert fetch("femnist", url=site.url).files[0] == tmp_path / "cache" / "data" / "own" / "a.txt"
        monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
        assert fetch("femnist", url=site.url).files[0] == tmp_path / "own" / "a.txt"


def test_a_wrong_checksum_is_named_and_leaves_nothing(tmp_path, package):
    with serving(Site(content=package[:-1] + b"?")) as site:
        assert hashlib.sha256(package).hexdigest() in refused(site, tmp_path)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_error_of_the_server_is_named(tmp_path, package, status):
    with serving(Site(status=status)) as site:
        assert f"({status} " in refused(site, tmp_path)


@pytest.mark.parametrize("tells_length", [True, False])
def test_a_cut_download_leaves_nothing(tmp_path, package, tells_length):
    with serving(Site(content=package, cut_after=60, tells_length=tells_length)) as site:
        refused(site, tmp_path)
        site.cut_after = None
        assert not fetch("femnist", tmp_path, site.url).was_there


def test_a_server_that_stalls_is_given_up(tmp_path, package, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    with serving(Site(content=package, stall_after=60)) as site:
        assert "timed out" in refused(site, tmp_path)


def test_without_a_network_the_error_names_the_address(tmp_path, package):
    with serving(Site()) as site:
        pass
    assert has_all(refused(site, tmp_path), "Check", "network")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://x/y", "set.zip"])
def test_only_web_addresses_are_taken(tmp_path, package, url):
    refused(Site(url=url), tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, package):
    (tmp_path / "file").write_text("")
    with serving(Site(content=package)) as site, pytest.raises(UpcycledError, match=r"folder.*--to"):
        fetch("femnist", tmp_path / "file", site.url)


def test_a_download_without_pooch_names_the_extra(tmp_path, package, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"download.*'\.\[data\]'"):
        fetch("femnist", tmp_path)


def test_an_archive_in_the_folder_is_used_if_its_checksum_is_right(tmp_path, package):
    found = tmp_path / "own" / "set.zip"
    found.parent.mkdir()
    with serving(Site(content=package)) as site:
        found.write_bytes(package)
        assert fetch("femnist", tmp_path, site.url).checked == "sha256 is the published one"
        assert site.asked == []
        (tmp_path / "own" / "a.txt").unlink()
        found.write_bytes(archive(**{"a.txt": b"other", "b.txt": b"B"}))
        assert fetch("femnist", tmp_path, site.url).files[0].read_bytes() == b"A" * 5000
        assert len(site.asked) == 1


def test_a_package_without_a_published_sum_says_so(tmp_path):
    names = PACKAGES["glove"].files
    content = archive(**dict.fromkeys(names, b"word 1\n"))
    with serving(Site(content=content)) as site:
        found = fetch("glove", tmp_path, site.url)
    assert found.checked == "no checksum is published; the archive's own sums are right"
    assert [path.name for path in found.files] == list(names)


def test_members_cannot_lead_out_of_the_folder(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.zip").write_bytes(archive(**{"../../a.txt": b"1", "/etc/b.txt": b"2", "../c.txt": b"3"}))
    unpack(folder / "a.zip", (folder / "a.txt", folder / "b.txt"))
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "a.zip", "b.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_archive_that_is_not_whole_is_removed(tmp_path):
    whole = archive(**{"a.txt": bytes(range(256)) * 50})
    place = whole.index(b"a.txt") + 40
    for content, words in (
        (b"<html>", "not a zip"),
        (whole[: len(whole) // 2], "not a zip"),
        (whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :], ""),
        (archive(**{"other.txt": b"1"}), "it has no a.txt"),
    ):
        (tmp_path / "a.zip").write_bytes(content)
        with pytest.raises(UpcycledError) as error:
            unpack(tmp_path / "a.zip", (tmp_path / "a.txt",))
        assert "was not whole" in one_sentence(error.value)
        assert words in str(error.value)
        assert list(tmp_path.iterdir()) == []


def test_a_set_nobody_knows_is_named():
    with pytest.raises(InputError, match=r"'femist'.*did you mean 'femnist'\?"):
        fetch("femist")

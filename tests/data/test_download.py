"""Downloads from a server on this machine that does all that servers do wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.data.real_files import one_sentence
from upcycled.core.errors import InputError, UpcycledError
from upcycled.data.sets import download as module
from upcycled.data.sets.download import Sums, download
from upcycled.data.sets.fetch import PACKAGES, Package, fetch, unpack

CONTENT = bytes(range(256)) * 4000
SUMS = Sums(len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest())
NOTHING = Sums()


@dataclass
class Site:
    """What a server sends, how it misbehaves, and what it was asked."""

    content: bytes = CONTENT
    takes_ranges: bool = True
    cut_after: int | None = None
    """Close the connection after so many bytes of the answer."""
    stall_after: int | None = None
    status: int | None = None
    tells_length: bool = True
    wrong_range: str | None = None
    asked: list[str | None] = field(default_factory=list)
    url: str = ""
    done: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range")
            site.asked.append(wanted)
            if site.status is not None:
                self.send_error(site.status)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.takes_ranges else 0
            total = len(site.content)
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = site.content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", site.wrong_range or f"bytes {start}-{total - 1}/{total}")
            if site.tells_length:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            end = min(x for x in (len(body), site.cut_after, site.stall_after) if x is not None)
            self.wfile.write(body[:end])
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


def bring(site, target, sums=SUMS, timeout=60.0):
    seen = []
    download(site.url, target, sums, lambda done, total: seen.append((done, total)), timeout)
    return seen


def refused(site, target, sums=SUMS, timeout=60.0):
    with pytest.raises(UpcycledError) as error:
        bring(site, target, sums, timeout)
    assert not target.exists()
    return one_sentence(error.value)


def part_of(target):
    return target.with_name(f"{target.name}.part")


@pytest.mark.parametrize("sums", [SUMS, NOTHING, Sums(md5=SUMS.md5)])
@pytest.mark.parametrize("tells_length", [True, False])
def test_a_file_comes_whole(tmp_path, sums, tells_length):
    target = tmp_path / "new" / "set.zip"
    with serving(Site(tells_length=tells_length)) as site:
        seen = bring(site, target, sums)
    assert target.read_bytes() == CONTENT
    assert seen[-1][0] == len(CONTENT)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[0][1] == (len(CONTENT) if tells_length or sums.size else None)
    assert [path.name for path in target.parent.iterdir()] == ["set.zip"]


def test_a_cut_download_is_kept_and_goes_on(tmp_path):
    target = tmp_path / "set.zip"
    with serving(Site(cut_after=300_000)) as site:
        text = refused(site, target)
        assert text == f"{site.url} stopped after 300,000 of 1,024,000 bytes: run the command again to go on from there"
        assert part_of(target).read_bytes() == CONTENT[:300_000]
        site.cut_after = None
        bring(site, target)
        assert site.asked == [None, "bytes=300000-"]
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()


def test_a_server_that_ignores_ranges_sends_everything_and_that_is_kept(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(b"something else")
    with serving(Site(takes_ranges=False)) as site:
        bring(site, target)
        assert site.asked == ["bytes=14-"]
    assert target.read_bytes() == CONTENT


def test_a_file_that_had_come_whole_is_checked_and_not_asked_for_again(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(CONTENT)
    with serving(Site()) as site:
        bring(site, target)
        assert site.asked == []
    assert target.read_bytes() == CONTENT


def test_nothing_beyond_what_is_there_is_the_end_where_no_size_is_published(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(CONTENT)
    with serving(Site()) as site:
        bring(site, target, NOTHING)
        assert site.asked == ["bytes=1024000-"]
    assert target.read_bytes() == CONTENT


def test_more_than_the_file_has_is_begun_anew(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(CONTENT + b"more")
    with serving(Site()) as site:
        bring(site, target)
        assert site.asked == ["bytes=1024004-", None]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(("sums", "name"), [(SUMS, "sha256"), (Sums(md5=SUMS.md5), "md5")])
def test_a_wrong_sum_is_named_and_the_file_removed(tmp_path, sums, name):
    target = tmp_path / "set.zip"
    wrong = CONTENT[:1000] + b"?" + CONTENT[1001:]
    with serving(Site(content=wrong)) as site:
        text = refused(site, target, sums)
    assert f"gave a file with the {name} {hashlib.new(name, wrong).hexdigest()}" in text
    assert f"but the published one is {hashlib.new(name, CONTENT).hexdigest()}: it was removed" in text
    assert list(tmp_path.iterdir()) == []


def test_going_on_with_wrong_bytes_is_found_by_the_sum(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(b"x" * 1000)
    with serving(Site()) as site:
        assert "it was removed" in refused(site, target)
        assert not part_of(target).exists()
        bring(site, target)
    assert target.read_bytes() == CONTENT


def test_another_size_than_published_is_refused_before_anything_is_lost(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(CONTENT[:500])
    with serving(Site(content=b"<html>moved</html>", takes_ranges=False)) as site:
        text = refused(site, target)
    assert "has 18 bytes, but the published file has 1,024,000" in text
    assert part_of(target).read_bytes() == CONTENT[:500]


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_an_error_of_the_server_is_one_sentence(tmp_path, status):
    with serving(Site(status=status)) as site:
        text = refused(site, tmp_path / "new" / "set.zip")
    assert text.startswith(f"{site.url} answers {status} (")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_stalls_is_given_up(tmp_path):
    target = tmp_path / "set.zip"
    with serving(Site(stall_after=100_000)) as site:
        # Long enough for a busy machine to send the first bytes: before those it would be another sentence.
        text = refused(site, target, timeout=3.0)
    assert "(nothing for 3 seconds): run the command again to go on" in text
    assert CONTENT.startswith(part_of(target).read_bytes())


def test_nobody_there_is_one_sentence_and_leaves_nothing(tmp_path):
    with serving(Site()) as site:
        pass
    text = refused(site, tmp_path / "new" / "set.zip")
    assert text.startswith(f"{site.url} cannot be reached (")
    assert "check the network, or give another address with --url" in text
    assert list(tmp_path.iterdir()) == []


def test_another_part_than_asked_for_is_refused(tmp_path):
    target = tmp_path / "set.zip"
    part_of(target).write_bytes(CONTENT[:1000])
    for said in ("bytes 500-1023999/1024000", "lines 3-4"):
        with serving(Site(wrong_range=said)) as site:
            assert "sends another part of the file than was asked for" in refused(site, target)
    assert part_of(target).read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://x/y", "set.zip", ""])
def test_only_web_addresses_are_taken(tmp_path, url):
    with pytest.raises(InputError, match="but it must begin with http:// or https://"):
        download(url, tmp_path / "a", SUMS, lambda *_: None)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with serving(Site()) as site:
        text = refused(site, tmp_path / "file" / "set.zip")
    assert "set.zip cannot be written (" in text
    assert "--to DIR" in text


def test_a_full_disk_is_one_sentence_and_what_came_is_kept(tmp_path, monkeypatch):
    target = tmp_path / "set.zip"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with serving(Site()) as site:
        text = refused(site, target)
    assert text == f"{target} cannot be written (No space left on device): free some space and run the command again"
    assert part_of(target).read_bytes() == CONTENT


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
    sums = Sums(len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(
        PACKAGES, "femnist", Package("a set", "https://x.invalid/set.zip", sums, "own", ("a.txt", "b.txt"))
    )
    return content


def test_fetch_unpacks_what_is_needed_and_keeps_nothing_else(tmp_path, package):
    with serving(Site(content=package)) as site:
        found = fetch("femnist", tmp_path, site.url)
        again = fetch("femnist", tmp_path, site.url)
        assert site.asked == [None]
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


def test_fetch_goes_on_after_a_cut_and_after_an_unfinished_unpacking(tmp_path, package):
    with serving(Site(content=package, cut_after=60)) as site:
        with pytest.raises(UpcycledError, match="stopped after 60 of"):
            fetch("femnist", tmp_path, site.url)
        site.cut_after = None
        fetch("femnist", tmp_path, site.url)
        assert site.asked == [None, "bytes=60-"]
        (tmp_path / "own" / "b.txt").unlink()
        (tmp_path / "own" / "set.zip").write_bytes(package)
        assert not fetch("femnist", tmp_path, site.url).was_there
        assert len(site.asked) == 2


def test_a_package_without_a_published_sum_says_so(tmp_path, monkeypatch):
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
    with pytest.raises(InputError, match=r"^the set is 'femist', but it must be known; did you mean 'femnist'\?"):
        fetch("femist")


def test_an_archive_found_in_the_folder_is_checked_and_a_wrong_one_refused_but_left(tmp_path, package):
    found = tmp_path / "own" / "set.zip"
    found.parent.mkdir()
    other = archive(**{"a.txt": b"other", "b.txt": b"B"})
    found.write_bytes(other)
    with serving(Site(content=package)) as site:
        with pytest.raises(InputError) as error:
            fetch("femnist", tmp_path, site.url)
        assert site.asked == []
        assert one_sentence(error.value) == (
            f"{found} has the sha256 {hashlib.sha256(other).hexdigest()}, but the published one is "
            f"{hashlib.sha256(package).hexdigest()}: remove it to have the published one fetched"
        )
        assert [path.name for path in found.parent.iterdir()] == ["set.zip"]
        assert found.read_bytes() == other
        found.write_bytes(package)
        assert fetch("femnist", tmp_path, site.url).checked == "sha256 is the published one"
        assert site.asked == []

"""Where caches and data go, on every platform."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from upcycled._utils.files import cache_folder
from upcycled.core.errors import InputError
from upcycled.data.sets.paths import chosen_folder, fetched_folder, find, folders


@pytest.fixture
def home(monkeypatch, tmp_path):
    for name in ("UPCYCLED_CACHE", "UPCYCLED_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="where caches go differs from platform to platform")
def test_the_cache_folder_is_the_platforms_usual_one(home, monkeypatch):
    assert cache_folder() == home / ".cache" / "upcycled"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_folder() == home / "xdg" / "upcycled"


def test_a_named_cache_folder_goes_before_the_platforms(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    monkeypatch.setenv("UPCYCLED_CACHE", str(home / "own"))
    assert cache_folder() == home / "own"


@pytest.mark.parametrize(
    ("module", "kind", "parts"),
    [
        ("unix", "Unix", (".cache", "upcycled")),
        ("macos", "MacOS", ("Library", "Caches", "upcycled")),
    ],
)
def test_the_documentation_names_the_folders_of_other_platforms(home, module, kind, parts):
    rule = getattr(importlib.import_module(f"platformdirs.{module}"), kind)
    folder = rule("upcycled", appauthor=False, opinion=False).user_cache_path
    assert folder == home.joinpath(*parts)
    assert "~/" + "/".join(parts) in (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_a_user_without_a_home_is_told_to_name_a_folder(home, monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
    assert folders() == []
    with pytest.raises(InputError, match=r"there.*home.*data.*UPCYCLED_DATA"):
        fetched_folder()


def test_data_is_looked_for_in_the_named_folder_then_in_the_cache(home, monkeypatch):
    named, cached = home / "named", fetched_folder()
    for folder in (named, cached / "inner"):
        folder.mkdir(parents=True)
    assert find("a.npz") is None
    (cached / "inner" / "a.npz").write_text("")
    assert find("a.npz") == cached / "inner" / "a.npz"
    (cached / "b.npz").write_text("")
    assert find("a.npz", "b.npz") == cached / "inner" / "a.npz"
    monkeypatch.setenv("UPCYCLED_DATA", str(named))
    (named / "b.npz").write_text("")
    # All folders are searched for the first name before any is for the second.
    assert find("a.npz", "b.npz") == cached / "inner" / "a.npz"
    assert find("b.npz") == named / "b.npz"
    os.mkdir(named / "a.npz")
    assert find("a.npz") == cached / "inner" / "a.npz"


def test_a_named_folder_that_is_none_is_refused(home, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(home / "no"))
    with pytest.raises(InputError, match=r"^UPCYCLED_DATA.*'.*no'"):
        chosen_folder()

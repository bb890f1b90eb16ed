"""The documentation as a site: it builds with strict links, and asks nothing of any network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import upcycled as up
from upcycled.config.registry import TABLES
from upcycled.training.spec import OPTIONS
from website.reference import below_fields, commands_page, keys_page, markdown, module_page, signature

ROOT = Path(__file__).parents[1]


def test_a_docstring_becomes_lists_and_code():
    doc = "Halve <b, x> by ``x_i``.\n\nArgs:\n    x: what to halve,\n        a number.\n    **more: a_b.\n\n"
    doc += ">>> 4 / 2\n2.0"
    assert markdown(doc) == (
        "Halve \\<b, x> by ``x_i``.\n\n**Args**\n\n- `x`: what to halve, a number.\n- `**more`: a\\_b.\n\n"
        "```pycon\n>>> 4 / 2\n2.0\n```"
    )


def test_a_page_has_every_name_of_its_module_with_its_signature():
    page = module_page("up.privacy", up.privacy)
    for name in up.privacy.__all__:
        if name != "audit":  # a module has a page of its own
            assert f"## {name} {{ #up.privacy.{name} }}" in page
    assert "'" not in signature("up.train_many", up.train_many)
    assert below_fields(up.Record)


def test_the_page_of_commands_has_every_command():
    page = commands_page()
    assert "### upcycled privacy account" in page.replace("####", "###")
    assert "## upcycled demo" in page


def test_the_page_of_keys_has_every_option_of_a_run():
    page = keys_page()
    for option in OPTIONS.values():
        if option.path not in (("seed",), ("model",)) and not option.is_table:
            assert f"| `{option.key}` | " in page
    assert "| `iterations` | `100` | an integer >= 1 and < 2^31 |" in page
    assert "| `progress` | `true` | true or false |" in page
    assert all(f"## `[{key}]`" in page for key in TABLES)


@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_nothing_of_any_network(tmp_path):
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]* src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]* href="([^"]+)"', text)
        assert [one for one in loaded if re.match(r"(https?:)?//", one)] == [], page.name

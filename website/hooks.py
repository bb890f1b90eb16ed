"""What mkdocs calls: pages that are made from the sources, and links that leave the documentation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the reference, and pages of the repository that belong to the site."""
    from mkdocs.structure.files import File

    from website.reference import pages

    os.environ["COLUMNS"] = "100"  # the width of help texts, whatever terminal builds the site
    made = {f"reference/{path}": text for path, text in pages().items()}
    made |= {path: (ROOT / source).read_text(encoding="utf-8") for path, source in COPIED.items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give every link its place on the site; one to a file of the repository alone becomes its path."""
    uri = page.file.src_uri
    home = ROOT if uri in COPIED else (ROOT / "docs" / uri).parent
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda found: _link(found, uri, home), markdown)


def _link(found: re.Match[str], uri: str, home: Path) -> str:
    mark, words, target = found.groups()
    path, hash_mark, place = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return found[0]
    aimed = Path(os.path.normpath(home / path))
    copied = {ROOT / source: path for path, source in COPIED.items()}
    if aimed in copied:
        inside = copied[aimed]
    elif aimed.is_relative_to(ROOT / "docs"):
        inside = aimed.relative_to(ROOT / "docs").as_posix()
    else:
        return f"{words} (`{aimed.relative_to(ROOT).as_posix()}` in the repository)"
    relative = os.path.relpath(inside, os.path.dirname(uri) or ".")
    return f"{mark}[{words}]({relative}{hash_mark}{place})"


def on_post_page(output: str, **_: Any) -> str:
    """Put the worker's script into the page, where the theme would ask another host for one."""
    script = (ROOT / "website" / "worker.js").read_text(encoding="utf-8")
    asked = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
    return output.replace(asked, f"<script>{script}</script>")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for pages that come from the theme alone, such as 404.html."""
    return on_post_page(output_content)

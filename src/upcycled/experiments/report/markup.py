"""HTML that cannot be broken by what it shows: text is escaped on its way in, and the type checker sees to it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NewType

Html = NewType("Html", str)
"""Markup, as against text."""

EMPTY = Html("")
_VOID = {"input": ">", "meta": ">", "line": "/>", "circle": "/>", "path": "/>", "rect": "/>"}
"""Elements without content, and how HTML wants them closed: those of pictures need the slash."""


def text(words: object) -> Html:
    """Escape a text.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return Html(html.escape(str(words)))


def tag(name: str, /, *children: Html, **attributes: object) -> Html:
    """Return an element; ``class_`` is class, other underscores are dashes, False and None leave an attribute out.

    >>> tag("a", text("x < y"), href="#top", class_="big", hidden=None)
    '<a href="#top" class="big">x &lt; y</a>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            own = key.rstrip("_").replace("_", "-")
            words.append(own if value is True else f'{own}="{html.escape(str(value))}"')
    end = _VOID.get(name, f">{''.join(children)}</{name}>")
    return Html(f"<{' '.join(words)}{end}")


def join(parts: Iterable[Html]) -> Html:
    """Return markup one after the other."""
    return Html("".join(parts))


def table(head: Sequence[Html], rows: Iterable[Sequence[Html]], caption: str, class_: str | None = None) -> Html:
    """Return a table in a box of its own that scrolls; ``head`` and the rows' cells are whole th and td elements."""
    body = join(tag("tr", *row) for row in rows)
    whole = tag("table", tag("thead", tag("tr", *head)), tag("tbody", body), class_=class_)
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def pairs(items: Iterable[tuple[str, Html]]) -> Html:
    """Return names and values as a list."""
    return tag("dl", *(join((tag("dt", text(name)), tag("dd", value))) for name, value in items), class_="pairs")


def embedded(document: Mapping[str, Any]) -> Html:
    r"""Return data for the page's script; no text in it can end the element or begin a comment.

    >>> embedded({"a": "</script><!--", "b": float("nan")})
    '{"a":"\\u003c/script\\u003e\\u003c!--","b":null}'
    """
    words = json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))
    return Html(words.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _finite(value: Any) -> Any:
    """Round to what a picture shows, and write null for what is not a number."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.5g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def fingerprint(content: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style.

    >>> fingerprint("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

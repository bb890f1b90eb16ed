"""Flower's server with a door: what steers a federation is answered only to whoever has its key.

Flower serves sites, runs and the registration of nodes at one port, and asks nobody who they are for the latter two.
Run as ``python -m upcycled.federation.superlink KEYFILE <flags of flower-superlink>``, requests to anything but
the sites'
interface must show the key of the federation's folder. A site's own requests are signed with its registered key, which
Flower checks itself.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from upcycled.federation.transport import KEY_HEADER, run_superlink

OPEN = ("/v1/fleet/", "/v1/runtime/")
"""Sites sign their requests; a run's seat has a token, which is given only for a proof of the key."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Door:
    """An ASGI layer around Flower's server."""

    def __init__(self, app: Any, key: str) -> None:
        """Take what is within, and the key that opens the door."""
        self._app, self._key = app, key

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OPEN) and not self._is_shown(scope):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the federation's key is missing"})
            return
        await self._app(scope, receive, send)

    def _is_shown(self, scope: MutableMapping[str, Any]) -> bool:
        shown = [value for name, value in scope["headers"] if name == KEY_HEADER.encode()]
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._key.encode())


def main(words: list[str]) -> None:
    """Run Flower's server behind the door."""
    run_superlink(words[1:], Door, key=Path(words[0]).read_bytes().hex())


if __name__ == "__main__":
    main(sys.argv[1:])

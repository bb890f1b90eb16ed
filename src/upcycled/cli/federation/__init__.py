"""``upcycled federation`` and its commands."""

from upcycled.cli.federation.federation_command import add_parser

__all__ = ["add_parser"]

"""``upcycled data`` and its commands."""

from upcycled.cli.data.data_command import add_parser

__all__ = ["add_parser"]

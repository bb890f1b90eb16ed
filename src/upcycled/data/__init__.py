"""Federated data: the container, your own files, the paper's synthetic sets, and ways to deal out pooled samples."""

from upcycled.data import partition
from upcycled.data.description import Description
from upcycled.data.federated import FederatedData
from upcycled.data.loading import load
from upcycled.data.readers.mapped import load_mapped
from upcycled.data.readers.npz import save
from upcycled.data.schema.schema import Schema
from upcycled.data.sets.femnist import femnist
from upcycled.data.sets.sent140 import sent140
from upcycled.data.sets.synthetic import synthetic

__all__ = [
    "Description",
    "FederatedData",
    "Schema",
    "femnist",
    "load",
    "load_mapped",
    "partition",
    "save",
    "sent140",
    "synthetic",
]

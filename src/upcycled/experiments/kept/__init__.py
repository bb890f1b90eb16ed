"""Runs from Python that are kept as a command keeps them."""

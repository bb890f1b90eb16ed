"""Advice on a private file from public facts alone: sizes, shapes, schedule; the data are never opened."""

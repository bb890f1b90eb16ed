"""Experiments from files: config, runs over seeds, results on disk, plots, the demonstration."""

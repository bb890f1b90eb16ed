"""The experiment file: TOML in, a checked :class:`~upcycled.training.spec.RunSpec` out."""

"""The experiment file: TOML in, a checked :class:`~upcycled.runtime.spec.RunSpec` out."""

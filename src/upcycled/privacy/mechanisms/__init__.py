"""What may leave a client: one file a mechanism; the docstring states the guarantee and what it needs."""

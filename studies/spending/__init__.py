"""The same proven epsilon, spent on noise inside the local objective or on its solution."""

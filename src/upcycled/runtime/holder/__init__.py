"""What a run owes to the holder of its data."""

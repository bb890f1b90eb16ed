"""A run on the disk: what is in a checkpoint, whose it is, when it is written, how a run goes on from it."""

"""Fuzzing: whatever a file holds, its reader answers with a value or with one sentence; see ``__main__``."""

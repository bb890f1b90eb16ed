"""A data holder's side: its file, its answers, its process."""

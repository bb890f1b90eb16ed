"""Parts of a plan: what is refused, what protects a run, and what code of anybody's is held to."""

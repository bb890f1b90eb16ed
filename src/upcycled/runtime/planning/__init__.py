"""Parts of making a plan: what is refused, and what protects a run."""

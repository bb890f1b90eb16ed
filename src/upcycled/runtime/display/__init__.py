"""Live progress on standard error."""

"""File formats that data come in."""

"""Probes of an audit: each looks at one thing that a claim rests on, in what the real loop does."""

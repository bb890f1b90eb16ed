"""The contracts everything else stands on: vectors, streams, algorithms, strategies, releases, engines."""

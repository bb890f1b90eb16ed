"""Exact integer noise from a stream of random words: the discrete Gaussian and the discrete Laplace distribution."""

"""Does reuse pay? Weights that know the noise and a step that trusts signal, at equal proven epsilon."""

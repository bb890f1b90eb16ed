"""Coefficients that need no tuning: the rules against vanilla, a grid-searched constant and a tuned server step."""

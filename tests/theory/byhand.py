"""Formulas of the analysis, written out once more."""

from __future__ import annotations

import math


def added(about, g, d, r):
    """What a residual r adds, written out: u = (B g + L d + r)/rho takes the place of (B g + L d)/rho."""
    L, B, mu, rho, K = about.smoothness, about.dissimilarity, about.mu, about.strong_convexity, about.cohort
    u0, u = (B * g + L * d) / rho, (B * g + L * d + r) / rho
    found = L / mu * g * (u - u0) + g * r / mu + L / 2 * ((u + d) ** 2 - (u0 + d) ** 2)
    if K is None:
        return found
    if about.form == "sharp":
        return found + L / (2 * K) * (u**2 - u0**2)
    root = math.sqrt(2 / K)
    return found + root * (g * (u - u0) + 2 * L * (u * (u + d) - u0 * (u0 + d))) + 2 * L / K * (u**2 - u0**2)

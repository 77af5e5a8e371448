"""Ratios of powers in decibels."""

from math import inf, log10


def decibels(ratio: float) -> float:
    """Return ``10 log10(ratio)`` for a ratio of powers; -inf for 0."""
    return 10 * log10(ratio) if ratio > 0 else -inf


def sqnr_db(signal: float, noise: float) -> float:
    """Return the signal to noise ratio of two powers: inf without noise, -inf with noise and no signal."""
    return decibels(signal / noise) if noise > 0 else inf

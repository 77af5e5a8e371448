"""Measures candidates against the float model: answers, cost, layers, what really runs."""

"""Quantize a graph: plan, solve, emit, and the rewrites before."""

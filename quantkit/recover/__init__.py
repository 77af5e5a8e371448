"""Products of a graph as matrices, and what must be observed of them."""

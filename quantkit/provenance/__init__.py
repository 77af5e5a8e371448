"""Where a model comes from, written into it."""

"""Models with fewer weights."""

"""The lines of the product, each read from top to bottom."""

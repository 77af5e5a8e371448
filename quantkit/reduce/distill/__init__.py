"""Train a small model to reproduce the outputs of a large one. Every module here imports torch: import them inside functions."""

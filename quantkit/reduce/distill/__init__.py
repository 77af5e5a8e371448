"""Training of a small model on what a large one outputs. All but this file and `numbers` imports torch: import them inside functions."""

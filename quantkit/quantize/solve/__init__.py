"""Integers of weights and corrected biases for a plan: numpy and scipy only."""

"""Quantization arithmetic: arrays in, arrays out, no knowledge of models.

May import numpy and scipy only.
"""

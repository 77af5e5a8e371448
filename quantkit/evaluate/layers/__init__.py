"""Which layers of a quantized model lose most, from the two files alone.

`correspondence` matches tensors, `regions` cuts the candidate into layers at them, `measure` runs each layer alone and in the whole.
"""

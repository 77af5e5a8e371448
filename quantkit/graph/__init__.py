"""Files and graphs on onnx and onnx-ir: load, normalize, opset, save.

Stages above it read graphs through onnx-ir; only this package reads and writes files.
"""

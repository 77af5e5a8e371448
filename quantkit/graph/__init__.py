"""The one package that speaks onnx and onnx-ir: load, save, opset, traversal.

Nothing outside it (and the emitters) touches an ONNX object.
"""

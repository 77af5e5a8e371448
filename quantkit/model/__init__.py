"""ONNX models as files and graphs, facts of operators, and where a model comes from."""

"""onnxruntime.quantization.execution_providers: configurations for single execution providers."""

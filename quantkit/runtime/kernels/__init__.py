"""What onnxruntime really computes in integers, read from the graph that it optimized, and why not all of it."""

from quantkit.runtime.kernels.truth import Fusion, fusion_of, runtime_of

__all__ = ["Fusion", "fusion_of", "runtime_of"]

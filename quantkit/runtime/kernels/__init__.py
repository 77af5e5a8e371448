"""What onnxruntime really computes in integers or in 16 bits, read from the graph that it optimized, and why not all of it."""

from quantkit.runtime.check_result import rounding_noted
from quantkit.runtime.kernels.truth import Fusion, HalfKernels, fusion_of, half_kernels, runtime_of

__all__ = ["Fusion", "HalfKernels", "fusion_of", "half_kernels", "rounding_noted", "runtime_of"]

"""What onnxruntime really computes in integers or in 16 bits, read from the graph that it optimized, and why not all of it."""

from quantkit.runtime.kernels.block_rounding import rounding_noted
from quantkit.runtime.kernels.half import HalfKernels, half_kernels
from quantkit.runtime.kernels.truth import Fusion, fusion_of, runtime_of

__all__ = ["Fusion", "HalfKernels", "fusion_of", "half_kernels", "rounding_noted", "runtime_of"]

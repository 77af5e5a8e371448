"""Scales, zero points and biases that keep a product in float though all around it is quantized."""

import numpy as np
import onnx_ir as ir

from quantkit.ops import fact_of
from quantkit.runtime.kernels.reason import STATIC, Reason
from quantkit.runtime.kernels.site import Operand, Site, int_attribute

__all__ = ["axis_fault", "bias_fault", "gemm_fault"]

_BIAS_FIX = f"quantize the bias to int32 with the scale x_scale * w_scale and zero point 0, as {STATIC} does"
_RELATIVE, _ABSOLUTE = 1e-2, 1e-6  # how far onnxruntime lets the scale of a bias be off


def bias_fault(site: Site) -> Reason | None:
    """Kernels add the bias to their sums: it must be int32 in their scale."""
    bias = site.operand(2)
    if bias is None or site.node.op_type == "MatMul":
        return None
    if bias.dtype is None:
        what = "float" if bias.is_constant else "computed at run time"
        return Reason(f"the bias is {what}", _BIAS_FIX)
    if bias.dtype is not ir.DataType.INT32:
        return Reason(f"the bias is {bias.dtype.name.lower()}, not int32", _BIAS_FIX)
    zero = bias.parameter(2)
    if zero is not None and zero.numpy().any():
        return Reason("the bias has a zero point that is not 0", _BIAS_FIX)
    if site.node.op_type == "Conv" and not _fits(site, bias):
        return Reason("the scale of the bias is not x_scale * w_scale", _BIAS_FIX)
    return None


def _fits(site: Site, bias: Operand) -> bool:
    """Whether the scale of the bias is that of the sums, or cannot be looked at."""
    operands = site.operand(0), site.operand(1), bias
    tensors = [None if o is None else o.parameter(1) for o in operands]
    x, w, b = (None if t is None else t.numpy() for t in tensors)
    if x is None or w is None or b is None or x.size != 1:
        return True
    return bool(np.allclose(b, x * w, rtol=_RELATIVE, atol=_ABSOLUTE))


def gemm_fault(site: Site) -> Reason | None:
    """QGemm has no place for some of what Gemm and DequantizeLinear can say."""
    if site.node.op_type != "Gemm":
        return None
    missing = [o for o in site.operands[:2] if o is None or o.parameter(2) is None]
    if missing:
        return Reason(
            "QGemm needs explicit zero points, and a DequantizeLinear before it has none",
            f"write the zero point even where it is 0, as {STATIC} does",
        )
    factors = [site.node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if site.operand(2) is not None and factors != [1.0, 1.0]:
        return Reason(
            "Gemm with alpha or beta other than 1 and a bias has no kernel",
            "multiply alpha into the weight and beta into the bias, then quantize",
        )
    return None


def axis_fault(site: Site) -> Reason | None:
    """Scales by channel must be by output channel."""
    weight = site.operand(1)
    scale = None if weight is None else weight.parameter(1)
    if weight is None or weight.dequantizer is None or scale is None or scale.size == 1:
        return None
    fix = f"quantize the weight by output channel, or with one scale: {STATIC} does"
    if len(scale.shape) > 1 or int_attribute(weight.dequantizer, "block_size", 0):
        return Reason("the weight has scales by block", fix)
    rank = len(weight.value.shape) if weight.value.shape is not None else None
    fact = fact_of(site.node.domain, site.node.op_type)
    wanted = -1 if fact is None else fact.channel_axis
    wanted = 0 if int_attribute(site.node, "transB", 0) else wanted
    axis = int_attribute(weight.dequantizer, "axis", 1)
    same = axis == wanted if rank is None else axis % rank == wanted % rank
    return None if same else Reason("the weight has scales along an axis that is summed over", fix)

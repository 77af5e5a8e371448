"""Facts about operators, each stated once, for every output format."""

from quantkit.ops.facts import (
    FACTS,
    MICROSOFT,
    QUANTIZED_OPS,
    Kernel,
    OpFact,
    channel_axis,
    fact_of,
)

__all__ = ["FACTS", "MICROSOFT", "QUANTIZED_OPS", "Kernel", "OpFact", "channel_axis", "fact_of"]

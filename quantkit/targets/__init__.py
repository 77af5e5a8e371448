"""What CPUs and execution providers run in integers, as data, and what this machine is.

Knows neither onnx nor onnxruntime. May import errors, numerics and spec.
"""

from quantkit.targets.machine import Machine, cores, integer_time, this_machine
from quantkit.targets.model import Target, check_target
from quantkit.targets.registry import (
    DEFAULT,
    GROUP,
    STEPPED_ON_ARM,
    TARGETS,
    names,
    registered,
    target,
)

__all__ = [
    "DEFAULT",
    "GROUP",
    "STEPPED_ON_ARM",
    "TARGETS",
    "Machine",
    "Target",
    "check_target",
    "cores",
    "integer_time",
    "names",
    "registered",
    "target",
    "this_machine",
]

"""Files and graphs on onnx and onnx-ir: load, normalize, opset, save.

Stages above it read graphs through onnx-ir; only this package reads and writes files.
"""

import logging

# What onnx-ir complains of is either handled here or said in one line; who wants its log sets up logging.
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())

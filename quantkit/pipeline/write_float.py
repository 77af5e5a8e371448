"""Write a float model as it is, with the checks of a quantized one."""

import time
from pathlib import Path

import onnx

from quantkit.model.graph.save import copy_of, staged
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.checks import read_model
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan
from quantkit.runtime.check_result import run_float


def write_float(
    source: str | Path | onnx.ModelProto,
    output: str | Path,
    why: str,
    *,
    external_data: bool = False,
) -> QuantizeResult:
    """Write a model as it is, for callers who want a file also where there is nothing to quantize.

    Args:
        source: A path or a model.
        output: Where to write.
        why: What is said about it, as a warning.
        external_data: Write weights to a ``.data`` file beside the model.
    """
    started, output = time.perf_counter(), Path(output)
    loaded = read_model(source, output)
    with loaded.watched(), staged(output) as stage:
        reference = run_float(loaded)
        nbytes = stage.write(copy_of(loaded.model), external=external_data)
        checked = compare_apart(stage.model_path, reference, nbytes=nbytes)
        loaded.require_unchanged()
        external = stage.commit() is not None
    return QuantizeResult(
        plan=Plan(nodes=(), weights=(), min_opset=0),
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(why,),
        seconds=time.perf_counter() - started,
    )

"""One piece of work in a process of its own: ``worker.py '{"do": "quantize", ...}'``.

Started by measure.alone. The last line of the output is a report in JSON. Jobs:

* ``import``: import ``tool``'s quantize_dynamic and do nothing, for the memory that this takes;
* ``quantize``: call ``tool``'s quantize_dynamic on ``source`` with ``options``, write ``target``;
* ``run``: load ``source`` in onnxruntime, run it on random input, save the output in ``target``.

This file imports nothing heavy itself, so that each job pays for what it uses only.
"""

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def peak_bytes() -> int:
    """Return this process's peak resident memory.

    ``ru_maxrss`` survives exec: it would report the peak of the process that started this one,
    if that was larger. Linux's VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def quantkit_call(job: dict[str, Any]) -> Callable[[], Any]:
    """Return quantkit's call, imports done."""
    import quantkit
    from quantkit import quantize_dynamic

    options = dict(job.get("options", {}))
    weight_type = getattr(quantkit, options.pop("weight_type", "QUInt8"))
    return lambda: quantize_dynamic(job["source"], job["target"], weight_type, **options)


def onnxruntime_call(job: dict[str, Any]) -> Callable[[], Any]:
    """Return onnxruntime's call, imports done."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = dict(job.get("options", {}))
    weight_type = getattr(QuantType, options.pop("weight_type", "QUInt8"))
    return lambda: quantize_dynamic(
        job["source"], job["target"], weight_type=weight_type, **options
    )


_CALLS = {"quantkit": quantkit_call, "onnxruntime": onnxruntime_call}


def quantize(job: dict[str, Any]) -> dict[str, Any]:
    """Quantize; report the seconds of the call alone, also those of all cores (less noisy)."""
    call = _CALLS[job["tool"]](job)
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    report: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "notes": list(getattr(result, "warnings", ())),
    }
    if hasattr(result, "plan"):
        report["modes"] = dict(Counter(node.mode.value for node in result.plan.nodes))
    return report


def load_only(job: dict[str, Any]) -> dict[str, Any]:
    """Import the tool and do nothing."""
    _CALLS[job["tool"]](job)
    return {}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Load a model with one float input, run one row of noise, save the output."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    start = time.perf_counter()
    model = ort.InferenceSession(job["source"], options, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter()
    signature = model.get_inputs()[0]
    noise = np.random.default_rng(1).standard_normal((1, signature.shape[1]), np.float32)
    output = model.run(None, {signature.name: noise})[0]
    np.save(job["target"], output)
    return {
        "load_seconds": loaded - start,
        "run_seconds": time.perf_counter() - loaded,
        "finite": bool(np.isfinite(output).all()),
        "spread": float(output.std()),
    }


_JOBS = {"import": load_only, "quantize": quantize, "run": run}


def answer(jobs: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Do the job that the command line names and print the report."""
    job = json.loads(sys.argv[1])
    try:
        report = jobs[job["do"]](job)
    except Exception as e:  # noqa: BLE001 - a peer may fail in any way; that is a result
        report = {"error": f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"}
    report["peak_bytes"] = peak_bytes()
    print(f"\n{json.dumps(report)}")


if __name__ == "__main__":
    answer(_JOBS)

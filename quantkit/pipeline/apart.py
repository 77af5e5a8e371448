"""Load a file that was written for the first time in a child process: if onnxruntime crashes, it takes the child along and not the caller."""

import signal
import time
from pathlib import Path

import onnx

from quantkit.calibration.forks import Crew, WorkerDiedError, can_fork
from quantkit.errors import VerifyError
from quantkit.model.graph.save import copy_of, staged
from quantkit.pipeline.checks import read_model
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan
from quantkit.runtime.check_result import Reference, Verification, compare, fed, run_float

_STUCK = 20.0  # seconds without any work of the child, after which it is given up
_LAST_EXIT_CODE = 255  # Windows reports a crash by a larger one


def compare_apart(candidate: Path, reference: Reference, *, nbytes: int) -> Verification:
    """Compare a written result with float; see `compare`.

    A forked child does all of it, which costs some milliseconds. Where forking is not safe, or the child is stuck, a fresh
    interpreter loads and runs the result once before this process does.

    Args:
        candidate: The written file.
        reference: What the float model computes on which inputs.
        nbytes: Size of the candidate and its external data.

    Raises:
        VerifyError: It does not load or run, crashes, or outputs NaN where float does not.
    """
    if can_fork():
        with Crew(lambda path, _: compare(path, reference, nbytes=nbytes), 1) as crew:
            try:
                ticks, since = -1, time.monotonic()
                for found in crew.work([candidate] if crew.size else ()):
                    if found is not None:
                        return found  # type: ignore[no-any-return]
                    if (now := crew.cpu_ticks()) != ticks:
                        ticks, since = now, time.monotonic()
                    elif time.monotonic() - since > _STUCK:
                        break  # onnxruntime's own threads may have held a lock when the child was forked
            except WorkerDiedError as e:
                raise VerifyError(_crash(e.exitcode)) from e
    from quantkit.evaluate.memory import run_alone  # seldom needed, and slow to import

    done = run_alone(candidate, fed(reference, reference.feeds))
    if done is not None and not 0 <= done.returncode <= _LAST_EXIT_CODE:
        raise VerifyError(_crash(done.returncode))
    return compare(candidate, reference, nbytes=nbytes)


def _crash(exitcode: int | None) -> str:
    """Return what happened to a child, by its exit code: a negative one is the signal that ended it."""
    try:
        name = signal.Signals(-(exitcode or 0)).name
    except ValueError:
        name = f"exit code {exitcode}"
    if name == "SIGKILL":
        return (
            "The process that loaded the result was killed (SIGKILL), most likely for want of memory: "
            "free memory, or use a larger machine."
        )
    return (
        f"onnxruntime crashes ({name}) when it loads or runs the result: leave nodes in float (--exclude), or quantize "
        "in another way."
    )


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

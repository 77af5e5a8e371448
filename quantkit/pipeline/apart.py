"""Load a result for the first time in a child process: if onnxruntime crashes, it takes the child along and not the caller."""

import signal
import time
from pathlib import Path

from quantkit.calibration.forks import Crew, WorkerDiedError, can_fork
from quantkit.errors import VerifyError
from quantkit.runtime.check_result import Reference, Verification, compare, fed

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

"""Every error that quantkit raises on purpose.

QuantkitError
  ├── UsageError         an argument, option or name makes no sense
  │     └── UnknownNodeError   a node was named that the model does not have
  ├── ModelError         the input model cannot be read, or uses what quantkit refuses
  │     └── RuntimeSupportError   the installed onnxruntime does not run this model
  ├── DataError          the data cannot be read, or does not fit the model
  ├── InterruptedRunError      the user stopped a run; says how it is continued
  ├── NothingToQuantizeError    no weight would change: a no-op is never called a success
  ├── NothingToPruneError       no channel, neuron, head or layer can be removed
  ├── UnreachableError   no result meets the target; says what the best one reaches. Exit code 1
  ├── VerifyError        the quantized model failed the check before writing
  └── OutputError        the result cannot be written; nothing was changed on disk

Messages say what is wrong, where, and what to do, in one line. The command line prints them and exits with 2.

Each is also the builtin that callers catch for the same: a UsageError is a ValueError, and what is about a file is
the OSError of that kind, FileNotFoundError or PermissionError (`as_os_error`).
"""

from typing import Any, TypeVar


class QuantkitError(Exception):
    """The root of all quantkit errors."""


class UsageError(QuantkitError, ValueError):
    """An argument, option or name makes no sense."""


class UnsupportedError(UsageError, NotImplementedError):
    """What was asked for makes sense, and is not there."""


class UnknownNodeError(UsageError):
    """A node was named that the model does not have."""


class ModelError(QuantkitError):
    """The input model cannot be read, or uses something that quantkit refuses."""


class RuntimeSupportError(ModelError):
    """The installed onnxruntime does not run this model."""


class DataError(QuantkitError):
    """The data cannot be read, or does not fit the model."""


class InterruptedRunError(QuantkitError):
    """The user stopped a run of the command line."""


class NothingToPruneError(QuantkitError):
    """No channel, neuron, head or layer of the model can be removed."""


class UnreachableError(QuantkitError):
    """No result meets the target, and nothing was written; says what the best one reaches. The command line exits with 1."""


class NothingToQuantizeError(QuantkitError):
    """No weight of the model would change.

    Attributes:
        why: The reasons, without a full stop.
        advice: What follows the outcome: "; ..." or "".
        outcome: What became of the output. Callers that write something all the same replace it; "" for none.
    """

    def __init__(self, why: str, advice: str = "", outcome: str = "Nothing was written") -> None:
        super().__init__(why, advice, outcome)
        self.why, self.advice, self.outcome = why, advice, outcome

    def __str__(self) -> str:
        return f"{self.why}{self.outcome and f'. {self.outcome}'}{self.advice}."


class VerifyError(QuantkitError):
    """The quantized model failed the check that runs before anything is written."""


class OutputError(QuantkitError):
    """The result cannot be written."""


E = TypeVar("E", bound=QuantkitError)


def as_os_error(error: E, cause: OSError | type[OSError]) -> E:
    """Return the error, with the same message, as one that is an error of the operating system too.

    Args:
        error: What quantkit says.
        cause: The error of the system that it tells of, or its type.
    """
    kind = cause if isinstance(cause, type) else type(cause)
    made: E = _both(type(error), kind)(*error.args)
    return made


def _both(ours: type[QuantkitError], theirs: type[OSError]) -> Any:
    """Return the one type of two; workers send errors to their parents, so its errors can be pickled."""
    if (ours, theirs) not in _MADE:
        fields = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": _reduced}
        _MADE[ours, theirs] = type(ours.__name__, (ours, theirs), fields)
    return _MADE[ours, theirs]


_MADE: dict[tuple[type, type], Any] = {}


def _reduced(error: Any) -> tuple[Any, ...]:
    return _again, (*type(error).__bases__, error.args)


def _again(ours: type[QuantkitError], theirs: type[OSError], args: tuple[Any, ...]) -> Any:
    return _both(ours, theirs)(*args)

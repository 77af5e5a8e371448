"""Every error that quantkit raises on purpose.

QuantkitError
  ├── UsageError         an argument, option or name makes no sense
  │     └── UnknownNodeError   a node was named that the model does not have
  ├── ModelError         the input model cannot be read, or uses what quantkit refuses
  │     └── RuntimeSupportError   the installed onnxruntime does not run this model
  ├── DataError          the data cannot be read, or does not fit the model
  ├── InterruptedRunError      the user stopped a run; says how it is continued
  ├── NothingToQuantizeError    no weight would change: a no-op is never called a success
  ├── VerifyError        the quantized model failed the check before writing
  └── OutputError        the result cannot be written; nothing was changed on disk

Messages say what is wrong, where, and what to do, in one line. The command line prints them and exits with 2.
"""

__all__ = [
    "DataError",
    "InterruptedRunError",
    "ModelError",
    "NothingToQuantizeError",
    "OutputError",
    "QuantkitError",
    "RuntimeSupportError",
    "UnknownNodeError",
    "UsageError",
    "VerifyError",
]


class QuantkitError(Exception):
    """The root of all quantkit errors."""


class UsageError(QuantkitError, ValueError):
    """An argument, option or name makes no sense."""


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


class NothingToQuantizeError(QuantkitError):
    """No weight of the model would change."""


class VerifyError(QuantkitError):
    """The quantized model failed the check that runs before anything is written."""


class OutputError(QuantkitError):
    """The result cannot be written."""

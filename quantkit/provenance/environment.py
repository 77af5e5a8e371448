"""What a result depends on besides its inputs: versions, and the CPU."""

from importlib.metadata import version

from quantkit._version import __version__
from quantkit.targets import this_machine

__all__ = ["cpu_name", "software"]


def software() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    names = ("onnxruntime", "onnx", "numpy")
    return {"quantkit": __version__} | {name: version(name) for name in names}


def cpu_name() -> str:
    """Return the CPU's name and the instructions that matter for arithmetic."""
    return str(this_machine())

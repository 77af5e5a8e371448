"""Where a result comes from: enough to make it again, and nothing that differs from run to run."""

import hashlib
from importlib.metadata import version
from typing import Any

from quantkit._version import __version__
from quantkit.graph.load import LoadedModel
from quantkit.targets import this_machine

__all__ = ["cpu_name", "model_digest", "software"]

_BLOCK = 1 << 20


def software() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    names = ("onnxruntime", "onnx", "numpy")
    return {"quantkit": __version__} | {name: version(name) for name in names}


def cpu_name() -> str:
    """Return the CPU's name and the instructions that matter for arithmetic."""
    return str(this_machine())


def model_digest(source: LoadedModel) -> dict[str, Any]:
    """Return the size and the SHA-256 of a model, external data included."""
    digest = hashlib.sha256()
    if source.proto is not None:
        digest.update(source.proto.SerializeToString(deterministic=True))
    for path in source.files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return {
        "name": source.path.name if source.path else "ModelProto",
        "bytes": source.nbytes,
        "sha256": digest.hexdigest(),
    }

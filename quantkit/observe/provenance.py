"""Where a result comes from: enough to make it again, and nothing that differs from run to run."""

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quantkit._version import __version__
from quantkit.graph.load import LoadedModel

__all__ = ["cpu_name", "model_digest", "software"]

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_BLOCK = 1 << 20


def software() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    names = ("onnxruntime", "onnx", "numpy")
    return {"quantkit": __version__} | {name: version(name) for name in names}


@cache
def cpu_name() -> str:
    """Return the CPU's name and the instructions that matter for arithmetic."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in lines)
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = fields.get("model name", platform.machine())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return f"{name} ({', '.join(f for f in _FLAGS if f in flags) or 'no vector integers known'})"


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

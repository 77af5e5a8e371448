"""Files that calls read and write, for whoever checks, names or shows them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.calibration import onnxruntime_table
from quantkit.calibration.container import is_container
from quantkit.errors import UsageError
from quantkit.model.graph.load import model_files
from quantkit.quantize.plan import diff_plans, read_plan, write_plan
from quantkit.quantize.plan.model import FORMAT as PLAN_FORMAT
from quantkit.settings import DataSettings

__all__ = ["PLAN_FORMAT", "diff_plans", "files_read", "is_container", "model_files"]
__all__ += ["onnxruntime_table", "read_inputs", "read_plan", "write_plan"]


def files_read(settings: DataSettings, *models: Path) -> list[Path | None]:
    """Return what is read to run models on data: their files, the data, and the tokenizer wherever it may be."""
    folders = {path.parent for path in models} | ({settings.path} if settings.path else set())
    return [
        *(file for path in models for file in model_files(path)),
        settings.path,
        settings.text.tokenizer,
        *(folder / "tokenizer.json" for folder in folders),
    ]


def read_inputs(path: Path) -> dict[str, Any]:
    """Read the inputs of a model from an .npz file.

    Raises:
        UsageError: There is no such file, or it is another kind of file.
    """
    if not path.is_file():
        raise UsageError(f"The sample '{path}' does not exist.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as e:
        raise UsageError(
            f"The sample '{path}' is not an .npz file; write one with numpy.savez(path, NAME=array)."
        ) from e

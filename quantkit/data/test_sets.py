"""ONNX test sets: `test_data_set_*/input_*.pb`, one TensorProto per input, one folder per sample.

Their files are in the order of the model's inputs; a tensor whose name is one of the inputs goes there.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quantkit.data.blocks import Trial, joins
from quantkit.data.detect import Found, natural
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.model import (
    Array,
    InputSpec,
    Sample,
)
from quantkit.data.rows import conform, input_lines
from quantkit.errors import DataError


class _TestSetSamples:
    """Random access to test sets."""

    __test__ = False  # no class of tests, whatever pytest thinks of the name

    def __init__(
        self, found: Found, inputs: Sequence[InputSpec], trial: Trial | None = None
    ) -> None:
        self._found = found
        self._whole = False
        self._inputs = tuple(inputs)
        groups: dict[Path, list[Path]] = {}
        for file in found.files:
            groups.setdefault(file.parent, []).append(file)
        self._groups = tuple(
            (folder.name, tuple(sorted(files, key=natural))) for folder, files in groups.items()
        )
        self.description = found.described(len(self._groups))
        first = [self[i] for i in range(min(3, len(self)))]
        self._whole = not joins(inputs, [sample.feeds for sample in first], trial)
        self.description = replace(self.description, inputs=input_lines(first[0]))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        name, files = self._groups[index]
        tensors = [_read_tensor(file) for file in files]
        known = {spec.name for spec in self._inputs}
        feeds = {tensor: array for tensor, array in tensors if tensor in known}
        free = iter([spec.name for spec in self._inputs if spec.name not in feeds])
        for file, (tensor, array) in zip(files, tensors, strict=True):
            if tensor not in known:
                feeds[next(free, tensor or file.name)] = array
        return conform(Sample(feeds=feeds, name=name, whole=self._whole), self._inputs)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return file_fingerprint(self._found.files, self._found.root, self._found.kind)


def open_test_sets(
    found: Found, inputs: Sequence[InputSpec], trial: Trial | None = None
) -> _TestSetSamples:
    """Open test sets and read the first."""
    return _TestSetSamples(found, inputs, trial)


def _read_tensor(file: Path) -> tuple[str, Array]:
    """Return the tensor's name and values."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    try:
        tensor = onnx.TensorProto.FromString(file.read_bytes())
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise DataError(
                f"The tensor '{file}' has its values in another file; refused: store them in the tensor itself."
            )
        array: Array = numpy_helper.to_array(tensor)
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as e:
        raise DataError(f"Cannot read the tensor '{file}': {e or 'no TensorProto'}.") from e
    return tensor.name, array

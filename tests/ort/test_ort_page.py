"""The page about what differs from onnxruntime.quantization holds what the code knows."""

from pathlib import Path

import pytest

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.ort.extra_options import read_extra_options

_PAGE = Path(ort.__file__).with_name("README.md").read_text(encoding="utf-8")


def test_every_key_of_extra_options_stands_on_the_page() -> None:
    with pytest.raises(UsageError, match="is unknown") as caught:
        read_extra_options({"ActivationSymetric": True})
    known = str(caught.value).partition("(understood: ")[2].partition(")")[0].split(", ")
    assert len(known) > 20
    assert [key for key in known if f"`{key}`" not in _PAGE] == []


def test_the_page_names_the_modules_that_quantize() -> None:
    folder = Path(ort.__file__).parent
    named = ("quantize", "qdq_quantizer", "matmul_nbits_quantizer", "static_quantize_runner")
    assert all(f"`{name}`" in _PAGE and (folder / f"{name}.py").is_file() for name in named)

"""The candidates of compare_static.py: how users of each tool would call it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GROUPS", "Row", "rows_of"]

GROUPS = ("quantkit", "ort", "nncf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to call one tool.

    Attributes:
        name: For the table.
        group: The tool, for ``--rows``.
        job: Which job of static_jobs.py.
        options: The tool's own options; types and methods by their names.
        as_it_is: Give the model as it was exported, without onnxruntime's preparation.
    """

    name: str
    group: str
    job: str
    options: Mapping[str, Any] = field(default_factory=dict)
    as_it_is: bool = False


def _ort(name: str, *, types: str = "U8S8", **options: Any) -> Row:
    """One call of onnxruntime's quantize_static; `types` are those of activations and weights."""
    kinds = {"U8": "QUInt8", "S8": "QInt8"}
    chosen = {"activation_type": kinds[types[:2]], "weight_type": kinds[types[2:]]}
    return Row(
        name=f"onnxruntime {types}{name}",
        group="ort",
        job="onnxruntime",
        options=chosen | {"per_channel": True} | options,
    )


def _dynamic(name: str, **options: Any) -> Row:
    name = f"onnxruntime dynamic {name}"
    return Row(name=name, group="ort", job="onnxruntime_dynamic", options=options)


def _nncf(name: str, **options: Any) -> Row:
    return Row(name=f"NNCF{name}", group="nncf", job="nncf", options=options)


_QUANTKIT = (Row(name="quantkit", group="quantkit", job="quantkit", as_it_is=True),)
_BOTH = (
    *_QUANTKIT,
    _ort(" (default)", types="S8S8", per_channel=False),
    _ort(", per channel"),
    _ort(", per channel, reduced range", reduce_range=True),
    _ort(", per channel", types="U8U8"),
    _ort("", types="U8U8", per_channel=False),
)
# No row for "entropy": quantize_static gives it as many bins as levels (128), so that the whole range
# is the only candidate, and the file is that of min-max, byte for byte.
# NNCF by default takes the mean of the samples' extremes, which clips; min-max is what the others take.
_CLASSIFIER = (
    *_BOTH,
    _ort(", per channel, percentile", types="U8U8", calibrate_method="Percentile"),
    _nncf(""),
    _nncf(" MIXED", preset="MIXED"),
    _nncf(" MIXED, full bias correction", preset="MIXED", fast_bias_correction=False),
    _nncf(" MIXED, min-max", preset="MIXED", ranges="MINMAX"),
    _nncf(" MIXED, min-max, no bias correction", preset="MIXED", ranges="MINMAX", bias=False),
)
_PRODUCTS: dict[str, Any] = {"op_types_to_quantize": ["MatMul"]}
# The kindest to accuracy: products with weights only, and no rounding of what comes out of them.
_INPUTS: dict[str, Any] = _PRODUCTS | {
    "weighted_only": True,
    "extra_options": {"OpTypesToExcludeOutputQuantization": ["MatMul"]},
}
_KIND = "weighted MatMul only, float outputs"
_ENCODER = (
    *_BOTH,
    _ort(", per channel, reduced range, MatMul only", reduce_range=True, **_PRODUCTS),
    _ort(f", per channel, reduced range, {_KIND}", reduce_range=True, **_INPUTS),
    _ort(f", per channel, {_KIND}", types="U8U8", **_INPUTS),
    _ort(
        f", per channel, {_KIND}, percentile, samples padded",
        types="U8U8",
        calibrate_method="Percentile",
        padded=True,
        **_INPUTS,
    ),
    _dynamic("QUInt8, per channel", weight_type="QUInt8", per_channel=True),
    _dynamic(
        "QInt8, per channel, reduced range",
        weight_type="QInt8",
        per_channel=True,
        reduce_range=True,
    ),
    _nncf(" TRANSFORMER", model_type="TRANSFORMER"),
    _nncf(" TRANSFORMER, no SmoothQuant", model_type="TRANSFORMER", smooth_quant=False),
)


def rows_of(model: str) -> tuple[Row, ...]:
    """Return the rows of a model: the encoder's differ from the classifiers'."""
    return _ENCODER if model == "all-MiniLM-L6-v2" else _CLASSIFIER

"""Models written in many ways, for the records that stand in them: by the public calls alone, as users write them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from builders import rng
from provenance_cases import data_file, float_model

import quantkit
from quantkit import (
    DataSettings,
    ImageSettings,
    NodeRule,
    RecoverSettings,
    TensorRule,
    TextSettings,
)


def _defaults(source: Path, data: Path, out: Path) -> None:
    quantkit.quantize_static(source, out, data)


def _everything(source: Path, data: Path, out: Path) -> None:
    quantkit.quantize_static(
        source,
        out,
        data,
        target="arm64",
        quant_format="qoperator",
        activation_type="int8",
        weight_type="int8",
        per_channel=False,
        symmetric_activations=True,
        method="percentile",
        percentile=99.9,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=["first", "second", "relu"],
        nodes_to_exclude=["relu"],
        tensors=[
            TensorRule(tensor="x", range=(-4.0, 4.5)),
            TensorRule(tensor="r", method="minmax"),
        ],
        nodes=[NodeRule(node="bias", mode="float"), NodeRule(node="second", mode="integer")],
        recover=RecoverSettings(equalize=True, smooth=False, adaptive=True, rounding=False),
        settings=DataSettings(
            batch=2,
            shuffle=False,
            seed=3,
            memory=500_000_000,
            image=ImageSettings(
                preset="imagenet", resize=(8, 9), crop=7, mean=(0.5,), exif=False, layout="NCHW"
            ),
            text=TextSettings(column=("a", "b"), tokenizer=Path("far") / "t.json", max_length=9),
        ),
        limit=12,
        use_external_data_format=True,
        verify=False,
    )


def _rules(source: Path, data: Path, out: Path) -> None:
    quantkit.quantize_static(
        source,
        out,
        data,
        tensors=[
            TensorRule(tensor="*", dtype="uint8", method="minmax"),
            TensorRule(tensor="y", keep_float=True),
            TensorRule(tensor="r", method="entropy"),
        ],
        recover=RecoverSettings(empirical=True, ranges=True),
    )


def _calibration(source: Path, data: Path, out: Path) -> None:
    seen = quantkit.calibrate(source, data, method="moving_average", workers=1)
    quantkit.quantize_static(source, out, seen, recover=RecoverSettings(bias=False))


def _letterbox(source: Path, data: Path, out: Path) -> None:
    image = ImageSettings(letterbox=(6, 8), pixels="0-255", std=(1.0, 2.0, 3.0), channels="BGR")
    quantkit.quantize_static(source, out, data, settings=DataSettings(image=image))


def _plan(source: Path, data: Path, out: Path) -> None:
    plan = quantkit.plan_static(source, data)
    quantkit.quantize_static(source, out, data, plan=plan)


def _dynamic(source: Path, _: Path, out: Path) -> None:
    quantkit.quantize_dynamic(source, out)


def _dynamic_everything(source: Path, _: Path, out: Path) -> None:
    quantkit.quantize_dynamic(
        source,
        out,
        "int8",
        per_channel=False,
        reduce_range=True,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=["first"],
        nodes_to_exclude=["sec*"],
        use_external_data_format=True,
        sample={"x": rng(5).standard_normal((2, 64)).astype(np.float32)},
    )


def _optimize(source: Path, _: Path, out: Path) -> None:
    quantkit.optimize(source, out, exclude=["identity"])


def _float16(source: Path, _: Path, out: Path) -> None:
    quantkit.quantize_float16(source, out)


def _float16_everything(source: Path, data: Path, out: Path) -> None:
    quantkit.quantize_float16(
        source,
        out,
        data,
        compute=True,
        half_inputs=True,
        half_outputs=True,
        nodes_to_exclude=["bi*"],
        keep_inputs=True,
        settings=DataSettings(batch=2, shuffle=False, seed=3),
        limit=12,
        skip_bad=True,
    )


CASES: Mapping[str, Callable[[Path, Path, Path], None]] = {
    "static": _defaults,
    "static_everything": _everything,
    "static_rules": _rules,
    "static_calibration": _calibration,
    "static_letterbox": _letterbox,
    "static_plan": _plan,
    "dynamic": _dynamic,
    "dynamic_everything": _dynamic_everything,
    "float16": _float16,
    "float16_everything": _float16_everything,
    "optimize": _optimize,
}


def written(case: str, folder: Path) -> Path:
    """Write a case's model and return its path."""
    out = folder / "q.onnx"
    CASES[case](float_model(folder / "m.onnx"), data_file(folder / "x.npy"), out)
    return out

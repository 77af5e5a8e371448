"""Fitted estimators of scikit-learn, LightGBM and XGBoost, through skl2onnx and onnxmltools."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Outputs, output_names
from quantkit.deploy.export.inputs import Bound, Inputs, InputSpec, with_sizes
from quantkit.deploy.export.user_code import quiet_import, said_by, user_code
from quantkit.errors import ModelError, UsageError
from quantkit.settings import ExportSettings

_PACKAGES = {"sklearn": "scikit-learn", "lightgbm": "lightgbm", "xgboost": "xgboost"}
_SKL2ONNX = "Estimators of scikit-learn are exported by skl2onnx: pip install skl2onnx."
_TOOLS = (
    "Models of LightGBM and XGBoost are exported by onnxmltools: pip install onnxmltools skl2onnx."
)
_NEWEST = 15  # opset that onnxmltools writes for trees
_NEWEST_TREES = 3  # opset of ai.onnx.ml that all of skl2onnx writes


def is_estimator(value: Any) -> bool:
    """Say whether an object is an estimator of one of these packages, its own subclasses included."""
    return _package(value) != "" and (hasattr(value, "predict") or hasattr(value, "transform"))


def _package(value: Any) -> str:
    names = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    found = [name for name in names if name in _PACKAGES]
    return next((n for n in found if n != "sklearn"), found[0] if found else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator(Framework):
    """A fitted estimator: takes one matrix.

    Its outputs are "label" and "probabilities" of a classifier, "label" and "scores" of what finds clusters or outliers, else
    "output". It has no weights by name: the digest is that of its answers on fixed inputs.
    """

    model: Any

    def run(self, feeds: Feeds) -> Outputs:
        """Predict."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of features
            found = _predicted(self.model, next(iter(feeds.values())))
        return dict(zip(self.outputs, found, strict=True))

    def run_wide(self, feeds: Feeds) -> Outputs | None:
        """Predict in float64."""
        return self.run({k: v.astype(np.float64) for k, v in feeds.items()})

    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder."""
        path = folder / "exported.onnx"
        spec = self.inputs.specs[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = _converted(self.model, spec, opset)
            except UsageError:
                raise
            except Exception as e:
                raise ModelError(
                    f"{type(self.model).__name__} cannot be exported: {said_by(e)}."
                ) from e
        path.write_bytes(made.SerializeToString())
        maker = "skl2onnx" if self.name == "scikit-learn" else "onnxmltools"
        return Exported(path=path, exporter=maker, sizes=next(iter(self.inputs.traced())))


def _converted(model: Any, spec: InputSpec, opset: int) -> Any:
    package = _package(model)
    skl = quiet_import("skl2onnx", _SKL2ONNX if package == "sklearn" else _TOOLS)
    types = quiet_import("skl2onnx.common.data_types", _SKL2ONNX)
    kind = types.DoubleTensorType if spec.dtype == "float64" else types.FloatTensorType
    given = [(spec.name, kind([None, *spec.dims[1:]]))]
    if package == "sklearn":
        options = {"zipmap": False} if hasattr(model, "predict_proba") else None
        opsets = {"": min(opset, skl.__max_supported_opset__), "ai.onnx.ml": _NEWEST_TREES}
        return skl.to_onnx(model, initial_types=given, options=options, target_opset=opsets)
    tools = quiet_import("onnxmltools", _TOOLS)
    own = quiet_import("onnxmltools.convert.common.data_types", _TOOLS)
    given = [(spec.name, own.FloatTensorType([None, *spec.dims[1:]]))]
    newest = min(opset, _NEWEST)
    if package == "lightgbm":
        return tools.convert_lightgbm(model, initial_types=given, zipmap=False, target_opset=newest)
    return tools.convert_xgboost(model, initial_types=given, target_opset=newest)


def _predicted(model: Any, rows: Any) -> list[Any]:
    """Return what the exported graph gives: labels and probabilities or scores, or numbers as a column, as converters do."""
    if not hasattr(model, "predict"):
        return [np.asarray(model.transform(rows))]
    if _finds_outliers(model):
        marks = model.predict(rows).astype(np.int64)
        return [marks.reshape(-1, 1), model.decision_function(rows).reshape(-1, 1)]
    if _finds_clusters(model):
        return [model.predict(rows).astype(np.int64), model.transform(rows)]
    if hasattr(model, "predict_proba"):
        label = np.asarray(model.predict(rows))
        likely = np.asarray(model.predict_proba(rows))
        return [label.astype(np.int64) if label.dtype.kind in "iub" else label, likely]
    found = np.asarray(model.predict(rows))
    return [found.reshape(len(rows), -1) if found.dtype.kind == "f" else found]


def _finds_outliers(model: Any) -> bool:
    return _package(model) == "sklearn" and bool(
        quiet_import("sklearn.base", _SKL2ONNX).is_outlier_detector(model)
    )


def _finds_clusters(model: Any) -> bool:
    return hasattr(model, "cluster_centers_") and hasattr(model, "transform")


def _output_names(model: Any) -> tuple[str, ...]:
    if _finds_outliers(model) or _finds_clusters(model):
        return "label", "scores"
    return ("label", "probabilities") if hasattr(model, "predict_proba") else ("output",)


def _refuse_forms(model: Any) -> None:
    """Refuse what converters do not write.

    Raises:
        UsageError: It is such; the message says what to give instead.
    """
    if _package(model) == "xgboost" and type(model).__name__ == "Booster":
        raise UsageError(
            "A Booster of XGBoost is not exported: give an XGBClassifier or XGBRegressor, whose load_model() reads the same "
            "file."
        )
    if hasattr(model, "predict_proba") and getattr(model, "n_outputs_", 1) > 1:
        raise UsageError(
            f"{type(model).__name__} predicts {model.n_outputs_} targets at once, which is not exported: export an estimator "
            "for each."
        )


def open_estimator(model: Any, given: Inputs | None, settings: ExportSettings) -> Framework:
    """Look at a fitted estimator; what it takes is told by the number of its features.

    Args:
        model: The estimator.
        given: Its input, if the user described it.
        settings: Names of outputs, sizes to try.

    Raises:
        UsageError: It is not fitted, takes other inputs, or has other outputs.
    """
    _refuse_forms(model)
    features = _features(model)
    if features is None:
        raise UsageError(f"{type(model).__name__} is not fitted: fit it where it is made.")
    inputs = given
    if inputs is None:
        spec = InputSpec(name="input", dtype="float32", dims=("batch", features))
        inputs = with_sizes(Inputs(specs=(spec,), bounds={"batch": Bound()}), settings.sizes)
    if len(inputs.specs) != 1 or inputs.specs[0].dims[1:] != (features,):
        raise UsageError(
            f"{type(model).__name__} takes one input of {features} features, such as --input 'input:float32[batch,{features}]'."
        )
    package = _package(model)
    framework = Estimator(
        name=_PACKAGES[package],
        version=str(getattr(quiet_import(package, ""), "__version__", "")),
        inputs=inputs,
        outputs=output_names(_output_names(model), settings.outputs, inputs),
        weights="",
        model=model,
    )
    sizes = next(iter(inputs.traced()))
    try:
        with user_code("predict()"):
            answers = framework.run(inputs.feeds({**sizes, **dict.fromkeys(sizes, 64)}, seed=0))
    except ModelError as e:
        raise ModelError(f"{str(e).rstrip('.')}; {_advice(model, inputs.specs[0])}.") from e
    digest = _digest(list(answers.values()))
    return replace(framework, weights=digest)


def _advice(model: Any, spec: InputSpec) -> str:
    """Say what may help where an estimator does not take numbers."""
    if hasattr(model, "feature_names_in_"):
        return (
            "it was fitted on a table: fit it on an array of numbers, with columns by their places"
        )
    return f"if the values are at fault, add their range, such as --input '{spec}{{0..1}}'"


def _features(model: Any) -> int | None:
    for name in ("n_features_in_", "num_feature"):
        try:
            found = getattr(model, name, None)
            number = found() if callable(found) else found
        except Exception:  # noqa: BLE001, S112 - xgboost raises NotFittedError and others
            continue
        if number is not None:
            return int(number)
    return None


def _digest(answers: Sequence[Any]) -> str:
    digest = sha256()
    for answer in answers:
        digest.update(
            np.ascontiguousarray(answer).tobytes()
            if answer.dtype.kind != "O"
            else str(answer.tolist()).encode()
        )
    return digest.hexdigest()

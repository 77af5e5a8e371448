"""The models of an evaluation: float and its candidates, loaded, with the same inputs and outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantkit.calibration.model_inputs import fixed_batch, inputs_of
from quantkit.data import InputSpec
from quantkit.errors import ModelError, RuntimeSupportError, UsageError
from quantkit.evaluate.match.pair import NamedModel
from quantkit.runtime.session import RUNTIME_ERRORS, why_not_loaded

_FLOATS = frozenset(f"tensor({name})" for name in ("float", "double", "float16", "bfloat16"))
_HALVED = _FLOATS - {"tensor(double)"}

Extents = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """One output as onnxruntime describes it. A free dimension is None.

    Attributes:
        name: Its name.
        type: For example "tensor(float)".
        shape: Its extents; None: the rank is not known.
    """

    name: str
    type: str
    shape: Extents | None

    @property
    def is_tensor(self) -> bool:
        """Whether its values come as an array."""
        return self.type.startswith("tensor(")

    @property
    def is_float(self) -> bool:
        """Whether its values are real numbers."""
        return self.type in _FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A loaded model."""

    name: str
    session: Any
    outputs: tuple[OutputSpec, ...]


def open_models(
    models: Sequence[NamedModel],
) -> tuple[tuple[OpenModel, ...], tuple[InputSpec, ...]]:
    """Load all models; return them with the inputs that fit every one.

    An extent that any model fixes is fixed in the inputs.

    Raises:
        ModelError: A file is no model, or onnxruntime does not load it.
        UsageError: A candidate has other inputs or outputs than float.
    """
    _check_names(models)
    loaded = models[0].loaded
    loaded.require_weights()
    inputs = inputs_of(loaded)
    opened = tuple(_open(model) for model in models)
    reference = opened[0]
    if not any(spec.is_tensor for spec in reference.outputs):
        raise ModelError(
            f"No output of {loaded.name} is a tensor: there is nothing to compare; export it with tensors "
            "as outputs (scikit-learn: zipmap off)."
        )
    # The float model says what inputs are called and what they hold; candidates may only be narrower. A quantizer may
    # fix a batch that was free, and data is then cut for the narrowest, or the candidate alone would fail half-way
    # through. Outputs must agree by name and type, as they are compared one by one.
    # One of the two may be in float16, inputs and outputs too: the samples are then float32, which sessions of halves take.
    fixed = {spec.name: list(spec.shape) for spec in inputs}
    kinds = {name: kind for name, (kind, _) in _inputs(reference).items()}
    mixed: set[str] = set()
    for model in opened[1:]:
        _check_same("input", _inputs(model), _inputs(reference), model.name)
        outputs = {spec.name: (spec.type, spec.shape) for spec in model.outputs}
        wanted = {spec.name: (spec.type, spec.shape) for spec in reference.outputs}
        _check_same("output", outputs, wanted, model.name)
        for name, (kind, shape) in _inputs(model).items():
            mixed.update({name} if kind != kinds[name] else ())
            for axis, extent in enumerate(shape or ()):
                fixed[name][axis] = extent if fixed[name][axis] is None else fixed[name][axis]
    specs = (
        replace(spec, dtype=np.dtype(np.float32)) if spec.name in mixed else spec for spec in inputs
    )
    return opened, tuple(replace(spec, shape=tuple(fixed[spec.name])) for spec in specs)


def single_rows(
    inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
) -> tuple[InputSpec, ...]:
    """Return the inputs as one sample fills them: rows of a fixed batch are samples with labels of their own.

    They are unless an output has another number of rows than the batch: then they belong together (frames of a film).
    """
    batch = fixed_batch(inputs)
    rows = {spec.shape[0] if spec.shape else None for spec in outputs}
    if batch is None or batch == 1 or not rows <= {batch, None}:
        return tuple(inputs)
    shapes = [(None, *spec.shape[1:]) if spec.shape else () for spec in inputs]
    return tuple(
        replace(spec, shape=shape, axis="batch") for spec, shape in zip(inputs, shapes, strict=True)
    )


def _check_names(models: Sequence[NamedModel]) -> None:
    if len(models) <= 1:
        raise UsageError("There is no candidate: name at least one model beside the float model.")
    names = [model.name for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two models are called '{twice}': give each a name of its own.")


def _open(model: NamedModel) -> OpenModel:
    try:
        session = model.session
    except RUNTIME_ERRORS as e:
        # A file that is damaged or not there is told by `load`, in better words.
        raise RuntimeSupportError(why_not_loaded(model.loaded, str(e))) from e
    outputs = tuple(
        OutputSpec(name=o.name, type=o.type, shape=_extents(o.shape)) for o in session.get_outputs()
    )
    return OpenModel(name=model.name, session=session, outputs=outputs)


def _inputs(model: OpenModel) -> dict[str, tuple[str, Extents | None]]:
    return {i.name: (i.type, _extents(i.shape)) for i in model.session.get_inputs()}


def _extents(shape: Sequence[Any] | None) -> Extents | None:
    """Return the extents; onnxruntime gives names, None or -1 for free ones, and [] also for no rank."""
    if shape is None:
        return None
    return tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)


def _check_same(
    what: str,
    have: Mapping[str, tuple[str, Extents | None]],
    want: Mapping[str, tuple[str, Extents | None]],
    model: str,
) -> None:
    """Raise if names, types, ranks or fixed extents differ."""
    for name in want:
        if name not in have:
            others = ", ".join(f"'{n}'" for n in have if n not in want)
            instead = f"; it has {others} instead" if others else ""
            raise UsageError(
                f"Candidate '{model}' has no {what} '{name}', which the float model has{instead}."
            )
    for name, (kind, shape) in have.items():
        if name not in want:
            raise UsageError(
                f"Candidate '{model}' has the {what} '{name}', which the float model does not have."
            )
        halved = {kind, want[name][0]} <= _HALVED
        if (kind != want[name][0] and not halved) or _differ(shape, want[name][1]):
            raise UsageError(
                f"Candidate '{model}': its {what} '{name}' is {_text(kind, shape)}, the float "
                f"model's is {_text(*want[name])}."
            )


def _differ(a: Extents | None, b: Extents | None) -> bool:
    # An output without a known rank and a scalar look alike: both are empty.
    if not a or not b:
        return False
    return len(a) != len(b) or any(None not in {x, y} and x != y for x, y in zip(a, b, strict=True))


def _text(kind: str, shape: Extents | None) -> str:
    plain = kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind
    extents = ", ".join("?" if n is None else str(n) for n in shape or ())
    return f"{plain}[{extents}]"

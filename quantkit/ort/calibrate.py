"""onnxruntime's calibraters, spelled as there: they run an augmented model on data and give ranges.

`augment_graph` adds outputs to a copy of the model and writes it; `collect_data` runs that as often as it is called;
`compute_data` gives the ranges. What was seen is kept as extremes, or as one sketch a tensor: memory does not grow
with the data. And the base class of readers of data.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import Entropy, Percentile, Sketch
from quantkit.data import collate, open_data
from quantkit.errors import DataError, UsageError
from quantkit.files import check_outputs, scratch
from quantkit.graph.messages import to_ir
from quantkit.graph.save import staged, unchecked
from quantkit.graph.shapes import dims, infer_types
from quantkit.observe.prepare import batch_for, inputs_of, with_model_folder
from quantkit.ort.missing import missing
from quantkit.ort.onnx_model import get_opset_version
from quantkit.ort.quant_utils import CalibrationMethod
from quantkit.ort.tensors import (
    TensorData,
    TensorsData,
    load_tensors_data,
    plain,
    save_tensors_data,
)
from quantkit.runtime.rows import row_trial
from quantkit.runtime.session import (
    RUNTIME_ERRORS,
    available_providers,
    first_line,
    load_model,
    make_session,
    readable_ir_version,
)
from quantkit.settings import DataSettings

__all__ = [
    "CalibraterBase",
    "CalibrationCacheEncoder",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "EntropyCalibrater",
    "HistogramCalibrater",
    "MinMaxCalibrater",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "entropy",
    "load_tensors_data",
    "provided",
    "rel_entr",
    "save_tensors_data",
    "strided",
]

__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_LOG = logging.getLogger(__name__)
_AUGMENTED = "augmented_model.onnx"
_CPU = "CPUExecutionProvider"
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_AXES_AS_INPUT = 18  # the opset from which ReduceMin reads its axes
_ENDS = ("ReduceMin", "ReduceMax")
_FEWEST_BINS = 512  # of a distribution
_PER_CENT = 100
_COUNTED = (
    1 << 17
)  # values of a tensor that are counted in a sample, evenly spaced; extremes are those of all


class _UnavailableError(TypeError, NotImplementedError):
    """What a reader need not have: NotImplementedError as onnxruntime's, TypeError so that list(reader) works."""


class CalibrationDataReader(ABC):
    """A stream of model inputs: subclass it and return a dict of arrays, or None at the end."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        """Whatever has a `get_next` is a reader."""
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abstractmethod
    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next inputs by name, or None."""

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found

    def __len__(self) -> int:
        raise _UnavailableError(f"{type(self).__name__} does not say how long it is.")

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        """Restrict the stream to a range of samples; a reader that can overrides this."""
        raise _UnavailableError(
            f"{type(self).__name__} cannot be restricted to a range of samples."
        )


def strided(reader: Any, stride: int) -> Iterator[Any]:
    """Return a reader's samples, of which it is told to show so many at a time; the last window may be shorter.

    Raises:
        UsageError: It does not say how long it is, or cannot be told.
    """
    if not isinstance(stride, int) or stride < 1:
        raise UsageError(f"CalibStridedMinMax is a number of samples, not {stride!r}.")
    try:
        total = len(reader)
        show = reader.set_range
    except (TypeError, AttributeError, NotImplementedError) as e:
        raise UsageError(
            f"CalibStridedMinMax: '{type(reader).__name__}' needs __len__ and set_range(start_index, end_index)."
        ) from e

    def windows() -> Iterator[Any]:
        for start in range(0, total, stride):
            show(start_index=start, end_index=min(start + stride, total))
            yield from iter(lambda: reader.get_next() or None, None)

    return windows()


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes arrays, ranges and methods as `save_tensors_data` does: ``json.dumps(..., cls=...)``."""

    def default(self, o: Any) -> Any:
        """Return what JSON has no form for as plain data."""
        return plain(o)


def rel_entr(pk: NDArray[Any], qk: NDArray[Any]) -> NDArray[Any]:
    """Return p log(p / q) of each pair: 0 where p is 0, infinite where one of them is negative."""
    from scipy import special

    return np.asarray(special.rel_entr(pk, qk))


def entropy(
    pk: NDArray[Any], qk: NDArray[Any], base: float | None = None, axis: int = 0
) -> NDArray[Any]:
    """Return the Kullback-Leibler divergence of two distributions, each made to sum to 1.

    Args:
        pk: The distribution that was seen.
        qk: The one that stands for it.
        base: Of the logarithm; None: e.
        axis: Along which they sum to 1.
    """
    if base is not None and base <= 0:
        raise UsageError(f"The base of a logarithm is above 0, not {base}.")
    p, q = np.broadcast_arrays(np.asarray(pk, np.float32), np.asarray(qk, np.float32))
    p, q = (a / a.sum(axis=axis, keepdims=True) for a in (p, q))
    found = rel_entr(p, q).sum(axis=axis)
    return np.asarray(found if base is None else found / np.log(base), np.float32)


class CalibraterBase:
    """What all calibraters share: the model, its tensors, the session of the augmented model.

    Who subclasses it gives `augment_graph`, `collect_data` and `compute_data`.
    """

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        use_external_data_format: bool = False,  # noqa: FBT001
        per_channel: bool = False,  # noqa: FBT001
    ) -> None:
        self._source = load_model(model_path)
        self._source.require_weights()
        infer_types(self._source.model)
        self.model = _with_types(model_path, self._source.model)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self.augment_model: onnx.ModelProto | None = None
        self.infer_session: Any = None
        self.execution_providers: Sequence[str] = [_CPU]

    def set_execution_providers(self, execution_providers: Sequence[str] = (_CPU,)) -> None:
        """Run the augmented model by these from now on."""
        self.execution_providers = execution_providers
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Load the augmented model from where `augment_graph` wrote it; nothing of it is optimized."""
        path = Path(self.augmented_model_path)
        if not path.is_file():
            raise UsageError(f"There is no augmented model '{path}' yet; call augment_graph first.")
        self.infer_session = make_session(
            str(path), level=0, providers=provided(self.execution_providers)
        )

    def select_tensors_to_calibrate(
        self, model: onnx.ModelProto
    ) -> tuple[set[str], dict[str, onnx.ValueInfoProto]]:
        """Return the float tensors around the operators to calibrate (all, if none are named), and the types of all."""
        graph, kinds = model.graph, self.op_types_to_calibrate
        infos = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        held = {tensor.name for tensor in graph.initializer}
        touched = {
            name
            for node in graph.node
            if not kinds or node.op_type in kinds
            for name in (*node.input, *node.output)
        }
        floats = {n for n, v in infos.items() if v.type.tensor_type.elem_type in _FLOATS}
        return (touched & floats) - held, infos

    def get_augment_model(self) -> onnx.ModelProto:
        """Return the model, augmented once `augment_graph` was called."""
        return self.model

    def augment_graph(self) -> None:
        """Add what is to be read to the outputs of the model, and write it to `augmented_model_path`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to augment a graph.")

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on data; may be called again with more."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to collect data.")

    def compute_data(self) -> TensorsData:
        """Return the ranges of all tensors."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to compute ranges.")

    def clear_collected_data(self) -> None:
        """No-op: outputs are never stored."""

    def compute_range(self) -> dict[str, tuple[Any, Any]]:
        """Return lower and upper ends by tensor, as earlier versions of onnxruntime called it."""
        return {name: found.range_value for name, found in self.compute_data().items()}

    def ordered_tensors(self) -> list[str]:
        """Return what is selected, in the order of the graph."""
        chosen, infos = self.select_tensors_to_calibrate(self.model)
        graph = self.model.graph
        made = (name for node in graph.node for name in node.output)
        there = dict.fromkeys((*(v.name for v in graph.input), *made))
        return [name for name in there if name in chosen and name in infos]

    def names_taken(self) -> set[str]:
        """Return all names of the main graph that a new one must not have."""
        graph = self.model.graph
        used = {n for node in graph.node for n in (node.name, *node.input, *node.output)}
        return used | {v.name for v in (*graph.input, *graph.output, *graph.initializer)}

    def hold(self, values: Sequence[int], name: str, taken: set[str]) -> str:
        """Add a row of integers to the initializers; return the name that it got."""
        name = _unused(name, taken)
        held = onnx.numpy_helper.from_array(np.array(values, np.int64), name)
        self.model.graph.initializer.append(held)
        return name

    def write_augmented(self) -> None:
        """Write the augmented model, whole or not at all."""
        target = Path(self.augmented_model_path)
        check_outputs([target], self._source.files)
        model = to_ir(self.model)
        model.ir_version = readable_ir_version(model.ir_version or 0)
        if self._source.complaint:
            unchecked(model)
        with staged(target) as stage:
            stage.write(model, external=self.use_external_data_format)
            stage.commit()
        self.augment_model = self.model

    def _ready(self) -> Any:
        """Return the session; if nobody asked for an augmented model, none is left behind."""
        if self.infer_session is None and self.augment_model is None:
            asked = self.augmented_model_path
            with scratch() as folder:
                self.augmented_model_path = folder / _AUGMENTED
                try:
                    self.augment_graph()
                    self.create_inference_session()
                finally:
                    self.augmented_model_path = asked
        elif self.infer_session is None:
            self.create_inference_session()
        return self.infer_session

    def _runs(self, data: Any, outputs: Sequence[str]) -> Iterator[list[NDArray[Any]]]:
        """Run the session on all data; yield the values of some outputs, sample by sample.

        Raises:
            DataError: There is no data, or the model does not run on it.
        """
        session = self._ready()
        inputs = inputs_of(self._source)
        settings = with_model_folder(DataSettings(), self._source)
        samples = iter(open_data(data, inputs, settings, row_trial(lambda: session)))
        first = next(samples)
        together = batch_for(inputs, first, 1)
        samples = chain([first], samples)
        while batch := list(islice(samples, together)):
            for feeds in collate(batch):
                try:
                    yield session.run(list(outputs), feeds)
                except RUNTIME_ERRORS as e:
                    raise DataError(
                        f"The model does not run on '{batch[0].name}': {first_line(e)}"
                    ) from e


def _with_types(source: str | Path | onnx.ModelProto, typed: ir.Model) -> onnx.ModelProto:
    """Return a model of the caller's own, whose tensors have the types that were inferred."""
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
    else:
        proto = onnx.load(source)
    graph = proto.graph
    declared = {v.name for v in (*graph.value_info, *graph.output, *graph.input)}
    made = {name for node in graph.node for name in node.output if name not in declared}
    for value in (out for node in typed.graph for out in node.outputs):
        if value.name in made and value.dtype is not None:
            extents = dims(value)
            if value.shape is None and extents is not None:
                value.shape = ir.Shape(extents)
            graph.value_info.append(ir.serde.serialize_value(value))
    # Constants in nodes are no nodes any more once a model is loaded.
    for node in graph.node:
        if (
            node.op_type == "Constant"
            and node.output[0] in made
            and node.attribute[0].HasField("t")
        ):
            held = node.attribute[0].t
            kind = graph.value_info.add(name=node.output[0]).type.tensor_type
            kind.elem_type = held.data_type
            for extent in held.dims:
                kind.shape.dim.add(dim_value=extent)
            kind.shape.SetInParent()
    return proto


def provided(wanted: Sequence[str]) -> list[Any]:
    """Return those of the wanted providers that are installed, and the CPU's last."""
    names = [p if isinstance(p, str) else p[0] for p in wanted]
    there = available_providers()
    lacking = [name for name in names if name not in there]
    if lacking:
        _LOG.warning("onnxruntime has no %s here; the CPU calibrates.", ", ".join(lacking))
    found = [p for p, name in zip(wanted, names, strict=True) if name in there]
    return found if _CPU in names else [*found, _CPU]


class MinMaxCalibrater(CalibraterBase):
    """The smallest and the largest value of each tensor, or of each channel; or moving averages of them."""

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        use_external_data_format: bool = False,  # noqa: FBT001
        moving_average: bool = False,  # noqa: FBT001
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,  # noqa: FBT001
    ) -> None:
        """Load the model.

        Args:
            model_path: The float model.
            op_types_to_calibrate: Observe what these read and make; None or empty: every operator.
            augmented_model_path: Where the augmented model is written.
            symmetric: Ranges from -x to x.
            use_external_data_format: Write the weights of the augmented model to a file of their own.
            moving_average: Of the samples of one `collect_data` the mean extremes count instead of the outermost, and
                each later call moves them.
            averaging_constant: How far a later call moves them.
            max_intermediate_outputs: Accepted: no outputs are kept.
            per_channel: A range for each index of axis 1.
        """
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            per_channel,
        )
        if moving_average and not 0 <= averaging_constant <= 1:
            raise UsageError(f"averaging_constant is from 0 to 1, not {averaging_constant}.")
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self._outputs: dict[str, tuple[str, str]] = {}
        self._found: dict[str, _Pair] = {}

    def augment_graph(self) -> None:
        """Add minimum and maximum of each tensor to the outputs, and write the model."""
        graph, tensors = self.model.graph, self.ordered_tensors()
        _, infos = self.select_tensors_to_calibrate(self.model)
        taken = self.names_taken()
        row = self.hold([-1], "calibrated_row", taken)
        for tensor in tensors:
            described = infos[tensor].type.tensor_type
            more: dict[str, Any] = {}
            if self.per_channel:
                if not described.HasField("shape"):
                    raise UsageError(f"per_channel: it is not known how many axes '{tensor}' has.")
                axes = [axis for axis in range(len(described.shape.dim)) if axis != 1]
                if get_opset_version(self.model) < _AXES_AS_INPUT:
                    more = {"axes": axes}
                else:
                    more = {"read": [self.hold(axes, f"{tensor}_reduced_axes", taken)]}
            low, high = (self._end(tensor, kind, row, taken, more) for kind in _ENDS)
            for name in (low, high):
                output = graph.output.add(name=name).type.tensor_type
                output.elem_type = described.elem_type
                output.shape.dim.add()
            self._outputs[tensor] = (low, high)
        self.write_augmented()

    def _end(
        self, tensor: str, kind: str, row: str, taken: set[str], more: Mapping[str, Any]
    ) -> str:
        """Add an extreme of a tensor as a row; return its name. Extents of 0 are reduced only where axes are kept."""
        end = _unused(f"{tensor}_{kind}", taken)
        inner = _unused(f"{end}_Reshape", taken)
        nodes = self.model.graph.node
        reduce = nodes.add(op_type=kind, name=end, input=[tensor, *more.get("read", ())])
        reduce.output.append(inner)
        reduce.attribute.add(name="keepdims", i=1, type=onnx.AttributeProto.INT)
        if more.get("axes"):
            reduce.attribute.add(name="axes", ints=more["axes"], type=onnx.AttributeProto.INTS)
        nodes.add(op_type="Reshape", name=inner, input=[inner, row], output=[end])
        return end

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on data; may be called again with more."""
        self._ready()
        names = [name for ends in self._outputs.values() for name in ends]
        picks = (None, None) if self.moving_average else (np.fmin, np.fmax)
        call = {tensor: tuple(_End(pick) for pick in picks) for tensor in self._outputs}
        for values in self._runs(data_reader, names):
            for i, ends in enumerate(call.values()):
                for end, value in zip(ends, values[2 * i : 2 * i + 2], strict=True):
                    end.add(value)
        for tensor, (low, high) in call.items():
            self._found[tensor] = self._joined(tensor, (low.value, high.value))

    def _joined(self, tensor: str, new: "_Pair") -> "_Pair":
        """Return what a call found together with what the calls before it did."""
        if self.symmetric:
            extent = np.maximum(np.abs(new[0]), np.abs(new[1]))
            new = -extent, extent
        old = self._found.get(tensor)
        if old is None:
            return new
        if self.moving_average:
            share = np.float32(self.averaging_constant)
            return old[0] + share * (new[0] - old[0]), old[1] + share * (new[1] - old[1])
        return np.minimum(old[0], new[0]), np.maximum(old[1], new[1])

    def compute_data(self) -> TensorsData:
        """Return the ranges of all tensors."""
        if not self._found:
            raise UsageError("No data was collected; call collect_data first.")
        return TensorsData(CalibrationMethod.MinMax, self._found)


_Pair = tuple[NDArray[Any], NDArray[Any]]


class _End:
    """One end of a range over the samples of a call: the outermost finite value, or the mean of them."""

    def __init__(self, pick: np.ufunc | None) -> None:
        self._pick = pick
        self._held: NDArray[Any] | None = None
        self._count: Any = 0

    def add(self, value: NDArray[Any]) -> None:
        finite = np.isfinite(value)
        self._count = self._count + finite
        if self._held is not None and self._held.shape != value.shape:
            raise DataError(
                "A tensor has not the same number of channels in all samples; leave out per_channel."
            )
        if self._pick is None:
            summed = np.where(finite, value, 0).astype(np.float64)
            self._held = summed if self._held is None else self._held + summed
            self._dtype = value.dtype
        else:
            known = np.where(finite, value, np.nan).astype(value.dtype)
            self._held = known if self._held is None else self._pick(self._held, known)

    @property
    def value(self) -> NDArray[Any]:
        """What was found; 0 where no finite value was seen."""
        assert self._held is not None  # noqa: S101 - data without a sample is refused before
        if self._pick is None:
            return np.asarray(self._held / np.maximum(self._count, 1), self._dtype)
        return np.asarray(np.nan_to_num(self._held, nan=0.0))


def _unused(wanted: str, taken: set[str]) -> str:
    """Return a name, changed if it is taken, and take it."""
    name = next(n for n in chain([wanted], (f"{wanted}_{i}" for i in count(1))) if n not in taken)
    taken.add(name)
    return name


class HistogramCalibrater(CalibraterBase):
    """Ranges from the distribution of each tensor's values; it is kept in fine bins of its own (`calibrators.Sketch`)."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
        method: str = "percentile",
        symmetric: bool = False,  # noqa: FBT001
        num_bins: int = 128,
        num_quantized_bins: int | None = None,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        """Load the model.

        Args:
            model_path: The float model.
            op_types_to_calibrate: Observe what these read and make; None or empty: every operator.
            augmented_model_path: Where the augmented model is written.
            use_external_data_format: Write the weights of the augmented model to a file of their own.
            method: "entropy", "percentile" or "distribution".
            symmetric: Ranges from -x to x.
            num_bins: Of the histogram that `compute_data` gives beside a range; ranges come from finer ones.
            num_quantized_bins: Levels of "entropy"; None: those of 8 bits.
            percentile: Per cent of the values kept.
            scenario: Of "distribution": "same", or "p3" for mean and deviation of the cube roots.
        """
        if method not in {"entropy", "percentile", "distribution"}:
            raise UsageError(
                f"method is 'entropy', 'percentile' or 'distribution', not {method!r}."
            )
        if scenario not in {"same", "p3"}:
            raise UsageError(f"scenario is 'same' or 'p3', not {scenario!r}.")
        if method == "distribution" and num_bins < _FEWEST_BINS:
            raise UsageError(f"A distribution has at least {_FEWEST_BINS} bins, not {num_bins}.")
        if not 0 < percentile <= _PER_CENT:
            raise UsageError(f"percentile is above 0 and up to {_PER_CENT}, not {percentile}.")
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
        )
        self.method = method
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario
        self.tensors_to_calibrate: set[str] | None = None
        self._sketches: dict[str, Sketch] = {}

    def augment_graph(self) -> None:
        """Add each tensor to the outputs, and write the model."""
        tensors = self.ordered_tensors()
        _, infos = self.select_tensors_to_calibrate(self.model)
        listed = {value.name for value in self.model.graph.output}
        self.model.graph.output.extend(infos[name] for name in tensors if name not in listed)
        self.tensors_to_calibrate = set(tensors)
        self._order = tensors
        self.write_augmented()

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on data; may be called again with more."""
        self._ready()
        for values in self._runs(data_reader, self._order):
            for tensor, value in zip(self._order, values, strict=True):
                once = Sketch(most=_COUNTED)
                once.observe(value)
                # What is only merged into stays sparse: a table of counts would take half a megabyte a tensor.
                self._sketches.setdefault(tensor, Sketch(most=_COUNTED)).merge(once)

    def compute_data(self) -> TensorsData:
        """Return the ranges of all tensors, with a histogram of each."""
        if not self._sketches:
            raise UsageError("No data was collected; call collect_data first.")
        find = self._distribution if self.method == "distribution" else self._range
        found = {tensor: find(sketch) for tensor, sketch in self._sketches.items()}
        return TensorsData(self.calibration_method, found)

    def _range(self, sketch: Sketch) -> TensorData:
        if self.method == "entropy":
            levels = self.num_quantized_bins
            ends = (Entropy() if levels is None else Entropy(levels=levels))(sketch)
        else:
            ends = Percentile(keep=self.percentile)(sketch)
        low, high = ends.low[0], ends.high[0]
        if self.symmetric:
            high = max(-low, high)
            low = -high
        hist, edges = _linear(sketch, self.num_bins)
        lowest, highest = np.array(low, np.float32), np.array(high, np.float32)
        return TensorData(lowest=lowest, highest=highest, hist=hist, bins=edges)

    def _distribution(self, sketch: Sketch) -> TensorData:
        """Return mean and deviation of the values, for 8-bit floats; the range is symmetric and holds all."""
        hist, edges = _linear(sketch, self.num_bins)
        bins = sketch.histogram()
        values = np.cbrt(bins.center) if self.scenario == "p3" else bins.center
        total = max(int(bins.count.sum()), 1)
        mean = float((values * bins.count).sum() / total)
        deviation = float(np.sqrt((np.square(values - mean) * bins.count).sum() / total))
        if self.scenario == "same" and bins.count.sum():
            mean, deviation = float(sketch.mean[0]), float(sketch.std[0])
        return TensorData(
            avg=np.array(mean, np.float32),
            std=np.array(deviation, np.float32),
            hist=hist,
            hist_edges=edges,
            lowest=edges[0],
            highest=edges[-1],
        )


def _linear(sketch: Sketch, bins: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return counts in bins of one width from -t to t, t the largest magnitude, and their edges."""
    low, high = (0.0, 0.0) if sketch.empty else sketch.bounds
    t = max(-low, high, 0.0)
    fine = sketch.histogram() if t else None
    edges = np.linspace(-t, t, bins + 1)
    if fine is None:
        return np.zeros(bins, np.int64), edges.astype(np.float32)
    counts, _ = np.histogram(fine.center, bins=edges, weights=fine.count)
    return counts.astype(np.int64), edges.astype(np.float32)


class EntropyCalibrater(HistogramCalibrater):
    """The range whose quantized distribution diverges least from what was seen."""

    calibration_method = CalibrationMethod.Entropy

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
        method: str = "entropy",
        symmetric: bool = False,  # noqa: FBT001
        num_bins: int = 128,
        num_quantized_bins: int | None = None,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            symmetric,
            num_bins,
            num_quantized_bins,
        )


class PercentileCalibrater(HistogramCalibrater):
    """The range that keeps a share of the values."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
        method: str = "percentile",
        symmetric: bool = False,  # noqa: FBT001
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            symmetric,
            num_bins,
            percentile=percentile,
        )


class DistributionCalibrater(HistogramCalibrater):
    """Mean and deviation of the values, which scale 8-bit floats; the range holds every value."""

    calibration_method = CalibrationMethod.Distribution

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
        method: str = "distribution",
        num_bins: int = 2048,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method,
            num_bins=num_bins,
            scenario=scenario,
        )


_SETTINGS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "MinMax": (
        MinMaxCalibrater,
        (
            "symmetric",
            "moving_average",
            "averaging_constant",
            "max_intermediate_outputs",
            "per_channel",
        ),
    ),
    "Entropy": (EntropyCalibrater, ("symmetric", "num_bins", "num_quantized_bins")),
    "Percentile": (PercentileCalibrater, ("symmetric", "num_bins", "percentile")),
    "Distribution": (DistributionCalibrater, ("num_bins", "scenario")),
}


def create_calibrator(  # noqa: PLR0913 - onnxruntime's signature
    model: str | Path | onnx.ModelProto,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | Path = _AUGMENTED,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a calibrater by its method, with the augmented model written and loaded.

    Args:
        model: The float model.
        op_types_to_calibrate: Observe what these read and make; None or empty: every operator.
        augmented_model_path: Where the augmented model is written.
        calibrate_method: Which calibrater.
        use_external_data_format: Write the weights of the augmented model to a file of their own.
        providers: Who runs it; None: the CPU.
        extra_options: Settings of the calibrater, by the names of its parameters.

    Raises:
        UsageError: There is no such method or setting.
    """
    name = str(getattr(calibrate_method, "name", calibrate_method))
    if name not in _SETTINGS:
        raise UsageError(
            f"Unknown calibration method {calibrate_method!r}: use one of {', '.join(_SETTINGS)}."
        )
    made, settings = _SETTINGS[name]
    usual = {"symmetric": True} if name == "Percentile" else {}
    given = {**usual, **(extra_options or {})}
    every = {setting for _, names in _SETTINGS.values() for setting in names}
    strange = next((key for key in given if key not in every), None)
    if strange is not None:
        raise UsageError(f"{made.__name__} has no option '{strange}': use {', '.join(settings)}.")
    idle = [key for key in given if key not in settings]
    if idle:
        _LOG.warning("No effect on %s: %s.", made.__name__, ", ".join(idle))
    found = made(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **{key: value for key, value in given.items() if key in settings},
    )
    found.augment_graph()
    if providers:
        found.execution_providers = providers
    found.create_inference_session()
    return found


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)

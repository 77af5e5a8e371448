"""Run a `torch.nn.Module`, and export it: by `torch.export`, or by the older exporter, which follows one run.

`torch.export` refuses a dimension that is asked to be dynamic and that the code fixes. Where in the user's code that is, it
does not say: its logger does, which writes when it happens, deep in the stack of the very line that is looked for.
The older exporter fixes in silence: it comes second, is named, and what it writes passes the same proof.
"""

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from quantkit.deploy.export.framework import Exported, Feeds, Limit
from quantkit.deploy.export.inputs import Bound, Inputs
from quantkit.deploy.export.tidy import layers_of
from quantkit.deploy.export.user_code import (
    Line,
    blamed,
    hushed,
    innermost,
    is_users,
    line_of,
    need_torch,
    placed,
    quiet_import,
)
from quantkit.errors import ModelError
from quantkit.installation import install_command

if TYPE_CHECKING:
    from quantkit.deploy.export.torch_module import TorchModule


def called(module: Any, feeds: Feeds, named: Collection[str]) -> list[tuple[str, NDArray[Any]]]:
    """Run a module; return its outputs, flat, with the names that they suggest.

    Args:
        module: The module.
        feeds: Its inputs.
        named: Those that are given by name; the others in their order.
    """
    torch = need_torch()
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in feeds.items()}
    placed = [value for name, value in tensors.items() if name not in named]
    with (
        torch.no_grad(),
        plain_attention(),
        redirect_stdout(sys.stderr),
    ):  # prints are no part of --json
        given = module(*placed, **{name: tensors[name] for name in named})
    return [(name, as_numpy(value, name)) for name, value in flattened(given)]


def as_numpy(value: Any, name: str) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32."""
    torch = need_torch()
    tensor = value.detach().cpu()
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise ModelError(
            f"Output '{name}' is complex or sparse, which ONNX models cannot give: return torch.view_as_real(y), y.abs() or "
            "y.to_dense()."
        )
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy().copy()
    return array


def flattened(given: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the tensors in what a module gives, with names: keys of dicts, fields of named tuples, else numbers.

    Raises:
        ModelError: There is something else in it.
    """
    if given is None:
        return []
    if isinstance(given, need_torch().Tensor):
        return [(name or "output", given)]
    return [pair for key, value in _parts(given, name) for pair in flattened(value, key)]


def _parts(given: Any, name: str) -> list[tuple[str, Any]]:
    """Return the members of a list, a dict or a record, with the names that they get."""
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        base = name or "output"
        several = len(given) > 1
        return [(f"{base}_{i}" if several else base, value) for i, value in enumerate(given)]
    if isinstance(given, Mapping):
        parts = [(str(key), value) for key, value in given.items()]
    elif hasattr(given, "_fields"):
        parts = list(zip(given._fields, given, strict=True))
    elif is_dataclass(given):
        parts = [(f.name, getattr(given, f.name)) for f in fields(given)]
    else:
        raise ModelError(
            f"The model gives a {type(given).__name__} as '{name or 'output'}', which is no tensor: return tensors, or "
            "lists and dicts of them."
        )
    return [(f"{name}_{key}" if name else key, value) for key, value in parts]


def same_outputs(
    one: Sequence[tuple[str, NDArray[Any]]], other: Sequence[tuple[str, NDArray[Any]]]
) -> bool:
    """Say whether two runs gave the same, bit for bit."""
    return [name for name, _ in one] == [name for name, _ in other] and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for (_, a), (_, b) in zip(one, other, strict=True)
    )


@contextmanager
def plain_attention() -> Iterator[None]:
    """Keep torch's Transformer layers from their fast path: it is not exported, and puts zeros where a mask hides."""
    kernels = need_torch().backends.mha
    before = kernels.get_fastpath_enabled()
    kernels.set_fastpath_enabled(False)
    try:
        yield
    finally:
        kernels.set_fastpath_enabled(before)


PREFIX = "model."
"""Of the names of weights and parts, in the wrapper that is traced."""

# Operators that know of training, with the place of that argument.
_TRAINING = {
    "aten.batch_norm": 5,
    "aten.dropout": 2,
    "aten.native_dropout": 2,
    "aten.feature_dropout": 2,
}
_OLDEST = 18  # opset that the new exporter writes
_NEWEST_OF_OLD = 20  # opset that the older one writes
_FAR = 1 << 31
_LOGGER = "torch.fx.experimental.symbolic_shapes"
_RECURRENT = ("nn/modules/rnn.py", "nn\\modules\\rnn.py")
_SYMBOL = re.compile(r"create_symbol (\w+) = \d+ for L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
_REPLACED = re.compile(r"set_replacement (\w+) = (\d+)\b")
_GUARD = re.compile(r"eval (.+?) \[guard added\]")


class FrozenError(ModelError):
    """A dynamic dimension became a number at the sizes of the example.

    Attributes:
        dimension: Its name.
        line: Of the user's code; None: it was none of that.
    """

    def __init__(self, message: str, dimension: str, line: Line | None) -> None:
        super().__init__(message)
        self.dimension = dimension
        self.line = line


def _flat(job: "TorchModule") -> Any:
    """Return a module that takes inputs in their order and gives a flat tuple; TorchScript is one as it is."""
    if isinstance(job.module, need_torch().jit.ScriptModule):
        return job.module
    torch, names = need_torch(), [spec.name for spec in job.inputs.specs]
    inner, by_name = job.module, job.named

    class Flat(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(names, tensors, strict=True))
            given = self.model(**named) if by_name else self.model(*tensors)
            return tuple(value for _, value in flattened(given))

    return Flat().eval()


def _tensors(job: "TorchModule") -> tuple[Any, ...]:
    """Return the inputs as tensors."""
    feeds = job.inputs.feeds(job.sizes, seed=0)
    return tuple(need_torch().from_numpy(value) for value in feeds.values())


def need_exporter() -> None:
    """Import what torch's exporter needs.

    Raises:
        UsageError: It is not installed.
    """
    quiet_import("onnxscript", f"torch's exporter needs onnxscript: {install_command('export')}.")


def traced(job: "TorchModule", folder: Path, opset: int, *, older: str = "") -> Exported:
    """Write a module as ONNX into a folder.

    Args:
        job: What is traced.
        folder: Where to write.
        opset: Which opset; below 18 only the older exporter has it.
        older: Why the older exporter is to be used; "": it is not.

    Raises:
        ModelError: It freezes a dynamic dimension, decides by values, or neither exporter can write it.
    """
    if older or opset < _OLDEST:
        why = older or f"the new one writes opset {_OLDEST} and above"
        return _by_trace(job, folder, opset, f"the older exporter was used: {why}")
    need_exporter()
    watch = _Watch(job.inputs)
    try:
        return _by_program(job, folder, opset, watch)
    except ModelError:
        raise
    except Exception as e:  # noqa: BLE001 - torch raises whatever its parts do
        first = blamed(_beneath(e))
        note = f"torch's new exporter cannot write this model ({first}); the older one was used"
        if watch.recurrent:
            note = "torch's new exporter unrolls recurrent layers at one length; the older one, which keeps them, was used"
        else:
            _refuse_known(e, watch)
        try:
            return _by_trace(job, folder, opset, note)
        except ModelError as second:
            raise ModelError(
                f"torch cannot export this model: {first}; nor can its older exporter: {second}"
            ) from e


def _beneath(error: BaseException) -> BaseException:
    """Return what the exporter's own errors wrap in advice."""
    while type(error).__module__.startswith("torch.onnx") and error.__cause__ is not None:
        error = error.__cause__
    return error


def _by_program(job: "TorchModule", folder: Path, opset: int, watch: "_Watch") -> Exported:
    torch = need_torch()
    dynamic = tuple(
        {a: torch.export.Dim.DYNAMIC for a, d in enumerate(spec.dims) if isinstance(d, str)}
        for spec in job.inputs.specs
    )
    with hushed(), watch, torch.no_grad(), plain_attention():
        program = torch.export.export(
            _flat(job), _tensors(job), dynamic_shapes={"tensors": dynamic}, strict=False
        )
    refuse_training_calls(program)
    path, layers = program_to_onnx(program, folder, opset)
    return Exported(
        path=path,
        exporter="torch.export",
        sizes=job.sizes,
        limits=limits_of(program, job.inputs, watch.line_for),
        layers=layers,
    )


def program_to_onnx(program: Any, folder: Path, opset: int) -> tuple[Path, dict[str, str]]:
    """Write an exported program as ONNX; return the file, and the tensors of its parts."""
    torch = need_torch()
    path = folder / "exported.onnx"
    with hushed():
        done = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
        done.save(str(path), external_data=True)
    return path, layers_of(done.model, PREFIX)


def refuse_training_calls(program: Any) -> None:
    """Refuse operators that are asked to do as in training, whatever mode the model is in.

    Raises:
        ModelError: There is one; the message names the user's line.
    """
    for node in program.graph.nodes:
        name = str(node.target)
        for operator, place in _TRAINING.items():
            if name.startswith(operator) and len(node.args) > place and node.args[place] is True:
                line = _line_in(str(node.meta.get("stack_trace") or ""))
                where = f" at {placed(line)}" if line else ""
                raise ModelError(
                    f"{operator.removeprefix('aten.')} runs as in training{where}: pass training=self.training, and put the "
                    "model into evaluation mode."
                )


def _line_in(trace: str) -> Line | None:
    """Return the user's line in a stack trace that was written down."""
    found = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)', trace)
    lines = [(file, int(number), text.strip()) for file, number, text in found if is_users(file)]
    return lines[-1] if lines else None


def limits_of(
    program: Any, inputs: Inputs, line_for: Callable[[str], Line | None]
) -> dict[str, Limit]:
    """Return for which sizes of dynamic dimensions an exported program holds."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    ranges = {str(s): r for s, r in program.range_constraints.items()}
    found: dict[str, Limit] = {}
    for name, spec in zip(program.graph_signature.user_inputs, inputs.specs, strict=True):
        shape = getattr(nodes[name].meta.get("val"), "shape", ())
        for symbol, dim in zip(map(str, shape), spec.dims, strict=False):
            if isinstance(dim, str) and symbol in ranges:
                holds = bound_of(ranges[symbol])
                found[dim] = Limit(least=holds.least, most=holds.most, line=line_for(symbol))
    return found


def bound_of(found: Any) -> Bound:
    """Return torch's range of a size. Tracing takes sizes of 0 and 1 for others: that it begins at 2 says nothing."""
    least = _end(found.lower)
    return Bound(least=least if least and least > 2 else 1, most=_end(found.upper))


def _end(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return number if abs(number) < _FAR else None


def _by_trace(job: "TorchModule", folder: Path, opset: int, note: str) -> Exported:
    torch = need_torch()
    path = folder / "exported.onnx"
    axes = {
        spec.name: {a: d for a, d in enumerate(spec.dims) if isinstance(d, str)}
        for spec in job.inputs.specs
    }
    with ExitStack() as stack:
        told = stack.enter_context(warnings.catch_warnings(record=True))
        for quiet in (
            hushed(ignore=False),
            _no_native_output(),
            torch.no_grad(),
            plain_attention(),
        ):
            stack.enter_context(quiet)
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                _flat(job),
                _tensors(job),
                str(path),
                dynamo=False,
                input_names=list(axes),
                output_names=list(job.outputs),
                dynamic_axes={name: found for name, found in axes.items() if found},
                opset_version=min(opset, _NEWEST_OF_OLD),
            )
        except Exception as e:
            raise ModelError(f"{blamed(e)}.") from e
    for warning in told:
        if "Python boolean" in str(warning.message) and is_users(warning.filename):
            line = _read_line(warning.filename, warning.lineno)
            raise ModelError(_decides(line))
    return Exported(
        path=path,
        exporter="torch's older exporter",
        sizes=job.sizes,
        second=note,
    )


def _read_line(file: str, number: int) -> Line:
    import linecache

    return file, number, linecache.getline(file, number).strip()


def _refuse_known(error: Exception, watch: "_Watch") -> None:
    """Raise what can be said better than torch does: a frozen dimension, a decision by values."""
    if watch.frozen:
        symbol, (size, line) = next(iter(watch.frozen.items()))
        name, dim = watch.symbols[symbol]
        where = f" at {placed(line)}" if line else ""
        raise FrozenError(
            f"Dimension '{dim}' of input '{name}' is frozen at {size}{where}: {_cure(line)}; or write the number in --input.",
            dim,
            line,
        ) from error
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    if any("data-dependent" in str(e) for e in chain):
        raise ModelError(_decides(line_of(error))) from error


def _decides(line: Line | None) -> str:
    """Say that values decide which code runs, and what to write instead."""
    where = placed(line) if line else "a line that torch does not name"
    text = line[2] if line else ""
    if re.search(r"\.item\(|\bint\(|\bfloat\(|\.tolist\(", text):
        return (
            f"The model makes a Python number of a value at {where}, which a file cannot hold: keep it a tensor (without "
            ".item(), int() or float())."
        )
    return (
        f"Values decide which code runs at {where}, and a file would keep one branch: use torch.where(condition, a, b), or "
        "torch.cond(condition, f, g, inputs)."
    )


def _cure(line: Line | None) -> str:
    """Say what to change on a line that fixes a size."""
    text = line[2] if line else ""
    if re.search(r"\bfor\b|\bunbind\b|\bsplit\b|\bchunk\b|\bzip\(|\benumerate\(|\blist\(", text):
        return "a loop over it runs as often as for the example: write it as one operation on the whole tensor"
    if re.search(r"\bint\(|\bnp\.|\bmath\.|\bfloat\(|\bnumpy\(", text):
        return "int() and numpy make a number of a size: use x.shape[...] as it is"
    if re.search(r"\.(view|reshape|expand|repeat|unflatten)\(", text):
        return "a number stands where the size belongs: write -1 or x.shape[...]"
    return (
        "a number, a parameter or a buffer of that size fixes it: give it size 1, so that it broadcasts, or take the size "
        "from x.shape[...]"
    )


@dataclass(slots=True)
class _Watch:
    """Listens to torch's log of sizes while the user's code is on the stack.

    Attributes:
        inputs: What is traced.
        symbols: Input and dynamic dimension of each of torch's symbols.
        frozen: Symbols that became numbers, with the user's line.
        guards: What sizes were compared with, with the user's line.
        recurrent: Whether it was torch's own GRU, LSTM or RNN that made a number of a size.
    """

    inputs: Inputs
    symbols: dict[str, tuple[str, str]] = field(default_factory=dict)
    frozen: dict[str, tuple[int, Line | None]] = field(default_factory=dict)
    guards: list[tuple[str, Line | None]] = field(default_factory=list)
    recurrent: bool = False
    _handler: Any = None
    _level: int = 0

    def __enter__(self) -> Self:
        handler = logging.Handler()
        handler.emit = self._heard  # type: ignore[method-assign]
        logger = logging.getLogger(_LOGGER)
        self._handler, self._level = handler, logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger(_LOGGER)
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)

    def line_for(self, symbol: str) -> Line | None:
        """Return the user's line that compared a size with something."""
        word = re.compile(rf"\b{re.escape(symbol)}\b")
        return next((line for guard, line in self.guards if line and word.search(guard)), None)

    def _heard(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if found := _SYMBOL.match(text):
            spec = self.inputs.specs[int(found[2])]
            self.symbols[found[1]] = spec.name, str(spec.dims[int(found[3])])
        elif found := _REPLACED.match(text):
            if found[1] in self.symbols:
                stack = _forward_stack()
                self.frozen.setdefault(found[1], (int(found[2]), innermost(stack)))
                self.recurrent |= any(f.filename.endswith(_RECURRENT) for f in stack)
        elif found := _GUARD.match(text):
            self.guards.append((found[1], innermost(_forward_stack())))


def _forward_stack() -> traceback.StackSummary:
    """Return what is being run within forward() now."""
    stack = traceback.extract_stack()
    wraps = [i for i, f in enumerate(stack) if f.filename == __file__ and f.name == "forward"]
    return traceback.StackSummary.from_list(stack[wraps[-1] + 1 :] if wraps else [])


@contextmanager
def _no_native_output() -> Iterator[None]:
    """Keep the older exporter from printing whole graphs: its C++ part writes past Python's streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nowhere = (os.dup(1), os.dup(2)), os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, own in zip((1, 2), kept, strict=True):
            os.dup2(own, stream)
            os.close(own)
        os.close(nowhere)

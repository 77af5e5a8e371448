"""Files of torch that hold a model without its Python code: ``.pt2`` exported programs, and TorchScript."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Outputs, output_names
from quantkit.deploy.export.inputs import DTYPES, Bound, Inputs, InputSpec, with_sizes
from quantkit.deploy.export.torch_module import ready_module, state_digest
from quantkit.deploy.export.torch_trace import (
    bound_of,
    called,
    limits_of,
    need_exporter,
    program_to_onnx,
    refuse_training_calls,
    same_outputs,
)
from quantkit.deploy.export.user_code import hushed, need_torch, said_by, user_code
from quantkit.errors import ModelError, UsageError
from quantkit.settings import ExportSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchProgram(Framework):
    """An exported program; its types are fixed, and its parts have no names.

    Attributes:
        program: What torch loaded.
        module: The same, to be called.
        sizes: Of dynamic dimensions, that it was exported with.
        keywords: What the last inputs are called, which are given by name.
    """

    program: Any
    module: Any
    sizes: Mapping[str, int]
    keywords: tuple[str, ...]

    def run(self, feeds: Feeds) -> Outputs:
        """Run the program as it is."""
        found = _called(self.module, feeds, self.keywords)
        return {n: v for n, (_, v) in zip(self.outputs, found, strict=True)}

    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder."""
        need_exporter()
        try:
            path, _ = program_to_onnx(self.program, folder, opset)
        except Exception as e:
            raise ModelError(f"torch's exporter cannot write this program: {said_by(e)}.") from e
        limits = limits_of(self.program, self.inputs, lambda _: None)
        return Exported(path=path, exporter="torch.export", sizes=self.sizes, limits=limits)


def _called(module: Any, feeds: Feeds, keywords: tuple[str, ...]) -> list[tuple[str, Any]]:
    names = [*list(feeds)[: len(feeds) - len(keywords)], *keywords]
    return called(module, dict(zip(names, feeds.values(), strict=True)), keywords)


def open_program(path: Path, given: Inputs | None, settings: ExportSettings) -> Framework:
    """Load a ``.pt2`` file; its inputs are those that it was exported with.

    Args:
        path: The file.
        given: Inputs that the user described; None: the program's own.
        settings: Names of outputs.

    Raises:
        ModelError: It cannot be read, or gives two answers for one input.
        UsageError: The inputs given are not those of the program.
    """
    torch = need_torch()
    try:
        with hushed():
            program = torch.export.load(path)
            module = program.module()
    except Exception as e:
        raise ModelError(f"torch cannot read '{path}' as an exported program: {said_by(e)}.") from e
    refuse_training_calls(program)
    inputs, example = _inputs_of(program)
    inputs = with_sizes(inputs, settings.sizes) if given is None else _agreed(inputs, given)
    keywords = tuple((program.example_inputs or ((), {}))[1])
    sizes = {
        d: n
        for spec, shape in zip(inputs.specs, example, strict=True)
        for d, n in zip(spec.dims, shape, strict=True)
        if isinstance(d, str)
    }
    feeds = inputs.feeds(sizes, seed=0)
    with user_code("The program"):
        found = _called(module, feeds, keywords)
        again = _called(module, feeds, keywords)
    if not same_outputs(found, again):
        raise ModelError(
            "The program gives two answers for one input: it was exported in training mode, or with noise; export it again "
            "after model.eval()."
        )
    digest, nbytes = state_digest(program.state_dict)
    return TorchProgram(
        name="torch",
        version=str(torch.__version__),
        inputs=inputs,
        outputs=output_names([name for name, _ in found], settings.outputs, inputs),
        weights=digest,
        nbytes=nbytes,
        program=program,
        module=module,
        sizes=sizes,
        keywords=keywords,
    )


def _inputs_of(program: Any) -> tuple[Inputs, list[tuple[int, ...]]]:
    """Return the inputs of a program, and the shapes that it was exported with."""
    torch = need_torch()
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    ranges = {str(s): r for s, r in program.range_constraints.items()}
    names: dict[str, str] = {}
    bounds: dict[str, Bound] = {}
    specs, shapes = [], []
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta.get("val") if isinstance(name, str) and name in nodes else None
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"Input '{name}' of the program is no tensor, which ONNX wants.")
        dims: list[int | str] = []
        for axis, size in enumerate(value.shape):
            if isinstance(size, int):
                dims.append(size)
                continue
            usual = "batch" if axis == 0 else f"{name}_{axis}"
            dims.append(names.setdefault(str(size), usual))
            known = ranges.get(str(size))
            bounds[names[str(size)]] = Bound() if known is None else bound_of(known)
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in DTYPES:
            raise ModelError(
                f"Input '{name}' of the program is {kind}: export it with one of {', '.join(DTYPES)}."
            )
        specs.append(InputSpec(name=name, dtype=kind, dims=tuple(dims)))
        shapes.append(tuple(_hint(size) for size in value.shape))
    return Inputs(specs=tuple(specs), bounds=bounds), shapes


def _hint(size: Any) -> int:
    """Return the size that a dynamic dimension had."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return int(hint) if hint is not None else 3


def _agreed(own: Inputs, given: Inputs) -> Inputs:
    """Return what the user says of a program's inputs, as far as the program is so."""
    if len(own.specs) != len(given.specs):
        raise UsageError(
            f"The program takes {len(own.specs)} inputs ({', '.join(map(str, own.specs))}), and {len(given.specs)} are given."
        )
    for has, said in zip(own.specs, given.specs, strict=True):
        fits = len(has.dims) == len(said.dims) and has.dtype == said.dtype
        frozen = [
            s for h, s in zip(has.dims, said.dims, strict=False) if isinstance(h, int) and h != s
        ]
        if not fits or frozen:
            why = f": '{frozen[0]}' was fixed when it was exported" if fits and frozen else ""
            raise UsageError(f"The program takes {has}, and {said} is given{why}.")
    bounds = dict(given.bounds)
    for has, said in zip(own.specs, given.specs, strict=True):
        for h, s in zip(has.dims, said.dims, strict=True):
            if isinstance(h, str) and isinstance(s, str):
                bounds[s] = bounds[s].within(own.bounds[h])
    return replace(given, bounds=bounds)


def open_script(path: Path, given: Inputs | None, settings: ExportSettings) -> Framework:
    """Load a TorchScript file; only torch's older exporter reads such.

    Args:
        path: The file.
        given: Its inputs, which the file does not tell.
        settings: Names of outputs.

    Raises:
        ModelError: It cannot be read.
        UsageError: No inputs are given.
    """
    torch = need_torch()
    try:
        with hushed():
            module = torch.jit.load(str(path), map_location="cpu")
    except Exception as e:
        raise ModelError(f"torch cannot read '{path}' as TorchScript: {said_by(e)}.") from e
    return ready_module(module, given, replace(settings, legacy=True), str(path))

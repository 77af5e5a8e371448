"""A `torch.nn.Module`: loaded with weights, made ready and run; `torch_trace` exports it. torch is imported when it is used."""

import copy
import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Outputs, output_names
from quantkit.deploy.export.inputs import DTYPES, Inputs
from quantkit.deploy.export.torch_trace import (
    PREFIX,
    FrozenError,
    as_numpy,
    called,
    same_outputs,
    traced,
)
from quantkit.deploy.export.user_code import blamed, need_torch, quiet_import, said_by, user_code
from quantkit.errors import ModelError, UsageError
from quantkit.settings import ExportSettings


def with_weights(module: Any, path: Path) -> list[str]:
    """Load weights into a module: safetensors, or what `torch.save` wrote of a state_dict; return notes.

    Raises:
        UsageError: The file is not there, holds other things, or does not fit.
    """
    state = _read_state(path)
    notes = []
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state.get(key), Mapping):
            state = state[key]
            notes.append(f"weights are taken from '{key}' of {path.name}")
            break
    if state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
        notes.append("'module.' in front of all names of weights was left out")
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except (RuntimeError, AttributeError, TypeError) as e:
        last = str(e).strip().splitlines()[-1].strip()
        raise UsageError(f"The weights in '{path}' do not fit the model: {last}") from e
    for names, how in ((missing, "are missing"), (unexpected, "are of no layer of the model")):
        if names:
            raise UsageError(
                f"The weights in '{path}' do not fit the model: {len(names)} {how}, such as '{names[0]}'."
            )
    return notes


def _read_state(path: Path) -> Mapping[str, Any]:
    torch = need_torch()
    if not path.is_file():
        raise UsageError(f"The weights '{path}' do not exist.")
    try:
        if path.suffix == ".safetensors":
            needs = "Weights in safetensors need that package: pip install safetensors."
            found = quiet_import("safetensors.torch", needs).load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UsageError:
        raise
    except Exception as e:  # torch and safetensors raise whatever a file makes of them
        # torch's own words advise to read the pickle after all.
        pickled = type(e).__name__ == "UnpicklingError"
        why = "it is a pickle of something else, or no file of torch" if pickled else said_by(e)
        raise UsageError(
            f"The weights '{path}' cannot be read as tensors alone ({why}): save them with "
            "torch.save(model.state_dict(), path) or as safetensors."
        ) from e
    if not isinstance(found, Mapping):
        raise UsageError(f"'{path}' holds a {type(found).__name__}, not a state_dict.")
    return found


def state_digest(state: Mapping[str, Any]) -> tuple[str, int]:
    """Return the SHA-256 of all tensors of a state_dict by their names, and their bytes."""
    digest, nbytes = sha256(), 0
    torch = need_torch()
    for name, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor):
            continue
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)};".encode())
        flat = tensor.reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        nbytes += tensor.nbytes
    return digest.hexdigest(), nbytes


_PROBED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 64, 128)
_SHOWN = 3  # names in a sentence
_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse")


def _signature_hint(module: Any) -> str:
    """Return what to give as --input, made of forward()'s signature."""
    names = _parameters(module, needed=True)
    return " ".join(f"--input '{_likely(name)}'" for name in names or ["x"])


def _likely(name: str) -> str:
    lower = name.lower()
    if "mask" in lower:
        return f"{name}:int64[batch,seq]{{0..1}}"
    if "ids" in lower or "token" in lower:
        return f"{name}:int64[batch,seq]{{0..30521}}"
    if "image" in lower or "pixel" in lower or "img" in lower:
        return f"{name}:float32[batch,3,224,224]"
    return f"{name}:float32[batch,16]"


def _parameters(module: Any, *, needed: bool = False) -> list[str]:
    """Return the names of forward()'s parameters; `needed`: those without a default."""
    schema = getattr(getattr(module, "forward", None), "schema", None)  # of TorchScript
    if schema is not None:
        return [a.name for a in schema.arguments[1:] if not (needed and a.has_default_value())]
    try:
        found = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return []
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return [p.name for p in found if p.kind in kinds and not (needed and p.default is not p.empty)]


def _takes_any_name(module: Any) -> bool:
    """Say whether forward() ends in ``**inputs``, and has no ``*inputs`` that they might belong to."""
    try:
        kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    except (TypeError, ValueError, AttributeError):
        return False
    return kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL} == {
        inspect.Parameter.VAR_KEYWORD
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModule(Framework):
    """A module in evaluation mode.

    Attributes:
        module: The module.
        named: Names of the inputs that are given by name; others in their order.
        sizes: Of dynamic dimensions, that it is traced at.
        legacy: Whether the older exporter is asked for.
    """

    module: Any
    named: tuple[str, ...]
    sizes: Mapping[str, int]
    legacy: bool = False

    def run(self, feeds: Feeds) -> Outputs:
        """Run the model as it is."""
        values = called(self.module, feeds, self.named)
        return dict(zip(self.outputs, (array for _, array in values), strict=True))

    def run_wide(self, feeds: Feeds) -> Outputs | None:
        """Run a copy in float64; None where that cannot be done."""
        try:
            wide = copy.deepcopy(self.module).double()
            given = {
                k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()
            }
            values = called(wide, given, self.named)
        except Exception:  # noqa: BLE001 - a model that names float32 somewhere: then there is no second opinion
            return None
        return dict(zip(self.outputs, (array for _, array in values), strict=True))

    def inner(self, feeds: Feeds) -> Outputs:
        """Run it; return what its submodules give, by their names; not those that run more than once."""
        with _watched(self.module) as seen:
            self.run(feeds)
        return {name: found[0] for name, found in seen.items() if len(found) == 1}

    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder.

        Raises:
            ModelError: The exporter refuses it; the message names the line of code.
        """
        rough = any(p.dtype == need_torch().bfloat16 for p in self.module.parameters())
        doubt = "its weights are bfloat16, which each runtime rounds in its own way: return model.float()"
        return replace(self._traced(folder, opset), doubt=doubt if rough else "")

    def _traced(self, folder: Path, opset: int) -> Exported:
        scripted = isinstance(self.module, need_torch().jit.ScriptModule)
        older = "it alone reads TorchScript" if scripted else "as asked" if self.legacy else ""
        try:
            return traced(self, folder, opset, older=older)
        except FrozenError as first:
            # Where small sizes shrink to 1 inside of the model, only larger ones are traced as dynamic.
            for sizes in self.inputs.traced():
                if sum(sizes.values()) <= sum(self.sizes.values()):
                    continue
                if _runs(self.module, self.inputs, sizes, self.named):
                    with suppress(FrozenError):
                        return traced(replace(self, sizes=sizes), folder, opset)
            if (
                first.line is None
            ):  # no code of the user's: torch's own layers do not export otherwise
                with suppress(ModelError):
                    why = f"the new one freezes '{first.dimension}'"
                    return traced(self, folder, opset, older=why)
            raise first from first.__cause__


def ready_module(
    module: Any,
    inputs: Inputs | None,
    settings: ExportSettings,
    what: str,
) -> TorchModule:
    """Load the weights that are asked for, put a module into evaluation mode and find inputs that it runs on.

    Args:
        module: The module.
        inputs: What it takes; None: the user did not say it.
        settings: Its weights, names for its outputs (none: dict keys, fields of named tuples, or "output"), which exporter.
        what: The model, in a message.

    Raises:
        UsageError: Its inputs are not described.
        ModelError: It does not run, is in training form, or gives two answers for one input.
    """
    torch = need_torch()
    notes = [] if settings.weights is None else with_weights(module, settings.weights)
    if inputs is None:
        raise UsageError(
            f"Missing input description of '{what}': add {_signature_hint(module)} or --example x.npz."
        )
    module = getattr(module, "_orig_mod", module)  # of torch.compile: the model itself is the same
    _refuse_unready(module)
    was_training = bool(getattr(module, "training", False))
    with user_code("eval() of the model"):
        module.eval()
        module.to("cpu")
    _refuse_training(module)
    by_name = _given_by_name(module, inputs)
    inputs, sizes = _that_run(module, inputs, by_name)
    names, said = _same_twice(module, inputs.feeds(sizes, seed=0), by_name)
    digest, nbytes = state_digest(module.state_dict())
    if _zeroes_padding(module) and any(spec.is_mask for spec in inputs.specs):
        said.append(
            "at padded places torch's fast path of nn.TransformerEncoder gives zeros, and the file what the layers compute: "
            "do not use them"
        )
    if inputs.drawn:
        said.append(
            "the model does not run on made-up values: it was proved on rows of the example alone"
        )
    if was_training:
        said = ["switched the model from train() to eval()", *said]
    scripted = isinstance(module, torch.jit.ScriptModule)
    return TorchModule(
        name="torch",
        version=str(torch.__version__),
        inputs=inputs,
        outputs=output_names(names, settings.outputs, inputs),
        weights=digest,
        nbytes=nbytes,
        prefix="" if scripted else PREFIX,
        notes=(*notes, *said),
        module=module,
        named=by_name,
        sizes=sizes,
        legacy=settings.legacy,
    )


def _zeroes_padding(module: Any) -> bool:
    encoder = need_torch().nn.TransformerEncoder
    return any(isinstance(m, encoder) and m.use_nested_tensor for m in module.modules())


def _refuse_unready(module: Any) -> None:
    """Refuse modules without values, and those that torch quantized."""
    for name, part in module.named_modules():
        if type(part).__module__.startswith(_QUANTIZED):
            raise ModelError(
                f"'{name}' ({type(part).__name__}) was quantized by torch, which does not export: give the float model, and "
                "quantize the file with 'quantkit quantize'."
            )
    held = (*module.named_parameters(), *module.named_buffers())
    empty = next((name for name, tensor in held if tensor.is_meta), None)
    if empty is not None:
        raise ModelError(
            f"'{empty}' is on the meta device, which holds no values: make the model without torch.device('meta'), or fill "
            "it with load_state_dict(state, assign=True)."
        )


def _refuse_training(module: Any) -> None:
    """Refuse what eval() leaves as it is in training."""
    torch = need_torch()
    left = [(name, type(m).__name__) for name, m in module.named_modules() if m.training]
    if left:
        named = ", ".join(
            f"'{name or 'the model itself'}' ({kind})" for name, kind in left[:_SHOWN]
        )
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise ModelError(
            f"After model.eval() these are still in training mode: {named}{more}; a train() or eval() of the model's own "
            "keeps them there: let it call super().train(mode)."
        )
    norms = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base of all of them
    for name, part in module.named_modules():
        if isinstance(part, norms) and part.running_mean is None:
            raise ModelError(
                f"'{name}' ({type(part).__name__}) has no running statistics (track_running_stats=False) and normalizes by "
                "the batch as in training: the answer for a sample depends on the others. Train it with "
                "track_running_stats=True."
            )


def _given_by_name(module: Any, inputs: Inputs) -> tuple[str, ...]:
    """Return the names of inputs that are called as forward()'s parameters, all or none; some of them would be a slip."""
    known, given = _parameters(module), [spec.name for spec in inputs.specs]
    needed = _parameters(module, needed=True)
    any_name = _takes_any_name(module) and all(name in given for name in needed)
    if given and (any_name or all(name in known for name in given)):
        missing = [name for name in needed if name not in given]
        if missing:
            raise UsageError(
                f"forward() also needs {', '.join(missing)}: {_signature_hint(module)} is how all of them might be given."
            )
        return tuple(given)
    mixed = [name for i, name in enumerate(given) if name in known and known[i : i + 1] != [name]]
    if mixed:
        raise UsageError(
            f"forward() takes {', '.join(known)}, and '{mixed[0]}' is given at another place: name all inputs as forward() "
            "does, or none."
        )
    if known and len(given) < len(needed):
        raise UsageError(
            f"forward() takes {len(needed)} inputs ({', '.join(needed)}), and {len(given)} are given: "
            f"{_signature_hint(module)} is how they might be given."
        )
    return ()


def _that_run(
    module: Any, inputs: Inputs, by_name: Collection[str]
) -> tuple[Inputs, dict[str, int]]:
    """Return inputs whose values and sizes the module runs at: made up, else drawn from the example."""
    try:
        return inputs, _sizes_that_run(module, inputs, by_name)
    except ModelError:
        if inputs.example is None:
            raise
    drawn = replace(inputs, drawn=True)
    return drawn, _sizes_that_run(module, drawn, by_name)


def _sizes_that_run(module: Any, inputs: Inputs, by_name: Collection[str]) -> dict[str, int]:
    """Return sizes of the dynamic dimensions at which the module runs.

    Raises:
        ModelError: There are none; says at which sizes it would run, if only one dimension is to blame.
    """
    failure: Exception | None = None
    first: Mapping[str, int] = {}
    for sizes in inputs.traced():
        try:
            with user_code("forward()"):
                called(module, inputs.feeds(sizes, seed=0), by_name)
        except ModelError as e:
            if e.__cause__ is None:  # it ran, and what it gives is at fault
                raise
            failure, first = failure or e, first or sizes
        else:
            return sizes
    assert failure is not None  # noqa: S101 - at least one was tried
    cause = failure.__cause__ or failure
    said = blamed(cause)
    for name in inputs.bounds:
        running = [
            size
            for size in _PROBED
            if inputs.bounds[name].holds(size)
            and _runs(module, inputs, {**first, name: size}, by_name)
        ]
        if running and max(running) < first[name]:
            raise ModelError(
                f"The model runs at {name}={max(running)} and not at {name}={first[name]} ({said}): bound the dimension in "
                f"--input, such as {name}<={max(running)}."
            )
        if running:
            listed = ", ".join(map(str, running))
            raise ModelError(
                f"The model runs at {name}={listed} and not at {name}={first[name]}, so that '{name}' is no dynamic "
                f"dimension ({said}): a number in its code, or a parameter or buffer of that size, fixes it, or another "
                f"dimension does. Take the size from x.shape, write the number in --input, or one name for both."
            )
    shapes = ", ".join(f"{s.name} {s.dtype}{list(s.shape(first))}" for s in inputs.specs)
    raise ModelError(
        f"forward() fails on {shapes}: {said}{_other_type(module, inputs)}{_range(inputs)}."
    )


def _other_type(module: Any, inputs: Inputs) -> str:
    """Say what to write where inputs and weights are of different types, which frameworks do not mix; else ""."""
    held = {
        str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point()
    }
    given = [spec for spec in inputs.specs if np.dtype(spec.dtype).kind == "f"]
    if len(held) != 1 or all(spec.dtype in held for spec in given):
        return ""
    weights = held.pop()
    if weights not in DTYPES:
        return f"; its weights are {weights}, which inputs cannot be: return model.float()"
    spec = next(spec for spec in given if spec.dtype != weights)
    return f"; its weights are {weights}: write '{replace(spec, dtype=weights)}', or return model.float()"


def _range(inputs: Inputs) -> str:
    """Say how values are described where nobody did, and they may be what a model fails on; else ""."""
    name = next(iter(inputs.unranged()), "")
    return (
        name
        and f"; if values of '{name}' are at fault, add their range to --input, such as {{0..30521}}, or give --example"
    )


def _runs(module: Any, inputs: Inputs, sizes: Mapping[str, int], by_name: Collection[str]) -> bool:
    try:
        with user_code("forward()"):
            called(module, inputs.feeds(sizes, seed=0), by_name)
    except ModelError:
        return False
    return True


def _same_twice(module: Any, feeds: Feeds, by_name: Collection[str]) -> tuple[list[str], list[str]]:
    """Run a module twice on one input; return the names of its outputs, and notes.

    Raises:
        ModelError: It gives two answers; the message names the part that they come from.
    """
    before = {
        name: value.clone()
        for name, value in module.state_dict().items()
        if hasattr(value, "clone")
    }
    with user_code("forward()"):
        with _watched(module) as one:
            first = called(module, feeds, by_name)
        changed = [
            n
            for n, v in module.state_dict().items()
            if n in before and not _same_tensor(v, before[n])
        ]
        with _watched(module) as two:
            second = called(module, feeds, by_name)
    names = [name for name, _ in first]
    same = same_outputs(first, second)
    module.load_state_dict({**module.state_dict(), **before}, strict=False)
    if same:
        return names, [
            f"'{name}' changes whenever the model runs, which the file does not keep"
            for name in changed[:1]
        ]
    if changed:
        raise ModelError(
            f"The model gives two answers for one input: '{changed[0]}' changes whenever it runs. State is no part of an "
            "ONNX model: make it an input and an output."
        )
    raise ModelError(
        f"The model gives two answers for one input: noise comes from {_noisy(module, one, two)}; take it out for inference."
    )


def _same_tensor(one: Any, other: Any) -> bool:
    torch = need_torch()
    return bool(one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num()))


def _noisy(module: Any, one: Mapping[str, list[Any]], two: Mapping[str, list[Any]]) -> str:
    """Name the first part that gives two answers, or the model's own forward(), where such calls usually stand."""
    kinds = dict(module.named_modules())
    for name, found in one.items():
        again = two.get(name, [])
        if len(found) != len(again) or not all(map(np.array_equal, found, again)):
            return f"'{name}' ({type(kinds[name]).__name__})"
    return f"forward() of {type(module).__name__} itself (a dropout with training=True, torch.rand, or state in an attribute)"


@contextmanager
def _watched(module: Any) -> Iterator[dict[str, list[NDArray[Any]]]]:
    """Keep what every submodule gives, by its name, in the order in which they end."""
    torch = need_torch()
    seen: dict[str, list[NDArray[Any]]] = {}

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, given: Any) -> None:
            first = given[0] if isinstance(given, list | tuple) and given else given
            if isinstance(first, torch.Tensor) and not first.is_complex():
                seen.setdefault(name, []).append(as_numpy(first, name))

        return hook

    parts = ((n, m) for n, m in module.named_modules() if n)
    scripted = torch.jit.ScriptModule  # takes no hooks
    handles = [m.register_forward_hook(keep(n)) for n, m in parts if not isinstance(m, scripted)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()

"""Weights of a `torch.nn.Module`: read as tensors alone, and what names them."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.deploy.export.blame import said_by
from quantkit.deploy.export.user_code import need_torch, quiet_import
from quantkit.errors import UsageError


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

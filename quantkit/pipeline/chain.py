"""recipe.json: the records of all files that led from a float model to a result, in order, so that it can be made again.

    {"format": "quantkit.recipe/1", "plan": "plan.json" or null, "steps": [{"record": ..., "sha256": ...}, ...]}

A record (`quantkit.model.provenance`) holds the settings of one form, and the digest of what it read. The plan is that of the last step.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quantkit.errors import ModelError
from quantkit.files import digest_of, replace_text
from quantkit.model.provenance import Provenance, read_provenance
from quantkit.quantize.plan import Plan, read_plan

CHAIN = "recipe.json"
_FORMAT = "quantkit.recipe/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How a file was made.

    Attributes:
        steps: The record of each file, the last that of the result.
        plan: That the last step followed; None: it made its own.
    """

    steps: tuple[Provenance, ...]
    plan: Plan | None = None


def write_chain(folder: Path, files: Sequence[Path], plan: str | None = None) -> None:
    """Write how the last of some files was made; each was made of the one before.

    Args:
        folder: Where to write.
        files: They carry their records.
        plan: The name of the plan in that folder that the last step followed; None: there is none.
    """
    steps = [
        {"record": says.to_json(), "sha256": digest_of(file)}
        for file in files
        if (says := read_provenance(file)) is not None
    ]
    plain = {"format": _FORMAT, "plan": plan, "steps": steps}
    replace_text(folder / CHAIN, json.dumps(plain, indent=1, sort_keys=True) + "\n")


def chain_of(model: Path, says: Provenance) -> Chain:
    """Return how a model was made: as the recipe beside it says, where that is its own; else by its own record alone.

    Args:
        model: The model.
        says: Its record.

    Raises:
        ModelError: The recipe is damaged.
    """
    file = model.parent / CHAIN
    if not file.is_file():
        return Chain(steps=(says,))
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if plain["format"] != _FORMAT or plain["steps"][-1]["sha256"] != digest_of(model):
            return Chain(steps=(says,))
        records = tuple(msgspec.convert(step["record"], Provenance) for step in plain["steps"])
        plan = None if plain["plan"] is None else read_plan(model.parent / plain["plan"])
    except (OSError, ValueError, LookupError, TypeError, msgspec.ValidationError) as e:
        raise ModelError(f"The recipe '{file}' is damaged: {e!r}.") from e
    return Chain(steps=records, plan=plan)

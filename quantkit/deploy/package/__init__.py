"""A folder to build an image from that serves a model, or the folder that another server reads.

This module stages what goes in as it is: models with their external data, labels, tokenizer, and the server's quantkit.toml.
`folder` (digests, and whether a folder is ours), `lock` (packages with hashes), `server_files` (the modules that a server
needs), `smoke` (the script of that name, copied as it is), `sample` (its request and the answer) and `texts` (facts and
templates: Dockerfile, manifests, README.md, config.pbtxt; and the SBOM). `quantkit.api.package` puts them together.

The same inputs give the same bytes. Names that users choose are in commands and manifests only as `texts.slug` makes them.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.calibration.model_inputs import inputs_of
from quantkit.data.text import find_tokenizer, looks_like_text
from quantkit.deploy.package.folder import sha256_of
from quantkit.deploy.package.texts import slug
from quantkit.deploy.serve.predict import read_labels, stored_pooling
from quantkit.errors import DataError, ModelError
from quantkit.model.graph.load import LoadedModel
from quantkit.settings import (
    DataSettings,
    GateSettings,
    ImageSettings,
    Recipe,
    load_recipe,
    serving_text,
)
from quantkit.settings.gate import LIVE_RULES
from quantkit.settings.record import PROVENANCE, Carried, carried_by
from quantkit.text import printable

MODEL = "model"
"""The role of the model that answers; others are shadow and canary."""
LABELS = "labels.txt"
_TOKENIZER, _RECIPE, _FILE = "tokenizer.json", "quantkit.toml", "model.onnx"
_SECOND = ("shadow", "canary")

_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What stands in the staging folder: where the model is, how it is served, and what is known of all models."""

    file: Path
    recipe: Recipe
    models: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def stage_models(stage: Path, loaded: Mapping[str, LoadedModel], recipe: Recipe) -> Staged:
    """Copy models, labels and tokenizer, and write the quantkit.toml that the server reads.

    Args:
        stage: The folder, empty.
        loaded: Models by role.
        recipe: How they are served and how inputs are prepared.

    Raises:
        QuantkitError: Something is missing, or cannot be read.
    """
    model = loaded[MODEL]
    assert model.path is not None  # noqa: S101 - they were given as files
    triton = recipe.package.form == "triton"
    name = recipe.serve.name or slug(model.path.stem)
    if triton:
        name = slug(name)  # there it is a folder's, too
    homes = {role: stage / role for role in loaded}
    if triton:
        homes = {MODEL: stage / "models" / name / "1"}
    models = {role: _copied(one, homes[role], stage) for role, one in loaded.items()}
    config = stage / "config"
    config.mkdir()
    carried = carried_by(dict(model.model.metadata_props))
    tokenizer, notes = _write_tokenizer(config, model, recipe)
    second: dict[str, Any] = {role: homes[role] / _FILE for role in _SECOND if role in homes}
    served = replace(
        recipe.serve,
        name=name,
        host="0.0.0.0",  # noqa: S104 - of the container, whose ports are published one by one
        token=None,
        labels=_write_labels(config, recipe, carried),
        pooling=recipe.serve.pooling or stored_pooling(model.path),  # its file stays behind
        reload=False,
        workers=recipe.serve.workers or _WORKERS,
        second=replace(recipe.serve.second, **second),
    )
    rules = {name: getattr(recipe.gate, name) for name in LIVE_RULES}
    packed = replace(
        recipe, serve=served, data=_prepared(recipe, carried, tokenizer), gate=GateSettings(**rules)
    )
    (config / _RECIPE).write_text(serving_text(packed, config), encoding="utf-8")
    return Staged(
        file=homes[MODEL] / _FILE,
        recipe=load_recipe(config / _RECIPE),  # as the server reads it
        models=models,
        notes=notes,
    )


def _prepared(recipe: Recipe, carried: Carried | None, tokenizer: Path | None) -> DataSettings:
    """Return how inputs are prepared: as quantkit.toml says, else as the model does."""
    told = recipe.data
    image, text = told.image, told.text
    if carried is not None:
        text = carried.data.text
        image = image if image != ImageSettings() else carried.data.image
    text = replace(text, column=(), tokenizer=tokenizer, search=())
    return replace(told, image=image, text=text)


def _copied(loaded: LoadedModel, home: Path, stage: Path) -> dict[str, Any]:
    """Copy a model with its external data; return what is known of it."""
    loaded.require_weights()
    assert loaded.path is not None  # noqa: S101 - it was given as a file
    names = {file: file.relative_to(loaded.path.parent).as_posix() for file in loaded.files}
    names[loaded.path] = _FILE
    if len(set(names.values())) < len(names):
        raise ModelError(
            f"External data of '{loaded.path}' is called model.onnx, as the model is in a package: save it under another name."
        )
    parts: list[dict[str, Any]] = []
    for file, name in names.items():
        place = home / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        parts.append(
            {
                "file": place.relative_to(stage).as_posix(),
                "bytes": place.stat().st_size,
                "sha256": sha256_of(place),
            }
        )
    loaded.require_unchanged()
    try:
        provenance = json.loads(loaded.model.metadata_props.get(PROVENANCE, "null"))
    except ValueError:
        provenance = None
    whole = (
        parts[0]["sha256"]
        if len(parts) == 1
        else sha256("".join(p["sha256"] for p in parts).encode()).hexdigest()
    )
    return {
        "source": printable(loaded.path.name),
        "sha256": whole,
        "bytes": sum(p["bytes"] for p in parts),
        "parts": parts,
        "provenance": provenance,
    }


def _write_labels(config: Path, recipe: Recipe, carried: Carried | None) -> Path | None:
    file, target = recipe.serve.labels, config / LABELS
    if file is not None:
        lines = list(read_labels(file))
    else:
        lines = [" ".join(label.split()) for label in carried.labels] if carried else []
    if not all(lines) or not lines:  # a file cannot have a label without a name; the model can
        return None
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return target


def _write_tokenizer(
    config: Path, model: LoadedModel, recipe: Recipe
) -> tuple[Path | None, tuple[str, ...]]:
    """Copy the tokenizer of a model that takes texts; say so where none is found, and refuse one that is set and not there."""
    try:
        if not looks_like_text(inputs_of(model, open_shapes=True)):
            return None, ()
        text, place = recipe.data.text, model.path
        assert place is not None  # noqa: S101 - it was given as a file
        found = find_tokenizer(replace(text, search=(place.parent, *text.search)), None)
    except DataError as e:
        if recipe.data.text.tokenizer is not None:
            raise
        return None, (f"/predict will take no texts: {e} Tensors are taken.",)
    shutil.copyfile(found, config / _TOKENIZER)
    return config / _TOKENIZER, ()

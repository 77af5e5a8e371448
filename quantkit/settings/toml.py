"""The file quantkit.toml: its tables become a `Recipe`; its errors name the file and the table."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from quantkit.errors import UsageError, as_os_error
from quantkit.settings.data import CalibrateSettings, DataSettings
from quantkit.settings.declare import Settings, Table, closest, declared, setting, table, tables
from quantkit.settings.distill import DistillSettings
from quantkit.settings.evaluate import EvaluateSettings
from quantkit.settings.float16 import Float16Settings
from quantkit.settings.gate import CompressSettings, GateSettings, TuneSettings
from quantkit.settings.integers import StaticSettings
from quantkit.settings.package import PackageSettings
from quantkit.settings.prune import PruneSettings
from quantkit.settings.serve import ServeSettings
from quantkit.settings.trim import TrimSettings
from quantkit.settings.weights import WeightsSettings

RECIPE_NAME = "quantkit.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Settings):
    """What quantkit.toml says. `folder` is where it stands (else the working directory), `file` and `text` the file itself.

    `calibrated` and `evaluated` are `data` with what [calibrate.data] and [evaluate.data] say over it.
    """

    model: Path | None = setting("The float32 model.", flag=None)
    data: DataSettings = table(DataSettings)
    calibrated: DataSettings = field(default_factory=DataSettings)
    evaluated: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateSettings = table(CalibrateSettings)
    static: StaticSettings = table(StaticSettings)
    float16: Float16Settings = table(Float16Settings)
    evaluate: EvaluateSettings = table(EvaluateSettings)
    gate: GateSettings = table(GateSettings)
    tune: TuneSettings = table(TuneSettings)
    compress: CompressSettings = table(CompressSettings)
    weights: WeightsSettings = table(WeightsSettings)
    distill: DistillSettings = table(DistillSettings)
    prune: PruneSettings = table(PruneSettings)
    trim: TrimSettings = table(TrimSettings)
    serve: ServeSettings = table(ServeSettings)
    package: PackageSettings = table(PackageSettings)
    folder: Path = field(default_factory=Path)
    file: Path | None = None
    text: str = ""


def load_recipe(path: Path | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: The file; None: quantkit.toml in the working directory if there is one, else the
            defaults.

    Raises:
        UsageError: The file cannot be read, or holds a key or value that quantkit does not know.
    """
    import tomllib

    if path is None:
        path = Path(RECIPE_NAME)
        if not path.exists():
            return Recipe()
    try:
        content = path.read_text(encoding="utf-8-sig")  # some editors mark UTF-8
        document = tomllib.loads(content)
    except FileNotFoundError as e:
        said = f"There is no recipe '{path}': give the path of a {RECIPE_NAME}."
        raise as_os_error(UsageError(said), e) from e
    except OSError as e:
        said = f"Cannot read the recipe '{path}': {e.strerror or e}."
        raise as_os_error(UsageError(said), e) from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: this is no UTF-8 text: save the file as UTF-8.") from e
    except ValueError as e:  # of TOML, or of a number with thousands of digits
        raise UsageError(f"{path}: this is no TOML: {e}.") from e
    except RecursionError as e:
        raise UsageError(f"{path}: lists or tables are nested too deeply.") from e
    return replace(_recipe(document, path), text=content)


def _recipe(document: dict[str, Any], file: Path) -> Recipe:
    # [calibrate.data] and [evaluate.data] stand below tables of other settings, and say over [data].
    over = {"calibrated": "calibrate", "evaluated": "evaluate"}
    own = {
        name: _subtable(
            _subtable(document, command, command, file), "data", f"{command}.data", file
        )
        for name, command in over.items()
    }
    for command in over.values():
        document.get(command, {}).pop("data", None)
    recipe: Recipe = _build(Recipe, document, "", file)
    found: dict[str, Any] = {
        name: _build(recipe.data, table, f"{over[name]}.data", file) for name, table in own.items()
    }
    return replace(recipe, **found, folder=file.parent, file=file)


def _build(usual: Any, table: Mapping[str, Any], name: str, file: Path, where: str = "") -> Any:
    """Return the settings that a table says.

    Args:
        usual: Their class; or settings that the table says over, which leaves the tables within them alone.
        table: Its keys and values.
        name: Of the table; "" for the top of the file.
        file: For messages; paths are relative to its folder.
        where: What messages call the table, where that is not its name.
    """
    kind = usual if isinstance(usual, type) else type(usual)
    place = f"{file}: {where or (f'[{name}]' if name else '')}".rstrip() + " "
    known = {one.key: one for one in declared(kind).values()}
    inner = {one.key: one for one in tables(kind) if kind is usual}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in inner:
            below = inner[key]
            found[below.name] = _build_below(below, table, f"{name}.{key}".lstrip("."), file)
        elif key in known:
            with _at(place):
                found[known[key].name] = known[key].read(value, key, folder=file.parent)
        else:
            what = "table" if isinstance(value, dict) else "key"
            names = (*known, *inner)
            raise UsageError(
                f"{place}unknown {what} '{key}'{closest(key, names)}: known here are {', '.join(names)}."
            )
    for needed in (f.name for f in fields(kind) if f.default is f.default_factory is MISSING):
        if needed not in found and kind is usual:
            raise UsageError(f"{place}{needed} is missing: say which {needed} is meant.")
    with _at(place):
        return kind(**found) if kind is usual else replace(usual, **found)


def _build_below(one: Table, parent: Mapping[str, Any], name: str, file: Path) -> Any:
    """Return the settings of a table within a table, or of each of a list of tables."""
    if not one.several:
        return _build(one.kind, _subtable(parent, one.key, name, file), name, file)
    found = parent[one.key]
    if not isinstance(found, list) or not all(isinstance(rule, dict) for rule in found):
        raise UsageError(
            f"{file}: '{name}' must be a list of tables: write [[{name}]] above each rule."
        )
    return tuple(
        _build(one.kind, rule, name, file, f"[[{name}]] number {position}:")
        for position, rule in enumerate(found, 1)
    )


def _subtable(parent: Mapping[str, Any], key: str, name: str, file: Path) -> Mapping[str, Any]:
    found = parent.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{file}: '{name}' must be a table: write [{name}] on a line of its own.")
    return found


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Put the place in front of what is said to be wrong."""
    try:
        yield
    except UsageError as e:
        raise UsageError(f"{place}{e}") from e


def recipe_text(recipe: Recipe, folder: Path) -> str:
    """Return quantkit.toml for a model, its data and how it is quantized; `load_recipe` reads the same from it.

    What is as it is by default is left out, and so is what evaluates and judges.

    Args:
        recipe: What to write.
        folder: Where the file will stand: paths are relative to it.
    """
    parts = [f"model = {_written(recipe.model, folder)}\n"] if recipe.model is not None else []
    parts += _tables("data", recipe.data, folder)
    parts += _tables("calibrate", recipe.calibrate, folder)
    parts += _lines("[calibrate.data]", recipe.calibrated, recipe.data, folder)
    parts += _tables("static", recipe.static, folder)
    parts += _tables("float16", recipe.float16, folder)
    return "\n".join(parts)


def serving_text(recipe: Recipe, folder: Path) -> str:
    """Return quantkit.toml for a server: how inputs are prepared, how requests are answered, what a second model must keep.

    A token is never written: it belongs to those who run the server, not to a file that is passed on.

    Args:
        recipe: What to write; what is as it is by default is left out.
        folder: Where the file will stand: paths are relative to it.
    """
    parts = [*_tables("data.image", recipe.data.image, folder)]
    parts += _tables("data.text", recipe.data.text, folder)
    parts += _tables("serve", replace(recipe.serve, token=None), folder)
    parts += _tables("gate", recipe.gate, folder)
    return "\n".join(parts)


def _tables(name: str, settings: Any, folder: Path) -> Iterator[str]:
    """Yield a table and those within it, with what is not as it is by default."""
    yield from _lines(f"[{name}]", settings, type(settings)(), folder)
    for one in tables(type(settings)):
        held = getattr(settings, one.name)
        if one.several:
            for rule in held:
                yield from _lines(f"[[{name}.{one.key}]]", rule, None, folder)
        else:
            yield from _tables(f"{name}.{one.key}", held, folder)


def _lines(head: str, settings: Any, usual: object, folder: Path) -> Iterator[str]:
    """Yield a table with what is not as usual; nothing where all of it is."""
    lines = [
        f"{one.key} = {_written(value, folder)}\n"
        for one in declared(type(settings)).values()
        if (value := getattr(settings, one.name)) not in (None, ())
        and (usual is None or value != getattr(usual, one.name))
    ]
    if lines:
        yield "".join([f"{head}\n", *lines])


def _written(value: Any, folder: Path) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, Path):
        try:
            value = Path(os.path.relpath(value, folder)).as_posix()
        except ValueError:  # of another drive
            value = value.absolute().as_posix()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        pairs = (f"{_written(str(key), folder)} = {number}" for key, number in value)
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(_written(one, folder) for one in value)}]"
    return repr(float(value) if isinstance(value, float) else value)

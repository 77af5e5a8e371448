"""The file quantkit.toml: its tables become a `Recipe`; its errors name the file and the table."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from quantkit.errors import UsageError, as_os_error
from quantkit.settings.calibrate import CalibrateSettings
from quantkit.settings.data import DataSettings, ImageSettings, TextSettings
from quantkit.settings.declare import Setting, closest, declared
from quantkit.settings.evaluate import EvaluateSettings
from quantkit.settings.float16 import Float16Settings
from quantkit.settings.gate import GateSettings
from quantkit.settings.package import PackageSettings
from quantkit.settings.serve import BatchSettings, LimitSettings, ServeSettings, ShadowSettings
from quantkit.settings.static import (
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)
from quantkit.settings.tune import TuneSettings
from quantkit.settings.values import WrongTypeError
from quantkit.settings.weights import WeightsSettings

__all__ = ["RECIPE_NAME", "Recipe", "load_recipe", "recipe_text", "serving_text"]

RECIPE_NAME = "quantkit.toml"

_LONG, _HUGE = 80, 10**80  # of a value in a message
_Table = dict[str, object]
_Written = tuple[str, object, object]  # a table's name, its settings, those that are usual
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What quantkit.toml says. `folder` is where it stands (else the working directory), `file` and `text` the file itself.

    `calibrated` and `evaluated` are `data` with what [calibrate.data] and [evaluate.data] say over it.
    """

    model: Annotated[Path | None, Setting("The float32 model.", flag=None)] = None
    data: DataSettings = field(default_factory=DataSettings)
    calibrated: DataSettings = field(default_factory=DataSettings)
    evaluated: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateSettings = field(default_factory=CalibrateSettings)
    static: StaticSettings = field(default_factory=StaticSettings)
    float16: Float16Settings = field(default_factory=Float16Settings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    gate: GateSettings = field(default_factory=GateSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    weights: WeightsSettings = field(default_factory=WeightsSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    package: PackageSettings = field(default_factory=PackageSettings)
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


def _recipe(document: _Table, file: Path) -> Recipe:
    inner = (
        "data",
        "calibrate",
        "static",
        "weights",
        "float16",
        "evaluate",
        "gate",
        "tune",
        "serve",
        "package",
    )
    data, calibrate, static, weights, float16, evaluate, gate, tune, serve, package = (
        _table(document, n, file) for n in inner
    )
    top = _read(Recipe, document, "", file, inner)
    every = _data(data, file)
    return Recipe(
        **top,
        data=every,
        calibrated=_data_over(every, _table(calibrate, "calibrate.data", file), "calibrate", file),
        evaluated=_data_over(every, _table(evaluate, "evaluate.data", file), "evaluate", file),
        calibrate=_build(CalibrateSettings, calibrate, "[calibrate]", file, ("data",)),
        static=_static(static, file),
        weights=_build(WeightsSettings, weights, "[weights]", file),
        float16=_build(Float16Settings, float16, "[float16]", file),
        evaluate=_build(EvaluateSettings, evaluate, "[evaluate]", file, ("data",)),
        gate=_build(GateSettings, gate, "[gate]", file),
        tune=_build(TuneSettings, tune, "[tune]", file),
        serve=_serve(serve, file),
        package=_build(PackageSettings, package, "[package]", file),
        folder=file.parent,
        file=file,
    )


def _data(table: _Table, file: Path) -> DataSettings:
    image, text = _table(table, "data.image", file), _table(table, "data.text", file)
    return replace(
        _build(DataSettings, table, "[data]", file, ("image", "text")),
        image=_build(ImageSettings, image, "[data.image]", file),
        text=_build(TextSettings, text, "[data.text]", file),
    )


def _data_over(data: DataSettings, table: _Table, command: str, file: Path) -> DataSettings:
    """Return the data of one command. How samples are prepared is said once, in [data], and holds for both."""
    where = f"[{command}.data]"
    values = _read(DataSettings, table, where, file)
    return _placed(lambda: replace(data, **values), where, file)


def _static(table: _Table, file: Path) -> StaticSettings:
    recover = _table(table, "static.recover", file)
    return replace(
        _build(StaticSettings, table, "[static]", file, ("recover", "qdq", "tensor", "node")),
        recover=_build(RecoverSettings, recover, "[static.recover]", file),
        qdq=_build(QdqSettings, _table(table, "static.qdq", file), "[static.qdq]", file),
        tensors=tuple(_rules(TensorRule, table, "static.tensor", file)),
        nodes=tuple(_rules(NodeRule, table, "static.node", file)),
    )


def _serve(table: _Table, file: Path) -> ServeSettings:
    batch, limits, second = (
        _table(table, f"serve.{name}", file) for name in ("batch", "limits", "shadow")
    )
    return replace(
        _build(ServeSettings, table, "[serve]", file, ("batch", "limits", "shadow")),
        batches=_build(BatchSettings, batch, "[serve.batch]", file),
        limits=_build(LimitSettings, limits, "[serve.limits]", file),
        second=_build(ShadowSettings, second, "[serve.shadow]", file),
    )


def _table(parent: Mapping[str, object], name: str, file: Path) -> _Table:
    found = parent.get(name.rpartition(".")[2], {})
    if not isinstance(found, dict):
        raise UsageError(f"{file}: '{name}' must be a table: write [{name}] on a line of its own.")
    return found


def _rules(
    kind: type[_Settings], parent: Mapping[str, object], name: str, file: Path
) -> Iterator[_Settings]:
    """Yield what each table of an array of tables says."""
    found = parent.get(name.rpartition(".")[2], [])
    if not isinstance(found, list) or not all(isinstance(rule, dict) for rule in found):
        raise UsageError(
            f"{file}: '{name}' must be a list of tables: write [[{name}]] above each rule."
        )
    needed = [f.name for f in fields(cast("Any", kind)) if f.default is MISSING]
    for position, rule in enumerate(found, 1):
        where = f"[[{name}]] number {position}:"
        values = _read(kind, rule, where, file)
        for key in needed:
            if key not in values:
                raise UsageError(f"{file}: {where} {key} is missing: say which {key} is meant.")
        yield _placed(partial(kind, **values), where, file)


def _build(
    kind: type[_Settings],
    table: Mapping[str, object],
    where: str,
    file: Path,
    inner: Sequence[str] = (),
) -> _Settings:
    return _placed(partial(kind, **_read(kind, table, where, file, inner)), where, file)


def _placed(make: Callable[[], _Settings], where: str, file: Path) -> _Settings:
    """Return what is made of a table's values; what is wrong with them is said with its place."""
    try:
        return make()
    except UsageError as e:
        raise UsageError(f"{file}: {where} {e}") from e


def _read(
    kind: type,
    table: Mapping[str, object],
    where: str,
    file: Path,
    inner: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the values of a table by the names of their fields. `inner` are tables read elsewhere."""
    place = f"{file}: {where} " if where else f"{file}: "
    known = {one.key: one for one in declared(kind).values()}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in inner:
            continue
        if key not in known:
            what = "table" if isinstance(value, dict) else "key"
            names = (*known, *inner)
            raise UsageError(
                f"{place}unknown {what} '{key}'{closest(key, names)}: "
                f"known here are {', '.join(names)}."
            )
        try:
            found[known[key].name] = known[key].read(value, file.parent)
        except WrongTypeError as e:
            raise UsageError(f"{place}{key} = {_shown(value)}: {key} takes {e}.") from e
    return found


def _shown(value: object) -> str:
    """Return a value as the file has it, cut where nobody would read on."""
    if isinstance(value, int) and abs(value) > _HUGE:
        return "a huge number"  # Python does not write more than 4300 digits
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def recipe_text(recipe: Recipe, folder: Path) -> str:
    """Return quantkit.toml for a model, its data and how it is quantized; `load_recipe` reads the same from it.

    What is as it is by default is left out, and so is what evaluates and judges.

    Args:
        recipe: What to write.
        folder: Where the file will stand: paths are relative to it.
    """
    data, static = recipe.data, recipe.static
    tables: list[_Written] = [
        ("[data]", data, DataSettings()),
        ("[data.image]", data.image, ImageSettings()),
        ("[data.text]", data.text, TextSettings()),
        ("[calibrate]", recipe.calibrate, CalibrateSettings()),
        ("[calibrate.data]", recipe.calibrated, data),
        ("[static]", static, StaticSettings()),
        ("[static.recover]", static.recover, RecoverSettings()),
        ("[static.qdq]", static.qdq, QdqSettings()),
        *(("[[static.tensor]]", rule, None) for rule in static.tensors),
        *(("[[static.node]]", rule, None) for rule in static.nodes),
        ("[float16]", recipe.float16, Float16Settings()),
    ]
    top = [f"model = {_written(recipe.model, folder)}\n"] if recipe.model is not None else []
    return "\n".join([*top, *_parts(tables, folder)])


def serving_text(recipe: Recipe, folder: Path) -> str:
    """Return quantkit.toml for a server: how inputs are prepared, how requests are answered, what a second model must keep.

    A token is never written: it belongs to those who run the server, not to a file that is passed on.

    Args:
        recipe: What to write; what is as it is by default is left out.
        folder: Where the file will stand: paths are relative to it.
    """
    serve, data = replace(recipe.serve, token=None), recipe.data
    tables: list[_Written] = [
        ("[data.image]", data.image, ImageSettings()),
        ("[data.text]", data.text, TextSettings()),
        ("[serve]", serve, ServeSettings()),
        ("[serve.batch]", serve.batches, BatchSettings()),
        ("[serve.limits]", serve.limits, LimitSettings()),
        ("[serve.shadow]", serve.second, ShadowSettings()),
        ("[gate]", recipe.gate, GateSettings()),
    ]
    return "\n".join(_parts(tables, folder))


def _parts(tables: Sequence[_Written], folder: Path) -> Iterator[str]:
    """Yield tables with what is not as usual; all of it where nothing is."""
    for name, settings, usual in tables:
        lines = [
            f"{one.key} = {_written(value, folder)}\n"
            for one in declared(type(settings)).values()
            if (value := getattr(settings, one.name)) not in (None, ())
            and (usual is None or value != getattr(usual, one.name))
        ]
        if lines:
            yield "".join([f"{name}\n", *lines])


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

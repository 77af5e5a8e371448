"""What a user chooses, declared once (`quantkit.settings.declare`): one module per table of quantkit.toml.

A `Recipe` is frozen data: `load_recipe` reads the file, flags and arguments override single fields with
`dataclasses.replace`. What a value may be is declared with it, so that a flag, a line of the file and an argument fail
alike; the file's errors also name the file and the table. Paths in the file are relative to the file's folder.

Knows nothing of models and arrays, and imports the standard library alone until it is asked for more.
"""

from quantkit.settings.data import (
    PRESETS,
    CalibrateSettings,
    DataSettings,
    ImageSettings,
    Layout,
    Pixels,
    TextSettings,
    preset_keys,
)
from quantkit.settings.declare import Percent, Size, Switch, closest
from quantkit.settings.evaluate import METRICS, EvaluateSettings, metric_plugins
from quantkit.settings.export import ExportSettings
from quantkit.settings.float16 import Float16Settings, HalfType
from quantkit.settings.gate import GateSettings, TuneSettings, objections
from quantkit.settings.integers import (
    ActivationType,
    Coverage,
    DynamicSettings,
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticFormat,
    StaticSettings,
    TensorRule,
    WeightType,
)
from quantkit.settings.memory import memory_of, memory_text, parse_memory, resident
from quantkit.settings.package import PackageSettings
from quantkit.settings.serve import BatchSettings, LimitSettings, ServeSettings, ShadowSettings
from quantkit.settings.toml import RECIPE_NAME, Recipe, load_recipe, recipe_text, serving_text
from quantkit.settings.weights import BlocksFormat, WeightsSettings

__all__ = [
    "METRICS",
    "PRESETS",
    "RECIPE_NAME",
    "ActivationType",
    "BatchSettings",
    "BlocksFormat",
    "CalibrateSettings",
    "Coverage",
    "DataSettings",
    "DynamicSettings",
    "EvaluateSettings",
    "ExportSettings",
    "Float16Settings",
    "GateSettings",
    "HalfType",
    "ImageSettings",
    "Layout",
    "LimitSettings",
    "NodeRule",
    "PackageSettings",
    "Percent",
    "Pixels",
    "QdqSettings",
    "Recipe",
    "RecoverSettings",
    "ServeSettings",
    "ShadowSettings",
    "Size",
    "StaticFormat",
    "StaticSettings",
    "Switch",
    "TensorRule",
    "TextSettings",
    "TuneSettings",
    "WeightType",
    "WeightsSettings",
    "closest",
    "load_recipe",
    "memory_of",
    "memory_text",
    "metric_plugins",
    "objections",
    "parse_memory",
    "preset_keys",
    "recipe_text",
    "resident",
    "serving_text",
]

"""quantkit.toml, and the settings that the file and the command line's flags share.

A `Recipe` is frozen data: `load_recipe` reads the file, flags override single fields with
`dataclasses.replace`. What a value may be is said once, in each class's `__post_init__`, so that a
flag and a line of the file fail alike; the file's errors also name the file and the table.
Paths in the file are relative to the file's folder.

Knows nothing of models and arrays; imports the standard library, `quantkit.errors`, and from
`quantkit.result` what an objection is. One module a
table: the settings, and how their values are read (`quantkit.settings.values`).
"""

from quantkit.settings.calibrate import CalibrateSettings
from quantkit.settings.checks import closest
from quantkit.settings.data import (
    PRESETS,
    DataSettings,
    ImageSettings,
    Layout,
    Pixels,
    TextSettings,
    preset_keys,
)
from quantkit.settings.evaluate import METRICS, EvaluateSettings, metric_plugins
from quantkit.settings.gate import GateSettings, objections
from quantkit.settings.memory import memory_of, memory_text, parse_memory, resident
from quantkit.settings.static import (
    ActivationType,
    NodeRule,
    RecoverSettings,
    StaticFormat,
    StaticSettings,
    TensorRule,
    WeightType,
)
from quantkit.settings.toml import RECIPE_NAME, Recipe, load_recipe
from quantkit.settings.values import Percent, Size, Switch

__all__ = [
    "METRICS",
    "PRESETS",
    "RECIPE_NAME",
    "ActivationType",
    "CalibrateSettings",
    "DataSettings",
    "EvaluateSettings",
    "GateSettings",
    "ImageSettings",
    "Layout",
    "NodeRule",
    "Percent",
    "Pixels",
    "Recipe",
    "RecoverSettings",
    "Size",
    "StaticFormat",
    "StaticSettings",
    "Switch",
    "TensorRule",
    "TextSettings",
    "WeightType",
    "closest",
    "load_recipe",
    "memory_of",
    "memory_text",
    "metric_plugins",
    "objections",
    "parse_memory",
    "preset_keys",
    "resident",
]

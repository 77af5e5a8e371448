"""What a user chooses, declared once (`quantkit.settings.declare`): one module per table of quantkit.toml.

A `Recipe` is frozen data: `load_recipe` reads the file, flags and arguments override single fields with
`dataclasses.replace`. What a value may be is declared with it, so that a flag, a line of the file and an argument fail
alike; the file's errors also name the file and the table. Paths in the file are relative to the file's folder.

Knows nothing of models and arrays, and imports the standard library alone until it is asked for more.
"""

from quantkit.settings.data import PRESETS as PRESETS
from quantkit.settings.data import CalibrateSettings as CalibrateSettings
from quantkit.settings.data import DataSettings as DataSettings
from quantkit.settings.data import ImageSettings as ImageSettings
from quantkit.settings.data import Layout as Layout
from quantkit.settings.data import Pixels as Pixels
from quantkit.settings.data import TextSettings as TextSettings
from quantkit.settings.data import preset_keys as preset_keys
from quantkit.settings.declare import Percent as Percent
from quantkit.settings.declare import Size as Size
from quantkit.settings.declare import Switch as Switch
from quantkit.settings.declare import closest as closest
from quantkit.settings.distill import DistillSettings as DistillSettings
from quantkit.settings.evaluate import METRICS as METRICS
from quantkit.settings.evaluate import EvaluateSettings as EvaluateSettings
from quantkit.settings.evaluate import metric_plugins as metric_plugins
from quantkit.settings.export import ExportSettings as ExportSettings
from quantkit.settings.float16 import Float16Settings as Float16Settings
from quantkit.settings.float16 import HalfType as HalfType
from quantkit.settings.gate import CompressSettings as CompressSettings
from quantkit.settings.gate import GateSettings as GateSettings
from quantkit.settings.gate import TuneSettings as TuneSettings
from quantkit.settings.gate import objections as objections
from quantkit.settings.integers import ActivationType as ActivationType
from quantkit.settings.integers import Coverage as Coverage
from quantkit.settings.integers import DynamicSettings as DynamicSettings
from quantkit.settings.integers import NodeRule as NodeRule
from quantkit.settings.integers import QdqSettings as QdqSettings
from quantkit.settings.integers import RecoverSettings as RecoverSettings
from quantkit.settings.integers import StaticFormat as StaticFormat
from quantkit.settings.integers import StaticSettings as StaticSettings
from quantkit.settings.integers import TensorRule as TensorRule
from quantkit.settings.integers import WeightType as WeightType
from quantkit.settings.memory import memory_of as memory_of
from quantkit.settings.memory import memory_text as memory_text
from quantkit.settings.memory import parse_memory as parse_memory
from quantkit.settings.memory import resident as resident
from quantkit.settings.package import PackageSettings as PackageSettings
from quantkit.settings.prune import PruneSettings as PruneSettings
from quantkit.settings.serve import BatchSettings as BatchSettings
from quantkit.settings.serve import LimitSettings as LimitSettings
from quantkit.settings.serve import ServeSettings as ServeSettings
from quantkit.settings.serve import ShadowSettings as ShadowSettings
from quantkit.settings.toml import RECIPE_NAME as RECIPE_NAME
from quantkit.settings.toml import Recipe as Recipe
from quantkit.settings.toml import load_recipe as load_recipe
from quantkit.settings.toml import recipe_text as recipe_text
from quantkit.settings.toml import serving_text as serving_text
from quantkit.settings.trim import TrimSettings as TrimSettings
from quantkit.settings.weights import BlocksFormat as BlocksFormat
from quantkit.settings.weights import WeightsSettings as WeightsSettings

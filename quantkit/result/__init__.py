"""The one result model: an evaluation makes it, result.json holds it, reports and gates read nothing else."""

from quantkit.result.accuracy import *  # noqa: F403 - what each module names in __all__
from quantkit.result.evaluated import *  # noqa: F403
from quantkit.result.evaluation import *  # noqa: F403
from quantkit.result.file import *  # noqa: F403

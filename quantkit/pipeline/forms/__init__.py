"""The forms: one file each, chosen by the class of the settings; see `quantkit.pipeline.form.Form`."""

from collections.abc import Mapping
from typing import Any

from quantkit.calibration.monitor import Monitor
from quantkit.pipeline.form import Form
from quantkit.pipeline.forms.distill import DistillForm
from quantkit.pipeline.forms.dynamic import DynamicForm
from quantkit.pipeline.forms.float16 import Float16Form
from quantkit.pipeline.forms.low_rank import LowRankForm
from quantkit.pipeline.forms.prune import PruneForm
from quantkit.pipeline.forms.sparse import SparseForm
from quantkit.pipeline.forms.static import StaticForm
from quantkit.pipeline.forms.trim import TrimForm
from quantkit.pipeline.forms.weights import WeightsForm
from quantkit.pipeline.prepared import Job, Output
from quantkit.quantize.plan import Plan
from quantkit.settings import (
    DistillSettings,
    DynamicSettings,
    Float16Settings,
    PruneSettings,
    StaticSettings,
    TrimSettings,
    WeightsSettings,
)
from quantkit.settings.declare import Settings

FORMS: Mapping[type[Settings], type[Form[Any, Any]]] = {
    DynamicSettings: DynamicForm,
    StaticSettings: StaticForm,
    WeightsSettings: WeightsForm,
    Float16Settings: Float16Form,
    DistillSettings: DistillForm,
    PruneSettings: PruneForm,
    TrimSettings: TrimForm,
}


def form_of(
    job: Job[Any], output: Output, monitor: Monitor | None = None, *, plan: Plan | None = None
) -> Form[Any, Any]:
    """Return the form that the settings of a job ask for; `plan`: one to apply, instead of making one."""
    return _chosen(job.options)(job, output, monitor, plan=plan)


def _chosen(options: Settings) -> type[Form[Any, Any]]:
    """Return the form of some settings; pruning has three."""
    if isinstance(options, PruneSettings) and (options.sparsity or options.pattern):
        return SparseForm
    if isinstance(options, PruneSettings) and options.low_rank:
        return LowRankForm
    return FORMS[type(options)]


def settings_of(kind: str) -> type[Settings]:
    """Return the settings class of a form, by the kind that its records hold."""
    return next(settings for settings, form in FORMS.items() if form.kind == kind)

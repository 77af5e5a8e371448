"""The one result model: an evaluation makes it, result.json holds it, reports and gates read nothing else."""

from quantkit.result.accuracy import (
    SAME_DB,
    Decision,
    Drift,
    Interval,
    Metric,
    OutputDrift,
    SampleSqnr,
    Slice,
    WorstSample,
)
from quantkit.result.cost import Latency, Memory, Part, Size
from quantkit.result.file import (
    json_schema,
    legible,
    load_result,
    result_file,
    result_from_json,
    result_text,
    save_result,
)
from quantkit.result.inside import (
    Advice,
    Changes,
    Fidelity,
    Layer,
    Layers,
    NodeRuns,
    OperatorChange,
    Runs,
    Runtime,
)
from quantkit.result.model import (
    OLDER,
    SCHEMA,
    Calibrated,
    DataSource,
    Evaluated,
    ModelFile,
    Origin,
    Result,
)
from quantkit.result.tuning import Trial, Tuning
from quantkit.result.verdict import Judged, Objection, ObjectionKind, Outcome, Rule, Verdict

__all__ = [
    "OLDER",
    "SAME_DB",
    "SCHEMA",
    "Advice",
    "Calibrated",
    "Changes",
    "DataSource",
    "Decision",
    "Drift",
    "Evaluated",
]
__all__ += ["Fidelity", "Interval", "Judged", "Latency", "Layer", "Layers", "Memory", "Metric"]
__all__ += [
    "ModelFile",
    "NodeRuns",
    "Objection",
    "ObjectionKind",
    "OperatorChange",
    "Origin",
    "Outcome",
    "OutputDrift",
    "Part",
]
__all__ += ["Result", "Rule", "Runs", "Runtime", "Size", "Slice", "Trial", "Tuning", "Verdict"]
__all__ += ["SampleSqnr", "WorstSample"]
__all__ += [
    "json_schema",
    "legible",
    "load_result",
    "result_file",
    "result_from_json",
    "result_text",
    "save_result",
]

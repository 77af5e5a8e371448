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
from quantkit.result.evaluated import (
    Advice,
    Calibrated,
    Changes,
    Evaluated,
    Fidelity,
    Latency,
    Layer,
    Layers,
    Memory,
    ModelFile,
    NodeRuns,
    OperatorChange,
    Part,
    Runs,
    Runtime,
    Size,
)
from quantkit.result.evaluation import (
    OLDER,
    SCHEMA,
    DataSource,
    Judged,
    Objection,
    ObjectionKind,
    Origin,
    Outcome,
    Result,
    Rule,
    Trial,
    Tuning,
    Verdict,
)
from quantkit.result.file import (
    json_schema,
    legible,
    load_result,
    result_file,
    result_from_json,
    result_text,
    save_result,
)

__all__ = [
    "OLDER",
    "SAME_DB",
    "SCHEMA",
    "Advice",
    "Calibrated",
    "Changes",
    "DataSource",
    "Decision",
]
__all__ += ["Drift", "Evaluated", "Fidelity", "Interval", "Judged", "Latency", "Layer", "Layers"]
__all__ += ["Memory", "Metric", "ModelFile", "NodeRuns", "Objection", "ObjectionKind"]
__all__ += ["OperatorChange", "Origin", "Outcome", "OutputDrift", "Part", "Result", "Rule", "Runs"]
__all__ += ["Runtime", "SampleSqnr", "Size", "Slice", "Trial", "Tuning", "Verdict", "WorstSample"]
__all__ += [
    "json_schema",
    "legible",
    "load_result",
    "result_file",
    "result_from_json",
    "result_text",
]
__all__ += ["save_result"]

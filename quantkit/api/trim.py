"""`trim`: a smaller vocabulary."""

from pathlib import Path

import onnx

from quantkit.api.arguments import as_path, check_output, checked_kinds, sample_settings
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Monitor
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.trim_folder import trim_model
from quantkit.pipeline.trim_result import TrimResult
from quantkit.settings import DataSettings, TrimSettings

__all__ = ["TrimResult", "run_trim", "trim"]


@checked_kinds
def trim(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object,
    *,
    keep_tokenizer: bool = False,
    min_coverage: float | str = 0.9,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> TrimResult:
    """Remove the tokens that a corpus does not use from a text model and its tokenizer.

    Text that kept tokens cover is cut into the same pieces and gives the same outputs, bit for bit; both are checked on the data
    before anything is written. Other text falls back to smaller pieces, or, with the old tokenizer, to the unknown token.
    Works on float models and quantized ones.

    Args:
        model_input: A model; or a folder with model.onnx (or onnx/model.onnx) and tokenizer.json, which is then written as a whole.
        model_output: Where to write: a model, with a tokenizer.json and the list of kept ids beside it; or a folder.
        data: A table with a column of texts (csv, jsonl, parquet, ...), a folder of such, a `datasets.Dataset`, or a list of texts.
        keep_tokenizer: Keep the tokenizer and its ids: the model maps them to rows. Logits of removed tokens become the lowest number.
        min_coverage: Least share of the next texts that kept tokens must cover, judged by the lower end of the 95 % interval; 0 allows any.
        settings: Which texts, by which tokenizer.
        limit: Use so many texts; overrides the settings. None in both: all.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out rows that hold no text, instead of failing.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Compare the result with the full model before writing.

    Returns:
        What stays, sizes by part, the share of the next texts that is covered, and what uncovered texts lose.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    how = TrimSettings(keep_tokenizer=keep_tokenizer, min_coverage=min_coverage)  # type: ignore[arg-type]  # read there
    samples = sample_settings(settings, limit=limit, memory=memory)
    return run_trim(
        model_input,
        model_output,
        how,
        data,
        samples,
        skip_bad=skip_bad,
        verify=verify,
        external_data=use_external_data_format,
    )


def run_trim(  # noqa: PLR0913 - one parameter per question
    source: str | Path | onnx.ModelProto,
    output: str | Path,
    how: TrimSettings,
    data: object,
    samples: DataSettings,
    *,
    skip_bad: bool = False,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> TrimResult:
    """Trim a model or a folder as settings say; see `trim`.

    Args:
        source: A model or a folder.
        output: Where to write.
        how: Which form the smaller vocabulary has.
        data: The texts.
        samples: Which of them, by which tokenizer.
        skip_bad: Leave out rows that hold no text.
        verify: Compare the result with the full model before writing.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done; None: nobody.
    """
    check_output(output)
    job: Job[TrimSettings] = Job(
        source=source,
        data=data,
        options=how,
        settings=samples,
        calibrate=CalibrateOptions(skip_bad=skip_bad),
    )
    to = as_path(output, "model_output")
    return trim_model(job, to, verify=verify, external_data=external_data, monitor=monitor)

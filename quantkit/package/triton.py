"""config.pbtxt, which Triton reads beside a model."""

from collections.abc import Sequence

from quantkit.errors import ModelError
from quantkit.package.facts import Facts
from quantkit.serve.engine import Engine
from quantkit.serve.protocol import Port

__all__ = ["config_pbtxt"]

_MICROSECONDS = 1000  # in a millisecond


def config_pbtxt(facts: Facts, engine: Engine, *, labelled: str) -> str:
    """Return config.pbtxt.

    Requests share runs only where that was asked for and changes no answer; else dimensions are as the model has them.

    Args:
        facts: What is packaged.
        engine: The model.
        labelled: The output that labels.txt names the classes of; "": none.

    Raises:
        ModelError: The model takes a single number, or leaves a shape open: Triton cannot be sent either.
    """
    single = next((port.name for port in engine.inputs if not port.shape), None)
    if single is not None:
        raise ModelError(
            f"Triton must be told how many dimensions an input has, and '{single}' says none: export it with a shape."
        )
    batches = facts.serve.batches
    rows = 0 if engine.unbatched or batches.batch == 1 else batches.batch
    parts = [
        f"name: {_text(facts.slug)}\n",
        'backend: "onnxruntime"\n',
        f"max_batch_size: {rows}\n",
        _ports("input", engine.inputs, rows, ""),
        _ports("output", engine.outputs, rows, labelled),
        f"instance_group [ {{ kind: KIND_CPU count: {facts.serve.workers or 1} }} ]\n",
        _parameter("intra_op_thread_count", str(facts.serve.threads)),
    ]
    if rows:
        delay = round(batches.batch_delay_ms * _MICROSECONDS)
        parts.append(f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n")
    return "".join(parts)


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {_text(key)} value {{ string_value: {_text(value)} }} }}\n"


def _ports(kind: str, ports: Sequence[Port], rows: int, labelled: str) -> str:
    found = []
    for port in ports:
        dims = [-1 if n is None else n for n in port.shape[1 if rows else 0 :]]
        # Triton gives no tensor without a dimension: one of one value stands for it.
        whole = "" if dims else " reshape { shape: [ ] }"
        labels = ' label_filename: "labels.txt"' if port.name == labelled else ""
        dtype = f"TYPE_{port.datatype if port.datatype != 'BYTES' else 'STRING'}"
        found.append(
            f"  {{ name: {_text(port.name)} data_type: {dtype} dims: {dims or [1]}{whole}{labels} }}"
        )
    return f"{kind} [\n" + ",\n".join(found) + "\n]\n"


def _text(text: str) -> str:
    """Return a text as protobuf's text format has it: whatever is not plain is written as bytes."""
    plain = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}"  # of ASCII
        for b in text.encode("utf-8", "surrogatepass")
    )
    return f'"{plain}"'

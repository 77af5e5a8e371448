"""What describes the server to people and tools: OpenAPI, and one page without a script or a network."""

from html import escape
from typing import TYPE_CHECKING, Any

from quantkit._version import __version__

if TYPE_CHECKING:
    from quantkit.deploy.serve.service import Service


_ERRORS = {
    "400": "The request does not fit the model.",
    "401": "The token is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "The content type is not taken.",
    "503": "Busy or stopping; see Retry-After.",
    "504": "There was no answer in time.",
}
_ANY = {"type": "object", "additionalProperties": True}
_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array", "items": {}},
        "parameters": _ANY,
    },
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": _ANY},
        "parameters": _ANY,
    },
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def _paths(name: str) -> dict[str, tuple[str, str, dict[str, Any] | None]]:
    """Return each address with its method, what it does, and the bodies that it takes."""
    model = f"/v2/models/{name}"
    predict = {
        "image/*": _BYTES,
        "text/plain": {"schema": {"type": "string"}},
        "application/json": {"schema": _ANY},
        "multipart/form-data": {"schema": _ANY},
    }
    infer = {"application/json": {"schema": _INFER}, "application/octet-stream": _BYTES}
    return {
        "/predict": (
            "post",
            "Ask with an image, one or several texts, or a row; ?top_k=5&softmax=true, ?pooling=mean&normalize=true",
            predict,
        ),
        f"{model}/infer": ("post", "Open Inference Protocol, JSON or binary tensors", infer),
        model: ("get", "Inputs, outputs, provider, notes", None),
        f"{model}/config": ("get", "Configuration, as Triton writes it", None),
        f"{model}/ready": ("get", "Readiness probe", None),
        "/v2": ("get", "Name, version, extensions", None),
        "/v2/health/live": ("get", "Liveness probe", None),
        "/v2/health/ready": ("get", "Readiness probe", None),
        "/drift": ("get", "How far two models are apart on live requests", None),
        "/metrics": ("get", "For Prometheus", None),
        "/openapi.json": ("get", "This description for tools", None),
    }


def openapi(name: str) -> dict[str, Any]:
    """Return the description of all addresses."""
    paths: dict[str, Any] = {}
    for path, (method, summary, bodies) in _paths(name).items():
        errors = {code: {"description": text} for code, text in _ERRORS.items()}
        answer = {"200": {"description": "The answer.", "content": {"application/json": {}}}}
        operation: dict[str, Any] = {"summary": summary, "responses": answer | errors}
        if bodies is not None:
            operation["requestBody"] = {"required": True, "content": bodies}
        paths[path] = {method: operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"quantkit serve: {name}", "version": __version__},
        "paths": paths,
    }


_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{padding:1rem;border:1px solid #8886;overflow:auto}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8886;
vertical-align:top}
"""


def docs(service: "Service") -> str:
    """Return the page."""
    engine, name = service.loaded.engine, service.name
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td><td>{escape(text)}</td></tr>"
        for path, (method, text, _) in _paths(name).items()
    )
    ports = "".join(
        f"<tr><td>{kind}</td><td><code>{escape(str(port))}</code></td></tr>"
        for kind, found in (("input", engine.inputs), ("output", engine.outputs))
        for port in found
    )
    lines = "".join(f"<li>{escape(line)}</li>" for line in service.loaded.predictor.lines)
    notes = "".join(f"<li>{escape(note)}</li>" for note in service.notes())
    address = f"http://{service.settings.host}:{service.settings.port}"
    token = " -H 'Authorization: Bearer '$QUANTKIT_TOKEN" if service.settings.token else ""
    shell = escape(
        f"curl{token} -H 'Content-Type: image/png' --data-binary @image.png '{address}/predict?top_k=3'\n"
        f"curl{token} {address}/v2/models/{name}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(name)}</h1><p>quantkit {__version__}, {escape(engine.provider)}, sha256 "
        f"<code>{engine.digest[:12]}</code></p>"
        f"<h2>Tensors</h2><table>{ports}</table>"
        + (f"<h2>Preprocessing of /predict</h2><ul>{lines}</ul>" if lines else "")
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "")
        + f"<h2>Addresses</h2><table>{rows}</table><h2>From a shell</h2><pre>{shell}</pre></html>"
    )

"""The addresses of the server.

A handler takes a request apart, lets the line run it, and puts the answer together. What is refused is raised as
`RequestError`, which `guard` turns into one sentence of JSON.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import parse_qsl

from quantkit._version import __version__
from quantkit.deploy.serve import pages
from quantkit.deploy.serve.calls import (
    BINARY,
    HEADER,
    JSON,
    LARGE,
    MODEL_VERSION,
    Calls,
    header_length,
)
from quantkit.deploy.serve.embed import POOLINGS
from quantkit.deploy.serve.guard import Guard, HttpAnswer, HttpRequest, json_answer
from quantkit.deploy.serve.predict import Feeds, Sent, Wanted, part_of
from quantkit.deploy.serve.protocol import Port, RequestError

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?((?:/(?:infer|ready|config|stats))?)")

_Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class _Handlers:
    """What is answered, by address."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.service = calls.service
        self._get: Mapping[str, _Handler] = {
            "model": self.model,
            "model/ready": self.model_ready,
            "model/config": self.config,
            "model/stats": self.stats,
            "/v2": self.server,
            "/v2/health/live": self.live,
            "/v2/health/ready": self.ready,
            "/metrics": self.metrics,
            "/drift": self.drift,
            "/openapi.json": self.openapi,
            "/docs": self.docs,
            "/": self.docs,
        }
        self._post: Mapping[str, _Handler] = {
            "model/infer": self.infer,
            "/predict": self.predict,
            "/v1/predict": self.predict,
        }

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Let the handler of an address answer."""
        model = _MODEL.fullmatch(request.path)
        place = f"model{model[3]}" if model else request.path
        known, allow = (self._post, "POST") if place in self._post else (self._get, "GET, HEAD")
        if place not in known:
            raise RequestError("There is nothing at this address: see /docs.", 404)
        if request.method not in allow.split(", "):
            use = allow.partition(",")[0]
            raise RequestError(f"Method not allowed; use {use}.", 405, allow=allow)
        if model:
            self._check_name(*model.groups()[:2])
        return await known[place](request)

    def _check_name(self, name: str, version: str | None) -> None:
        if name != self.service.name:
            raise RequestError(
                f"There is no model '{name[:100]}': there is '{self.service.name}'.", 404
            )
        if version not in {None, MODEL_VERSION}:
            raise RequestError(
                f"There is no version '{version[:100]}': there is {MODEL_VERSION}.", 404
            )

    async def server(self, _: HttpRequest) -> HttpAnswer:
        """Say who is there."""
        extensions = ["binary_tensor_data", "model_configuration"]
        return json_answer({"name": "quantkit", "version": __version__, "extensions": extensions})

    async def live(self, _: HttpRequest) -> HttpAnswer:
        """Say that the process answers."""
        return json_answer({"live": True})

    async def ready(self, _: HttpRequest) -> HttpAnswer:
        """Say whether requests are wanted."""
        wanted = not self.service.stopping
        return json_answer({"ready": wanted}, 200 if wanted else 503)

    async def model(self, _: HttpRequest) -> HttpAnswer:
        """Describe the model."""
        service, engine = self.service, self.service.loaded.engine
        shared = service.line.rules.rows if not engine.unbatched else 1
        return json_answer(
            {
                "name": service.name,
                "versions": [MODEL_VERSION],
                "platform": "onnxruntime_onnx",
                "inputs": [port.plain() for port in engine.inputs],
                "outputs": [port.plain() for port in engine.outputs],
                "parameters": {
                    "provider": engine.provider,
                    "sha256": engine.digest,
                    "batch": shared,
                    "preprocessing": service.loaded.predictor.lines,
                    "labels": len(service.loaded.predictor.labels),
                    "notes": service.notes(),
                },
            }
        )

    async def model_ready(self, _: HttpRequest) -> HttpAnswer:
        """Say whether requests to the model are wanted."""
        wanted = not self.service.stopping
        return json_answer({"name": self.service.name, "ready": wanted}, 200 if wanted else 503)

    async def config(self, _: HttpRequest) -> HttpAnswer:
        """Return the model's configuration, as Triton writes it; a free dimension is -1."""
        engine = self.service.loaded.engine

        def plain(ports: Sequence[Port]) -> list[dict[str, object]]:
            kinds = ("STRING" if port.datatype == "BYTES" else port.datatype for port in ports)
            return [
                {"name": port.name, "data_type": f"TYPE_{kind}", "dims": port.plain()["shape"]}
                for port, kind in zip(ports, kinds, strict=True)
            ]

        return json_answer(
            {
                "name": self.service.name,
                "platform": "onnxruntime_onnx",
                "backend": "onnxruntime",
                "max_batch_size": 0,  # dimensions include the batch
                "input": plain(engine.inputs),
                "output": plain(engine.outputs),
            }
        )

    async def stats(self, _: HttpRequest) -> HttpAnswer:
        """Refuse: the counts of this extension are not kept."""
        raise RequestError(
            "Statistics are at /metrics, for Prometheus; this address has none.", 501
        )

    async def infer(self, request: HttpRequest) -> HttpAnswer:
        """HttpAnswer a request of the Open Inference Protocol."""
        kind = _kind(request)
        if kind not in {"", JSON, BINARY}:
            raise RequestError(
                f"'{kind[:100]}' is no content type of /infer: send the header 'Content-Type: {JSON}'.",
                415,
            )
        header = header_length(request.headers.get(HEADER))
        if header is None and kind == BINARY:
            raise RequestError(
                "A binary request needs the header Inference-Header-Content-Length: the length of its JSON."
            )
        body = await request.body()
        content, length = await self.calls.infer(request.call, body, header)
        if length is None:
            return HttpAnswer(content)
        return HttpAnswer(content, kind=BINARY, headers=((HEADER.encode(), str(length).encode()),))

    async def predict(self, request: HttpRequest) -> HttpAnswer:
        """HttpAnswer for an image, a text or a row."""
        query = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
        wanted = Wanted(
            top=_top(query),
            softmax=_switch(query, "softmax"),
            pooling=_choice(query, "pooling", POOLINGS),
            normalize=_switch(query, "normalize", "true"),
        )
        loaded, call = self.service.loaded, request.call
        body = await request.body()

        def read() -> list[Feeds]:
            return loaded.predictor.runs(_sent(request, body))

        asked = await self.calls.aside(call, read)
        # One after the other: many texts leave the other workers to other callers.
        runs = [(feeds, await self.calls.run(call, loaded, feeds)) for feeds in asked]
        head = {"model_name": self.service.name, "model_version": MODEL_VERSION}

        def write() -> HttpAnswer:
            return json_answer({**head, **loaded.predictor.reply(runs, wanted)})

        large = sum(array.nbytes for _, found in runs for array in found.values()) > LARGE
        written: HttpAnswer = await self.calls.aside(call, write) if large else write()
        return written

    async def drift(self, _: HttpRequest) -> HttpAnswer:
        """Say how far the two models are apart."""
        if self.service.second is None:
            raise RequestError("There is no second model: start with --shadow or --canary.", 404)
        return json_answer(self.service.second.plain(self.service.loaded.engine))

    async def metrics(self, _: HttpRequest) -> HttpAnswer:
        """Return what Prometheus reads."""
        text = self.service.metrics.text()
        return HttpAnswer(text, kind="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: HttpRequest) -> HttpAnswer:
        """Describe the addresses."""
        return json_answer(pages.openapi(self.service.name))

    async def docs(self, _: HttpRequest) -> HttpAnswer:
        """Return a page that describes the addresses."""
        page = pages.docs(self.service).encode()
        return HttpAnswer(page, kind="text/html; charset=utf-8")


def _kind(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _sent(request: HttpRequest, body: bytes) -> Sent:
    kind = _kind(request)
    if kind == "multipart/form-data":
        return part_of(body, request.headers["content-type"])
    return Sent(kind=kind or JSON, content=body)


def _top(query: Mapping[str, str]) -> int | None:
    given = query.get("top_k")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < len(given) < 5 and int(given)):  # digits
        raise RequestError(f"top_k '{given[:20]}' is no number of classes: use 5.")
    return int(given)


def _choice(query: Mapping[str, str], key: str, known: Sequence[str]) -> str | None:
    given = query.get(key)
    if given is not None and given not in known:
        raise RequestError(f"{key} is one of {', '.join(known)}, not '{given[:20]}'.")
    return given


def _switch(query: Mapping[str, str], key: str, usual: str = "false") -> bool:
    given = query.get(key, usual).lower()
    if given not in {"true", "false", "1", "0"}:
        raise RequestError(f"{key} is true or false, not '{given[:20]}'.")
    return given in {"true", "1"}


def make_app(calls: Calls) -> Guard:
    """Return the application of ASGI."""
    return Guard(_Handlers(calls).answer, calls)

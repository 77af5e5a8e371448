"""README.md: the commands, for whoever gets the folder."""

from quantkit.package.docker import USER
from quantkit.package.facts import Facts

__all__ = ["commands", "readme"]

_NO_REGISTRY = "Push the image and write its address there; --image REGISTRY/NAME does it for you."
_TRITON = "nvcr.io/nvidia/tritonserver:YY.MM-py3"


def commands(facts: Facts) -> tuple[str, ...]:
    """Return the commands from the folder to a server that answers; the image is pushed where its registry is known."""
    port = facts.serve.port
    smoke = "./smoke" if port == 8000 else f"./smoke http://127.0.0.1:{port}"  # its default
    if facts.form == "triton":
        run = f'docker run --rm -p 127.0.0.1:{port}:8000 -v "$PWD/models:/models:ro" {_TRITON}'
        return f"{run} tritonserver --model-repository=/models", smoke
    platform = f"--platform linux/{facts.arch} " if facts.arch else ""
    build = f"docker build {platform}-t {facts.image} ."
    token = "-e QUANTKIT_TOKEN " if facts.serve.require_token else ""
    run = (
        f"docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges "
        f"{token}-p 127.0.0.1:{port}:{port} {facts.image}"
    )
    push = (f"docker push {facts.image}",) if facts.name else ()
    last = "inferenceservice.yaml" if facts.form == "kserve" else "k8s.yaml"
    return build, run, smoke, *push, f"kubectl apply -f {last}"


def readme(facts: Facts) -> str:
    """Return README.md."""
    shown = "".join(f"{command}\n" for command in commands(facts))
    body = _triton(facts) if facts.form == "triton" else _image(facts)
    report = (
        "- `report/`: what the model was measured to be, beside float.\n" if facts.report else ""
    )
    return f"""\
# {facts.slug}

A model to be served, packaged by quantkit {facts.tools["quantkit"]}.

```sh
{shown}```

`./smoke` waits until the server is ready, sends `{facts.sample}` and compares the answer with the one that was recorded here
(`answer.json`); exit code 0: it answers as recorded, 1: it does not, 2: it cannot be asked.

{body}{report}- `deployment.json`: every file with its digest, the models and where they come from, versions.
- `sbom.json`: what is in it, as CycloneDX 1.6.
"""


def _triton(facts: Facts) -> str:
    return f"""\
Triton takes tensors: what `config/quantkit.toml` says of images or texts is the caller's business there.

- `models/{facts.slug}/`: `config.pbtxt` and `1/model.onnx`.
- `config/`: how inputs are prepared, and the names of classes.
"""


def _image(facts: Facts) -> str:
    manifest = (
        "- `inferenceservice.yaml`: for KServe, with the same image as predictor."
        if facts.form == "kserve"
        else "- `k8s.yaml`: Deployment and Service."
    )
    manifest += " Push the image before.\n" if facts.name else f" {_NO_REGISTRY}\n"
    open_port = (
        "it does not start without one"
        if facts.serve.require_token
        else "without it anyone who can reach the port can send requests"
    )
    hashes = "with hashes" if facts.hashed else "without hashes"
    wheels = (
        "; the packages themselves are in `wheels/`: no network is needed" if facts.wheels else ""
    )
    base = (
        "pinned by its digest."
        if "@sha256:" in facts.base
        else "a tag, which moves; the first lines of the `Dockerfile` say how to pin what you have tested."
    )
    return f"""\
The server runs as user {USER}, with a read-only root and {facts.memory_mb} MB of memory at most, and listens on port {facts.serve.port}.
Set QUANTKIT_TOKEN (in Kubernetes: the key `token` of the secret `{facts.slug}-token`) and callers must send it as
`Authorization: Bearer ...`; {open_port}. SIGTERM stops it within {facts.grace_s} s; a balancer that asks
`/v2/health/ready`, as the probes do, loses no request. The base image is `{facts.base}`: {base}

- `Dockerfile`, `requirements.lock`: exact versions, {hashes}{wheels}.
- `compose.yaml`: the same limits for docker compose.
{manifest}- `app/`: the modules of quantkit that a server needs. `model/`: the model. `config/`: how it is served, how inputs are
  prepared, names of classes.
"""

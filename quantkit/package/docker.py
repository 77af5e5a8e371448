"""Dockerfile and .dockerignore."""

import json

from quantkit.package.facts import HOME, Facts

__all__ = ["USER", "default_base", "dockerfile", "dockerignore", "health"]

USER = 10001
"""Who runs the server: nobody that there is, and not root."""
_VENV = "/opt/venv"
# Whose pip, which nobody needs in the image that runs.
_PIP = "/usr/local/lib/python3*/site-packages/pip* /usr/local/bin/pip* /usr/local/lib/python3*/ensurepip /usr/lib/python3*/ensurepip"
# slim images have Python, and no curl.
_ASK = "import urllib.request as r; r.urlopen('http://127.0.0.1:{}/v2/health/ready', timeout=2)"


def default_base(python: str) -> str:
    """Return the image to build on for a version of Python."""
    return f"python:{python}-slim-bookworm"


def health(port: int) -> list[str]:
    """Return the command that asks whether the server is ready."""
    return ["python", "-c", _ASK.format(port)]


def dockerfile(facts: Facts) -> str:
    """Return the Dockerfile: packages and files are put together in one stage and copied to another."""
    port = facts.serve.port
    command = ["python", "-m", "quantkit.serve", f"{HOME}/model/model.onnx"]
    command += ["--recipe", f"{HOME}/config/quantkit.toml"]
    hashes = " --require-hashes" if facts.hashed else ""
    local = " --no-index --find-links /build/wheels" if facts.wheels else ""
    wheels = "COPY wheels/ /build/wheels/\n" if facts.wheels else ""
    others = "".join(f"COPY {role}/ {HOME}/{role}/\n" for role in facts.models if role != "model")
    return f"""\
# {facts.slug}: a model served by quantkit {facts.tools["quantkit"]}. Build: docker build -t {facts.image} .
{_about_base(facts)}ARG BASE={facts.base}

FROM ${{BASE}} AS build
COPY requirements.lock /build/
{wheels}RUN python3 -m venv {_VENV} \\
 && {_VENV}/bin/python -m pip install --no-cache-dir --no-compile --no-deps{hashes} --only-binary :all:{local} \\
      -r /build/requirements.lock \\
 && {_VENV}/bin/python -m pip check \\
 && {_VENV}/bin/python -m pip uninstall --yes pip setuptools
COPY app/ {HOME}/app/
COPY config/ {HOME}/config/
COPY model/ {HOME}/model/
{others}RUN chmod -R a=rX {HOME}

FROM ${{BASE}}
LABEL org.opencontainers.image.title="{facts.slug}" \\
      org.opencontainers.image.version="{facts.tag}"
RUN rm -rf {_PIP}
COPY --from=build {_VENV} {_VENV}
COPY --from=build {HOME} {HOME}
COPY --chmod=0444 deployment.json sbom.json {HOME}/
ENV PATH={_VENV}/bin:$PATH \\
    HOME=/tmp \\
    OMP_NUM_THREADS=1 \\
    ORT_DISABLE_TELEMETRY=1 \\
    PYTHONDONTWRITEBYTECODE=1 \\
    PYTHONUNBUFFERED=1
WORKDIR {HOME}/app
USER {USER}:{USER}
EXPOSE {port}
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \\
  CMD {json.dumps(health(port))}
CMD {json.dumps(command)}
"""


def _about_base(facts: Facts) -> str:
    if "@sha256:" in facts.base:
        return ""
    return f"""\
# The base is a tag, and a tag moves. To pin the image that you have tested, ask for its digest and build with it:
#   docker buildx imagetools inspect {facts.base}
#   docker build --build-arg BASE={facts.base}@sha256:DIGEST -t {facts.image} .
"""


def dockerignore(facts: Facts) -> str:
    """Return which files the build may see: those that the Dockerfile copies."""
    folders = ["app", "config", *facts.models, *(["wheels"] if facts.wheels else [])]
    files = ["deployment.json", "requirements.lock", "sbom.json"]
    return "".join(["*\n", *(f"!{name}\n" for name in (*sorted(folders), *files))])

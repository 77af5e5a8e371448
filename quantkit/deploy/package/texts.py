"""The texts of a package, from the templates next to this module: Dockerfile, manifests, README.md, config.pbtxt.

Names that users choose are in them as `facts.slug` or as the settings checked them, so that they are nothing to a shell;
the names of a model's tensors are quoted.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.text_encoding import CEscape
from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.deploy.package import smoke
from quantkit.deploy.package.facts import Facts
from quantkit.deploy.serve.engine import Engine
from quantkit.errors import ModelError

__all__ = ["SCRIPT", "commands", "config_pbtxt", "texts_of"]

SCRIPT = "smoke"
_USER = 10001  # who runs the server: not root, and no other user of an image
_SHEBANG = "#!/usr/bin/env python3\n"
_MANIFESTS = {"docker": "k8s.yaml", "kserve": "inferenceservice.yaml"}
# How the image and compose ask whether the server is ready: slim images have Python, and no curl.
_PROBE = "import urllib.request as r; r.urlopen('http://127.0.0.1:{}/v2/health/ready', timeout=2)"


def texts_of(facts: Facts) -> dict[str, str]:
    """Return the texts of a package by file name."""
    script = Path(smoke.__file__).read_text(encoding="utf-8")
    texts = {"README.md": _render("README.md", facts), SCRIPT: f"{_SHEBANG}{script}"}
    if facts.form != "triton":
        names = ("Dockerfile", "compose.yaml", _MANIFESTS[facts.form])
        texts |= {name: _render(name, facts) for name in names}
        texts[".dockerignore"] = _render("dockerignore", facts)
    return texts


def commands(facts: Facts) -> tuple[str, ...]:
    """Return the commands from the folder to a server that answers; with a registry, the image is pushed."""
    return tuple(_render("commands.txt", facts).splitlines())


def config_pbtxt(facts: Facts, engine: Engine, *, labelled: str) -> str:
    """Return config.pbtxt, which Triton reads next to a model.

    Requests share runs only where that is asked for and changes no answer; else dimensions are as the model has them.

    Args:
        facts: What is packaged.
        engine: The model.
        labelled: The output whose classes labels.txt names; "": none.

    Raises:
        ModelError: The model takes a single number, or leaves a shape open: Triton can be sent neither.
    """
    single = next((port.name for port in engine.inputs if not port.shape), None)
    if single is not None:
        raise ModelError(
            f"Triton must be told how many dimensions an input has, and '{single}' says none: export it with a shape."
        )
    most = facts.serve.batches.batch
    rows = 0 if engine.unbatched or most == 1 else most
    ports = {"inputs": engine.inputs, "outputs": engine.outputs}
    return _render("config.pbtxt", facts, rows=rows, labelled=labelled, **ports)


def _render(name: str, facts: Facts, **more: Any) -> str:
    known = {key: getattr(facts, key) for key in dir(facts) if not key.startswith("_")}
    probe = _PROBE.format(facts.serve.port)
    return _environment().get_template(name).render(**known, **more, probe=probe, user=_USER)


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 - no HTML
        loader=PackageLoader("quantkit.deploy.package", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda text: CEscape(text, as_utf8=False)
    return environment

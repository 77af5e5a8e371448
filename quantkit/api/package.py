"""`package_model`: a folder that an image is built from."""

from collections.abc import Callable
from pathlib import Path

from quantkit.api.arguments import as_path, checked_kinds
from quantkit.pipeline.package import Packaged, package
from quantkit.settings import DataSettings, GateSettings, PackageSettings, Recipe, ServeSettings


@checked_kinds
def package_model(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    output: str | Path,
    *,
    settings: PackageSettings | None = None,
    serve: ServeSettings | None = None,
    data: DataSettings | None = None,
    rules: GateSettings | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Packaged:
    """Write a container build folder that serves a model.

        made = package_model("model.int8.onnx", "deploy/", settings=PackageSettings(wheels=True))
        print(made.image, made.commands)

    Args:
        model: The model; its external data goes with it.
        output: The folder. An older package in it is replaced as a whole; any other folder must be empty.
        settings: What is written; None: a folder for docker, with the packages that are installed here, pinned by hash.
        serve: How the model is served. The token is never written: it is set where the server runs.
        data: How inputs are prepared, where the model does not say it: `image` and `text` count.
        rules: What a second model (`serve.second`) must keep: `max_flips`, `min_sqnr_db` and `max_latency_ratio`.
        progress: Called with what is being done.

    Returns:
        The image's name, every file with its digest, the next commands, and what should be known.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    recipe = Recipe(
        package=settings or PackageSettings(),
        serve=serve or ServeSettings(),
        data=data or DataSettings(),
        gate=rules or GateSettings(),
    )
    return package(as_path(model, "model"), as_path(output, "output"), recipe, progress)

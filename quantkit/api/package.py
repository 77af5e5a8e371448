"""`package_model`: from a model to a folder that an image is built from.

load -> stage models and settings -> serve them once, record an answer -> lock packages -> write texts -> rename into place
"""

import gc
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit._version import __version__
from quantkit.api.arguments import as_path, checked_kinds
from quantkit.deploy.package import LABELS, MODEL, Staged, lock, stage_models
from quantkit.deploy.package.folder import KIND, RECORD, check_own, digests
from quantkit.deploy.package.server_files import server_files
from quantkit.deploy.package.texts import MEGABYTE, SCRIPT, Facts, commands, config_pbtxt, texts_of
from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.files import make_scratch, scratch
from quantkit.installation import install_command
from quantkit.model.graph.load import LoadedModel, load
from quantkit.model.provenance import software
from quantkit.settings import DataSettings, GateSettings, PackageSettings, Recipe, ServeSettings
from quantkit.text import human

if TYPE_CHECKING:
    from quantkit.deploy.package.sample import Sample
    from quantkit.deploy.serve.service import Loaded


_TAG = 12  # digits
_PRIVILEGED = 1024  # ports below need root
_REPORT = ("result.json", "report.html", "report.md", "picture.svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """What was written.

    Attributes:
        folder: Where.
        form: docker, kserve or triton.
        image: The image's name and tag.
        files: Size and digest of every file, by name.
        packages: What is installed in the image, and its versions.
        hashed: Whether they are pinned by hash.
        commands: What to do next.
        notes: What the user should know.
    """

    folder: Path
    form: str
    image: str
    files: Mapping[str, Mapping[str, Any]]
    packages: Mapping[str, str]
    hashed: bool
    commands: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "folder": str(self.folder)}


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
    source, folder = as_path(model, "model"), as_path(output, "output")
    settings, serve = settings or PackageSettings(), serve or ServeSettings()
    recipe = Recipe(
        package=settings, serve=serve, data=data or DataSettings(), gate=rules or GateSettings()
    )
    second = serve.second
    given = {MODEL: source, "shadow": second.shadow, "canary": second.canary}
    sources = {role: file for role, file in given.items() if file is not None}
    _check(recipe)
    check_own(folder, [*sources.values(), settings.sample, settings.lock, settings.report])
    progress(f"Reading {source}")
    loaded = {role: load(file) for role, file in sources.items()}
    with _staging(folder) as stage:
        facts, notes = _write(stage, loaded, recipe, progress)
        files = digests(stage)
        _write_json(stage / RECORD, {**_record(facts, recipe), "files": files})
        next_steps = commands(facts)
    return Packaged(
        folder=folder,
        form=settings.form,
        image=facts.image,
        files=files,
        packages={one.name: one.version for one in facts.packages},
        hashed=facts.hashed,
        commands=next_steps,
        notes=notes,
    )


@contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """Give a folder that takes the place of `output` when the block ends; if it fails, everything is as it was before.

    Raises:
        OutputError: It cannot be written.
    """
    real = output.resolve()
    missing = [one for one in real.parents if not one.exists()]
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with scratch(real.parent) as work:
            stage = work / "stage"
            stage.mkdir()
            yield stage
            _put_folder(stage, real)
    except BaseException as e:
        for one in missing:
            with suppress(OSError):  # somebody else's, meanwhile
                one.rmdir()
        if isinstance(e, OSError) and not isinstance(e, QuantkitError):
            said = f"Cannot write '{output}': {e.strerror or e}; nothing was changed."
            raise as_os_error(OutputError(said), e) from e
        raise


def _put_folder(stage: Path, folder: Path) -> None:
    """Rename a finished folder to its place; the one that was there before is removed only when that is done."""
    for place in (stage, *stage.rglob("*")):
        place.chmod(0o755 if place.is_dir() or place == stage / SCRIPT else 0o644)
    gc.collect()  # a session that waits to be collected maps the weights, and Windows renames no mapped file
    aside = make_scratch(folder.parent)
    try:
        before = folder.exists()
        if before:
            folder.rename(aside / "before")
        try:
            stage.rename(folder)
        except OSError:
            if before:
                (aside / "before").rename(folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check(recipe: Recipe) -> None:
    settings, serve = recipe.package, recipe.serve
    if serve.port == 0:
        raise UsageError("port '0' is any that is free, and others must know it: choose one.")
    if serve.port < _PRIVILEGED:
        raise UsageError(
            f"port '{serve.port}' needs root, which the server is not: use {_PRIVILEGED} or more."
        )
    if settings.form == "triton" and (serve.second.shadow or serve.second.canary):
        raise UsageError(
            "Triton compares no two models: leave out shadow and canary, or use --format docker."
        )
    report = settings.report
    if report is not None and not any((report / name).is_file() for name in _REPORT):
        raise UsageError(
            f"'{report}' holds no report: give the folder that quantkit evaluate wrote."
        )


def _write(
    stage: Path, loaded: Mapping[str, LoadedModel], recipe: Recipe, progress: Callable[[str], None]
) -> tuple[Facts, tuple[str, ...]]:
    """Write all files but the record; return their facts and what the user should know."""
    progress("Copying the model")
    staged = stage_models(stage, loaded, recipe)
    progress("Recording an answer")
    sample, facts, said = _record_sample(staged, recipe)
    notes = [*staged.notes, *said, *_notes(facts, recipe)]
    if facts.packages:
        progress("Locking packages")
        packages, more = _lock(facts.packages, stage, recipe)
        facts = replace(facts, packages=packages)
        notes += more
        _write_server(stage, facts)
    # The image's name is a digest of its content: the same tag is the same content.
    content = json.dumps([facts.base, facts.serve.port, digests(stage)])
    facts = replace(facts, tag=sha256(content.encode()).hexdigest()[:_TAG])
    for name, text in texts_of(facts).items():
        (stage / name).write_text(text, encoding="utf-8", newline="\n")
    (stage / sample.file).write_bytes(sample.content)
    _write_json(stage / "answer.json", {**sample.record, "tolerance": recipe.package.tolerance})
    if recipe.package.report is not None:
        _copy_report(recipe.package.report, stage / "report")
    return facts, tuple(dict.fromkeys(notes))


def _record_sample(staged: Staged, recipe: Recipe) -> "tuple[Sample, Facts, tuple[str, ...]]":
    """Serve what is staged, as far as that goes without a port, and record an answer; return the server's notes, too."""
    try:
        from quantkit.deploy.package.sample import kept_sample
        from quantkit.deploy.serve.service import start_service
    except ImportError as e:
        raise UsageError(
            f"Packaging needs what serving needs: {install_command('serve')} (missing: {e.name})."
        ) from e
    settings, served = recipe.package, staged.recipe.serve
    triton, name = settings.form == "triton", served.name or ""
    with closing(start_service(staged.file, served, staged.recipe)) as service:
        loaded, notes = service.loaded, service.notes()
        sample = kept_sample(loaded, name, settings.sample, tensors=triton)
    if len(sample.content) > served.limits.body_mb * MEGABYTE and not triton:
        raise UsageError(
            f"The sample has {human(len(sample.content))}, more than the server takes: set --body-mb, or give a "
            "smaller --sample."
        )
    python = lock.python_version()
    facts = Facts(
        settings=settings,
        serve=served,
        arch=_arch(recipe),
        packages=() if triton else _packages(loaded),
        models=staged.models,
        sample=sample.file,
        tools={"quantkit": __version__, "python": python, **software()},
    )
    if triton:
        _write_triton(staged, facts, loaded)
    return sample, facts, notes


def _packages(loaded: "Loaded") -> tuple[lock.Package, ...]:
    images = (lock.IMAGES,) if loaded.predictor.image else ()
    texts = (lock.TEXTS,) if loaded.predictor.text else ()
    return lock.installed((*lock.SERVER, *images, *texts))


def _write_triton(staged: Staged, facts: Facts, loaded: "Loaded") -> None:
    """Write config.pbtxt next to the model, and the labels if an output has as many classes."""
    file, home = facts.serve.labels, staged.file.parents[1]
    count = len(loaded.predictor.labels)
    scores = (p.name for p in loaded.engine.outputs if count and p.shape[1:] == (count,))
    labelled = next(scores, "") if file is not None else ""
    text = config_pbtxt(facts, loaded.engine, labelled=labelled)
    (home / "config.pbtxt").write_text(text, encoding="ascii")
    if labelled and file is not None:
        shutil.copyfile(file, home / LABELS)


def _arch(recipe: Recipe) -> str:
    try:
        return lock.machine(recipe.package.arch)
    except UsageError:  # where nothing is locked, any machine will do
        if recipe.package.hashes:
            raise
        return ""


def _notes(facts: Facts, recipe: Recipe) -> list[str]:
    notes = []
    if facts.packages and not facts.settings.image:
        notes.append(
            f"The manifests name the image {facts.slug} without a registry: package with --image REGISTRY/NAME to push it."
        )
    if recipe.serve.token is not None:
        notes.append("The token is not part of the package: set QUANTKIT_TOKEN in the container.")
    if recipe.package.sample is None:
        notes.append(
            "The sample that ./smoke sends is made up: keep a real one with --sample FILE."
        )
    if facts.packages and not facts.pinned_base:
        notes.append(
            f"The base image {facts.base} is a tag, which moves: pin it by its digest with --base."
        )
    return notes


def _lock(
    packages: tuple[lock.Package, ...], stage: Path, recipe: Recipe
) -> tuple[tuple[lock.Package, ...], list[str]]:
    """Give packages their hashes, from a file or from an index; write the wheels if they are asked for."""
    settings, notes = recipe.package, []
    if settings.lock is not None:
        here = {one.name: one.version for one in packages}
        packages = lock.read_lock(settings.lock, packages)
        other = [
            f"{one.name} {one.version} ({here[one.name]} here)"
            for one in packages
            if here.get(one.name, one.version) != one.version
        ]
        if other:
            notes.append(f"The answer was recorded with other versions than {', '.join(other)}.")
    if not settings.hashes:
        notes.append(
            "requirements.lock has no hashes: whoever controls the index controls the image."
        )
    elif settings.lock is None or settings.wheels:
        with scratch() as place:
            packages = lock.download(packages, lock.machine(settings.arch), place)
            if settings.wheels:
                shutil.copytree(place, stage / "wheels", copy_function=shutil.copyfile)
    return packages, notes


def _write_server(stage: Path, facts: Facts) -> None:
    text = lock.lock_text(facts.packages, facts.tools["python"])
    (stage / "requirements.lock").write_text(text, encoding="ascii")
    for name, file in server_files().items():
        (stage / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, stage / "app" / name)


def _copy_report(source: Path, target: Path) -> None:
    target.mkdir()
    for name in _REPORT:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _record(facts: Facts, recipe: Recipe) -> dict[str, Any]:
    """Return deployment.json, but for the files."""
    return {
        "kind": KIND,
        "schema": 1,
        "name": facts.slug,
        "image": facts.image,
        "format": facts.settings.form,
        "base": facts.base,
        "versions": facts.tools,
        "packages": {one.name: one.version for one in facts.packages},
        "hashes": facts.hashed,
        "tolerance": recipe.package.tolerance,
        "models": facts.models,
    }


def _write_json(file: Path, plain: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(plain, indent=1) + "\n", encoding="ascii")

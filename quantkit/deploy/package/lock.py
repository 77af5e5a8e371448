"""Which packages a server needs, in which versions, with which hashes.

The versions are those that are installed here: with them the kept sample was answered. Hashes come from wheels that pip
downloads, or from a file that the user has.
"""

import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from quantkit.deploy.package.folder import sha256_of
from quantkit.errors import UsageError, as_os_error
from quantkit.installation import install_command
from quantkit.model.provenance import runtime_package

SERVER = (
    "httptools",
    "msgspec",
    "numpy",
    "onnxruntime",
    "prometheus-client",
    "python-multipart",
    "uvicorn",
    "uvloop",
)
"""What `quantkit.deploy.serve` imports."""
IMAGES, TEXTS = "pillow", "tokenizers"
"""What it imports for images or texts."""

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Wheels for any glibc up to that of Debian 10, by their new and old names.
_SYSTEMS = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014")
_SYSTEMS += ("manylinux2010", "manylinux1")
_EXACT = re.compile(r"==([A-Za-z0-9.!+_-]+)", re.ASCII)
_OTHERWISE = "give a file with hashes by --lock, or --no-lock for versions without hashes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package in the image.

    Attributes:
        name: As PyPI writes it, in lower case with dashes.
        version: Exactly.
        hashes: SHA-256 of the files that may be installed; empty: any.
        licence: As its metadata says it; "" if it does not.
        needs: Names of those that it needs itself.
        marker: Where it is installed; "" for everywhere.
    """

    name: str
    version: str
    hashes: tuple[str, ...] = ()
    licence: str = ""
    needs: tuple[str, ...] = ()
    marker: str = ""


def installed(names: Iterable[str]) -> tuple[Package, ...]:
    """Return packages with all that they need, in the versions that are installed here.

    Raises:
        UsageError: One is not installed.
    """
    found: dict[str, Package] = {}
    # Builds of onnxruntime for other devices have other names.
    waiting = [runtime_package()[0] if name == "onnxruntime" else name for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError as e:
            if name == "uvloop":  # Windows has none, and the server does without
                continue
            raise UsageError(
                f"The image gets the packages that are installed here, and '{name}' is not: "
                f"{install_command('serve')}, or give a file by --lock."
            ) from e
        wanted = map(Requirement, about.requires or ())
        needs = {r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})}
        found[name] = Package(
            name=name,
            version=about.version,
            licence=_licence(about),
            needs=tuple(sorted(map(canonicalize_name, needs))),
        )
        waiting += found[name].needs
    return tuple(found[name] for name in sorted(found))


def _licence(about: metadata.Distribution) -> str:
    """Return the licence in one line, not its whole text; "" if the metadata has none."""
    plain = about.metadata.json
    text = str(plain.get("license_expression") or plain.get("license") or "")
    if text and len(text) < 80 and "\n" not in text:
        return text.strip()
    kinds = plain.get("classifier", ())
    return next((k.rpartition(" :: ")[2] for k in kinds if k.startswith("License ::")), "")


def machine(arch: str | None) -> str:
    """Return amd64 or arm64: as requested, else this machine.

    Raises:
        UsageError: It is neither.
    """
    own = platform.machine().lower()
    found = arch or next((name for name, kernel in _MACHINES.items() if own in (name, kernel)), "")
    if not found:
        raise UsageError(
            f"Packages are locked for amd64 or arm64, and this machine is {own}: set --arch."
        )
    return found


def download(packages: Sequence[Package], arch: str, folder: Path) -> tuple[Package, ...]:
    """Download the wheels of packages with pip, from the index that it is set up for; return them with hashes.

    Args:
        packages: Those with hashes must have one of these.
        arch: amd64 or arm64.
        folder: Where the wheels are put.

    Raises:
        UsageError: pip cannot do it, or a wheel has another hash.
    """
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-input", "--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", "20"),
        *("--implementation", "cp", "--python-version", python_version()),
        *(f"--platform={system}_{_MACHINES[arch]}" for system in _SYSTEMS),
        *("--dest", str(folder), *(f"{one.name}=={one.version}" for one in packages)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        said = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        raise UsageError(
            f"pip cannot get the packages for {arch} ({said.removeprefix('ERROR:').strip().rstrip('.')}): {_OTHERWISE}."
        )
    wheels = {parse_wheel_filename(file.name)[0]: file for file in folder.glob("*.whl")}
    return tuple(_with_hash(one, wheels.get(canonicalize_name(one.name))) for one in packages)


def _with_hash(package: Package, wheel: Path | None) -> Package:
    if wheel is None:
        raise UsageError(f"pip downloaded no wheel of {package.name}: {_OTHERWISE}.")
    digest = sha256_of(wheel)
    if package.hashes and digest not in package.hashes:
        raise UsageError(
            f"The wheel {wheel.name} from the index has none of the hashes in the lock file: its sha256 is {digest}."
        )
    return replace(package, hashes=package.hashes or (digest,))


def python_version() -> str:
    """Return the version of Python that runs this, as "3.13"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_lock(file: Path, needed: Sequence[Package]) -> tuple[Package, ...]:
    """Return the packages of a lock file, as pip-compile and uv write it.

    Args:
        file: ``name==version --hash=sha256:...`` on each line, which may be continued.
        needed: What must be in it.

    Raises:
        UsageError: It cannot be read, a line is something else, or a package is missing.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        said = UsageError(f"Cannot read the lock file '{file}': {e}.")
        raise (as_os_error(said, e) if isinstance(e, OSError) else said) from e
    known = {one.name: one for one in needed}
    found: dict[str, Package] = {}
    for line in text.replace("\\\n", " ").splitlines():
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        if not plain:
            continue
        one = _read_line(plain)
        if one is None:
            raise UsageError(
                f"'{file}' has a line that is not a package with version and hash: {plain[:60]!r}; write it with uv pip "
                "compile --generate-hashes."
            )
        about = known.get(one.name)
        if about is not None and about.version == one.version:
            one = replace(one, licence=about.licence, needs=about.needs)
        found[one.name] = one
    missing = [name for name in known if name not in found]
    if missing:
        raise UsageError(f"'{file}' lacks what a server needs: {', '.join(missing)}.")
    return tuple(found[name] for name in sorted(found))


def _read_line(line: str) -> Package | None:
    """Return the package of a line, ``name[extras]==version ; marker --hash=sha256:...``; None: it is something else."""
    text, *hashes = re.split(r"\s+--hash=", line)
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return None
    version = _EXACT.fullmatch(str(wanted.specifier))
    good = all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes)
    if version is None or not hashes or not good or not line.isascii():
        return None
    return Package(
        name=canonicalize_name(wanted.name),
        version=version[1],
        hashes=tuple(sorted(one.partition(":")[2] for one in hashes)),
        marker=str(wanted.marker or ""),
    )


def lock_text(packages: Sequence[Package], python: str) -> str:
    """Return requirements.lock."""
    hashed = all(one.hashes for one in packages)
    how = "with hashes" if hashed else "WITHOUT hashes: an index could put another file there"
    lines = [f"# For Python {python}; exact versions, {how}.\n"]
    for one in packages:
        marker = f" ; {one.marker}" if one.marker else ""
        hashes = "".join(f" \\\n    --hash=sha256:{value}" for value in one.hashes)
        lines.append(f"{one.name}=={one.version}{marker}{hashes}\n")
    return "".join(lines)

"""Which packages a server needs, in which versions, with which hashes.

The versions are those that are installed here: with them the kept sample was answered. Hashes come from wheels that pip
downloads, or from a file that the user has.
"""

import hashlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from quantkit.errors import UsageError, as_os_error, install_command
from quantkit.provenance import runtime_package

__all__ = ["IMAGES", "SERVER", "TEXTS", "Package", "download", "installed", "lock_text", "machine"]
__all__ += ["python_version", "read_lock"]

SERVER = (
    "httptools",
    "msgspec",
    "numpy",
    "onnxruntime",
    "prometheus-client",
    "starlette",
    "uvicorn",
    "uvloop",
)
"""What `quantkit.serve` imports."""
IMAGES, TEXTS = "pillow", "tokenizers"
"""What it imports where images or texts come in."""

_FASTER = "uvloop"  # there is none for Windows, and the server does without
_RUNTIME = "onnxruntime"  # its builds for other devices have other names
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24", "manylinux_2_17")
_OLDER = ("manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# A line of a lock file: name[extras]==version ; marker --hash=sha256:...
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9,._ -]+\])?==(?P<version>[A-Za-z0-9.!+_-]+)"
    r"(?:\s*;\s*(?P<marker>[\w\s.\"'<>=!~(),-]+?))?(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)",
    re.ASCII,
)
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


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(names: Iterable[str]) -> tuple[Package, ...]:
    """Return packages with all that they need, in the versions that are installed here.

    Raises:
        UsageError: One is not installed.
    """
    found: dict[str, Package] = {}
    waiting = [runtime_package()[0] if name == _RUNTIME else name for name in names]
    if _FASTER in waiting and not _is_installed(_FASTER):
        waiting.remove(_FASTER)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError as e:
            raise UsageError(
                f"The image gets the packages that are installed here, and '{name}' is not: "
                f"{install_command('serve')}, or give a file by --lock."
            ) from e
        needs = tuple(sorted(_needs(about)))
        found[name] = Package(
            name=name, version=about.version, licence=_licence(about), needs=needs
        )
        waiting += needs
    return tuple(found[name] for name in sorted(found))


def _needs(about: metadata.Distribution) -> set[str]:
    """Return what a package needs. What stands there for other systems or versions of Python is not installed here."""
    found = set()
    for line in about.requires or ():
        requirement, _, marker = line.partition(";")
        name = _NAME.match(requirement.strip())
        if name is None or "extra" in marker:
            continue
        wanted = _normal(name[0])
        if not marker or _is_installed(wanted):
            found.add(wanted)
    return found


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _licence(about: metadata.Distribution) -> str:
    """Return one line, not a whole text, of what is said of a licence."""
    said: Mapping[str, str] = cast("Any", about.metadata)  # is one, whatever its type says
    told = said.get("License-Expression") or said.get("License") or ""
    if told and len(told) < 80 and "\n" not in told:
        return told.strip()
    kinds = about.metadata.get_all("Classifier") or []
    return next((k.rpartition(" :: ")[2] for k in kinds if k.startswith("License ::")), "")


def machine(arch: str | None) -> str:
    """Return amd64 or arm64: as asked, else what this machine is.

    Raises:
        UsageError: It is neither.
    """
    own = platform.machine().lower()
    known = {**{v: k for k, v in _MACHINES.items()}, **{k: k for k in _MACHINES}}
    found = arch or known.get(own)
    if found is None:
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
    tags = [f"{glibc}_{_MACHINES[arch]}" for glibc in (*_GLIBC, *_OLDER)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-input", "--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", "20"),
        *("--implementation", "cp", "--python-version", python_version()),
        *(word for tag in tags for word in ("--platform", tag)),
        *("--dest", str(folder), *(f"{one.name}=={one.version}" for one in packages)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        said = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        raise UsageError(
            f"pip cannot get the packages for {arch} ({said.removeprefix('ERROR:').strip().rstrip('.')}): {_OTHERWISE}."
        )
    files = {_normal(file.name.split("-")[0]): file for file in sorted(folder.glob("*.whl"))}
    return tuple(_checked(one, files.get(one.name)) for one in packages)


def _checked(package: Package, wheel: Path | None) -> Package:
    if wheel is None:
        raise UsageError(f"pip downloaded no wheel of {package.name}: {_OTHERWISE}.")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if package.hashes and found not in package.hashes:
        raise UsageError(
            f"The wheel {wheel.name} from the index has none of the hashes in the lock file: its sha256 is {found}."
        )
    return package if package.hashes else replace(package, hashes=(found,))


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
        said = f"Cannot read the lock file '{file}': {e}."
        raise (
            as_os_error(UsageError(said), e) if isinstance(e, OSError) else UsageError(said)
        ) from e
    known = {one.name: one for one in needed}
    found: dict[str, Package] = {}
    for line in text.replace("\\\n", " ").replace("\\\r\n", " ").splitlines():
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        if not plain:
            continue
        match = _LINE.fullmatch(plain)
        if match is None:
            raise UsageError(
                f"'{file}' has a line that is no package with version and hash: {plain[:60]!r}; write it with uv pip "
                "compile --generate-hashes."
            )
        name = _normal(match["name"])
        about = known.get(name, Package(name=name, version=""))
        same = about if about.version == match["version"] else Package(name=name, version="")
        hashes = tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", match["hashes"])))
        found[name] = replace(
            same,
            version=match["version"],
            hashes=hashes,
            marker=" ".join((match["marker"] or "").split()),
        )
    missing = [one.name for one in needed if one.name not in found]
    if missing:
        raise UsageError(f"'{file}' lacks what a server needs: {', '.join(missing)}.")
    return tuple(found[name] for name in sorted(found))


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

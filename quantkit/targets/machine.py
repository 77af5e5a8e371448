"""The CPU that this process runs on. Never fails: what cannot be found out is said to be unknown."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

# How long an integer product takes for the time of a float one, beside x86 with VNNI: by what the instructions do, not
# measured there. VNNI and ARM's dot product multiply four pairs where a float instruction multiplies one; AVX2 alone needs
# three instructions for that, of which some run beside others.
_INTEGER_TIME = {"x86-vnni": 1.0, "arm64": 1.0, "x86-avx2": 2.0}

_X86 = "x86_64"
_ARM = "arm64"
_SPELLINGS = {"amd64": _X86, "x64": _X86, "x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}

# Linux's names of what matters for integer arithmetic, in the order that they are shown.
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm")
_EXACT = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})

# macOS's names for the same: features of x86, and switches of ARM.
_X86_FEATURES = {"AVX2": "avx2", "AVX512F": "avx512f", "AVX512VNNI": "avx512_vnni"}
_ARM_SWITCHES = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A CPU.

    Attributes:
        architecture: "x86_64", "arm64", another as the system spells it, or "unknown".
        brand: The CPU's name, or the architecture.
        flags: The instruction sets of interest that it has, by Linux's names; None if unknown.
    """

    architecture: str
    brand: str
    flags: tuple[str, ...] | None = None

    @property
    def saturates(self) -> bool | None:
        """Whether onnxruntime's uint8 x int8 products clip at int16 here; None if unknown.

        They do on x86 without VNNI, and nowhere else.
        """
        if self.architecture == _ARM:
            return False
        if self.architecture != _X86 or self.flags is None:
            return None
        return _EXACT.isdisjoint(self.flags)

    @property
    def target(self) -> str:
        """The name of the target that fits this machine alone; "cpu" if unknown."""
        if self.architecture == _ARM:
            return "arm64"
        return {True: "x86-avx2", False: "x86-vnni", None: "cpu"}[self.saturates]

    def __str__(self) -> str:
        known = ", ".join(self.flags or ()) or "no vector integers known"
        return f"{self.brand} ({known})"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with what follows from it."""
        return asdict(self) | {"saturates": self.saturates, "target": self.target}


def integer_time(target: str) -> float | None:
    """Return how much longer integer products take on another CPU than on this one, beside float.

    Args:
        target: The name of a target.

    Returns:
        1 for this machine and for "cpu", which is any; None for what is no CPU.
    """
    here = this_machine().target
    if target in {"cpu", here}:
        return 1.0
    there = _INTEGER_TIME.get(target)
    return None if there is None else there / _INTEGER_TIME.get(here, 1.0)


@cache
def this_machine() -> Machine:
    """Return the CPU that this process runs on."""
    system = platform.system()
    if system == "Linux":
        return from_cpuinfo(_read_text(Path("/proc/cpuinfo")), platform.machine())
    if system == "Darwin":
        return from_sysctl(_sysctl(), platform.machine())
    return Machine(
        architecture=_architecture(platform.machine()),
        brand=platform.processor() or platform.machine() or "unknown",
    )


def cores() -> int:
    """Return how many processes of this one's may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def from_cpuinfo(text: str, machine: str) -> Machine:
    """Read Linux's /proc/cpuinfo; an empty text is one that could not be read."""
    found = _pairs(text)
    named = found.get("flags", found.get("Features"))
    return Machine(
        architecture=_architecture(machine),
        brand=found.get("model name") or machine or "unknown",
        flags=None if named is None else _of_interest(named.split()),
    )


def from_sysctl(text: str, machine: str) -> Machine:
    """Read macOS's ``sysctl machdep.cpu hw.optional``; an empty text is one that could not be read."""
    found = _pairs(text)
    features = (
        f"{found.get('machdep.cpu.features', '')} {found.get('machdep.cpu.leaf7_features', '')}"
    )
    has = [_X86_FEATURES[f] for f in features.split() if f in _X86_FEATURES]
    has += [flag for switch, flag in _ARM_SWITCHES.items() if found.get(switch) == "1"]
    return Machine(
        architecture=_architecture(machine),
        brand=found.get("machdep.cpu.brand_string") or machine or "unknown",
        flags=_of_interest(has) if found else None,
    )


def _architecture(machine: str) -> str:
    return _SPELLINGS.get(machine.lower(), machine or "unknown")


def _of_interest(flags: list[str]) -> tuple[str, ...]:
    return tuple(flag for flag in _FLAGS if flag in flags)


def _pairs(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _sysctl() -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout

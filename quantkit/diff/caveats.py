"""Why the figures of two results may not compare."""

from collections.abc import Iterator
from dataclasses import dataclass

from quantkit.result import DataSource, Result

__all__ = ["Caveat", "caveats_of"]

_DIGEST = 12  # characters of a digest that people read


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """Something that differs and that figures depend on.

    Attributes:
        what: What differs.
        a: In the first result.
        b: In the second.
        spoils: What does not compare because of it.
    """

    what: str
    a: str
    b: str
    spoils: str


def caveats_of(a: Result, b: Result) -> tuple[Caveat, ...]:
    """Return what differs between the conditions of two results, the gravest first."""
    return tuple(c for c in (*_models(a, b), *_data(a.data, b.data), *_machine(a, b)) if c.a != c.b)


def _models(a: Result, b: Result) -> Iterator[Caveat]:
    yield Caveat(
        what="float model",
        a=_short(a.float_model.file.sha256),
        b=_short(b.float_model.file.sha256),
        spoils="drops, flips, SQNR and ratios: they are relative to another model",
    )


def _data(a: DataSource, b: DataSource) -> Iterator[Caveat]:
    spoils = "metrics, drops, flips and SQNR: they are of other samples"
    yield Caveat(
        what="data fingerprint", a=_short(a.fingerprint), b=_short(b.fingerprint), spoils=spoils
    )
    yield Caveat(what="samples", a=str(a.samples), b=str(b.samples), spoils=spoils)
    if a.samples == b.samples:  # else it says the same again
        yield Caveat(what="order", a=a.order, b=b.order, spoils=spoils)
    yield Caveat(
        what="preprocessing",
        a="; ".join(a.preprocessing),
        b="; ".join(b.preprocessing),
        spoils=spoils,
    )


def _machine(a: Result, b: Result) -> Iterator[Caveat]:
    x, y = a.origin, b.origin
    spoils = "latency and memory, and integers where a CPU saturates"
    yield Caveat(what="CPU", a=x.cpu, b=y.cpu, spoils=spoils)
    yield Caveat(what="cores", a=str(x.cores), b=str(y.cores), spoils="latency")
    yield Caveat(what="system", a=x.system, b=y.system, spoils="latency and memory")
    for name in {**x.software, **y.software}:
        yield Caveat(
            what=name,
            a=x.software.get(name, "none"),
            b=y.software.get(name, "none"),
            spoils=_spoiled_by(name),
        )


def _spoiled_by(software: str) -> str:
    if software == "onnxruntime":
        return "latency, memory and int8 share: another runtime ran the models"
    return "figures that it computes" if software == "quantkit" else "little"


def _short(digest: str) -> str:
    return digest[:_DIGEST]

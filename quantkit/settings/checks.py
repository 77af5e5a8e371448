"""What a value may be, said once: a flag and a line of quantkit.toml fail alike."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from quantkit.errors import UsageError

__all__ = ["check_at_least", "check_choice", "closest"]


def closest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, or ""."""
    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[near[0]]}'?)" if near else ""


def check_choice(key: str, value: str | None, known: Sequence[str]) -> None:
    """Raise UsageError if `value` is given and none of `known`."""
    if value is not None and value not in known:
        raise UsageError(
            f"{key} '{value}' is unknown{closest(value, known)}: use one of {', '.join(known)}."
        )


def check_at_least(key: str, value: int | None, low: int, most: int | None = None) -> None:
    """Raise UsageError if `value` is given and below `low`, or above what can be meant."""
    if value is not None and value < low:
        raise UsageError(f"{key} '{value}' is too small: use a whole number of at least {low}.")
    if value is not None and most is not None and value > most:
        raise UsageError(f"{key} '{value}' is too large: use a whole number of at most {most}.")

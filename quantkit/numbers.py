"""Numbers as people read them in messages, tables and pages."""


def human(nbytes: float) -> str:
    """Write a number of bytes: ``22.9 MB``."""
    for unit in ("bytes", "kB", "MB"):
        digits = 0 if unit == "bytes" else 1
        text = f"{nbytes:.{digits}f}"
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"


def counted(count: int, noun: str) -> str:
    """Write how many of something there are: ``1 sample``, ``1,872 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def compact(value: float) -> str:
    """Write two decimals, of small numbers two digits; no zeros at the end; huge ones with a power of ten."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) < 0.1:
        return f"{value:.2g}" if value else "0"
    return f"{value:.2f}".rstrip("0").rstrip(".")

"""Facts about files that everything which writes one needs."""

import os

__all__ = ["umask"]


def umask() -> int:
    """Return the permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Whether integers keep to the limits of pairs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.pairs import Limits


def is_within(q: NDArray[Any], limits: Limits) -> bool:
    """Say whether every weight and every pair of (..., K) integers keeps to the limits."""
    whole = np.asarray(q, np.int64)
    pairs = whole[..., 0 : whole.shape[-1] // 2 * 2 : 2] + whole[..., 1::2]
    return bool((np.abs(whole) <= limits.peak).all() and (np.abs(pairs) <= limits.pair).all())

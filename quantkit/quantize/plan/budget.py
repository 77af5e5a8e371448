"""How many bits each weight gets, so that the model loses least and the file keeps to a size.

What a weight of b bits does to the outputs falls by about four for each bit more, so that of bits given to one weight the next is worth less than the last. Bits are therefore
given one at a time, each to the weight that gains most per byte, until the budget is spent: the best that can be done, up to what the last one leaves over. Weights of 4 and of
8 bits beside each other are much worse than all of 6, which this finds by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What one weight may be.

    Attributes:
        nbytes: What it takes, by number of bits.
        noise: What it then does to the outputs, noise over signal, by number of bits.
    """

    nbytes: Mapping[int, int]
    noise: Mapping[int, float]

    @property
    def bits(self) -> tuple[int, ...]:
        """The numbers of bits that are worth having: more bytes must mean less noise."""
        found: list[int] = []
        for bits in sorted(self.nbytes):
            while found and self.nbytes[found[-1]] >= self.nbytes[bits]:
                found.pop()
            if not found or self.noise[bits] < self.noise[found[-1]]:
                found.append(bits)
        return tuple(found)


def bits_within(weights: Mapping[str, Choices], budget: int) -> dict[str, int]:
    """Return how many bits each weight gets.

    Args:
        weights: What each may be.
        budget: Bytes that all of them together may take. Where the fewest bits take more already, they are returned.
    """
    steps = {name: one.bits for name, one in weights.items()}
    at = dict.fromkeys(weights, 0)
    left = budget - sum(one.nbytes[steps[name][0]] for name, one in weights.items())

    def worth(name: str) -> tuple[float, int, str] | None:
        """Return what the best next number of bits of a weight is worth: perhaps not the very next one."""
        one, own = weights[name], steps[name]
        now = own[at[name]]
        further = [
            ((one.noise[now] - one.noise[b]) / (one.nbytes[b] - one.nbytes[now]), i)
            for i, b in enumerate(own)
            if i > at[name]
        ]
        if not further:
            return None
        gain, index = max(further)
        return -gain, index, name

    heap = [found for name in weights if (found := worth(name)) is not None]
    heapify(heap)
    while heap:
        _, index, name = heappop(heap)
        own, one = steps[name], weights[name]
        cost = one.nbytes[own[index]] - one.nbytes[own[at[name]]]
        if cost > left:
            if index > at[name] + 1:  # a smaller step may still fit
                steps[name] = own[:index]
                if (again := worth(name)) is not None:
                    heappush(heap, again)
            continue
        left -= cost
        at[name] = index
        if (again := worth(name)) is not None:
            heappush(heap, again)
    return {name: steps[name][at[name]] for name in weights}

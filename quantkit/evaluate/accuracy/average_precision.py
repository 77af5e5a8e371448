"""Mean average precision of boxes, as COCO defines it, and how it varies.

For a class and a limit of overlap: detections of all images by falling score; each, if it overlaps a box of its image that
no better one has, is a hit. AP is the mean precision at 101 levels of recall, where the precision at a level is the
best at that level or above. The metric is the mean over classes that have boxes, and limits.

Redrawn images count as often as they are drawn: hits are found once, and only sums are made again for each draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Boxes
from quantkit.evaluate.accuracy.figures import Figure, Floats, Indices
from quantkit.numerics.statistics import (
    Bounds,
    drop_interval,
    percentiles,
    redrawn_counts,
    unseen_weights,
)

LIMITS = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""Overlaps (intersection over union) that COCO asks for."""

_LEVELS = np.linspace(0, 1, 101)
_MOST = 100  # detections of a class on an image
_DRAWS = 400
_TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """What a model found on an image: boxes (n, 4) as x1, y1, x2, y2, their scores, their category ids."""

    boxes: Floats
    scores: Floats
    classes: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDetections:
    """Detections of one class on all images, by falling score.

    Attributes:
        image: The number of each one's image.
        hit: (limits, detections).
        counts: (limits, detections): False for what is neither hit nor mistake.
        wanted: The images of the boxes that are to be found, one entry per box.
    """

    image: Indices
    hit: NDArray[np.bool_]
    counts: NDArray[np.bool_]
    wanted: Indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AveragePrecision(Figure):
    """Mean average precision of all models.

    Attributes:
        found: Of each model, the classes.
        images: How many.
        name: "map" over all limits, "map-50" at the first.
        chance: What the same detections score on other images.
    """

    found: tuple[tuple[ClassDetections, ...], ...]
    images: int
    name: str
    chance: float | None = None
    _drawn: dict[tuple[int, int], Floats] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """How many images were scored."""
        return self.images

    def value(self, model: int) -> float:
        """Return the metric of a model."""
        return self._weighed(model, np.ones(self.images))

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the metric over redrawn images."""
        return None if self.images <= 1 else percentiles(self._redrawn(model, seed), confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the interval of the drop with one image more, with a box of the rarest class that one model misses.

        Of few images with other hits many redraws see none; of a rare class there may be nothing to see at all.
        """
        if self.images <= 1 or not any(one.wanted.size for one in self.found[0]):
            none = np.zeros(self.images)
            return drop_interval(none, confidence=confidence) if self._alike(model) else None
        drops = self._drops_with_unseen(model, seed)
        return percentiles(drops[0], confidence)[0], percentiles(drops[1], confidence)[1]

    def _drops_with_unseen(self, model: int, seed: int) -> Floats:
        """Return the drop of each draw if float alone, and if the candidate alone misses the box: (2, draws)."""
        boxes = [one.wanted.size or np.inf for one in self.found[0]]
        rarest = int(np.argmin(boxes))
        pairs = [*zip(self.found[0], self.found[model], strict=True)]
        a, b = pairs.pop(rarest)
        with_box = [_with_box(x, self.images, hit=hit) for x in (a, b) for hit in (False, True)]
        drops = []
        for block in unseen_weights(np.ones(self.images), draws=_DRAWS, seed=seed):
            for weights in block:
                both = [[_precision(x, weights) for x in pair] for pair in pairs]
                others = [
                    before - now for before, now in both if before is not None and now is not None
                ]
                a0, a1, b0, b1 = (_precision(x, weights) or 0.0 for x in with_box)
                rest, count = sum(others), len(others) + 1
                drops.append(((a0 - b1 + rest) / count, (a1 - b0 + rest) / count))
        return np.array(drops).T

    def contributions(self, model: int) -> Floats:
        """Return the drop less what it is without each image, so that the mean is the drop (the jackknife's values)."""
        whole, n = self.value(0) - self.value(model), self.images
        parts = np.empty(n)
        for image in range(n):
            weights = np.ones(n)
            weights[image] = 0.0
            without = self._weighed(0, weights) - self._weighed(model, weights)
            parts[image] = (n - 1) * (whole - without)
        return np.asarray(parts - parts.mean() + whole)

    def only(self, chosen: Indices) -> Self:
        """Return the same of some images."""
        found = tuple(tuple(_only(one, chosen) for one in classes) for classes in self.found)
        return replace(self, found=found, images=chosen.size, chance=None, _drawn={})

    def _alike(self, model: int) -> bool:
        """Return whether the detections of both models hit and miss alike."""
        pairs = zip(self.found[0], self.found[model], strict=True)
        return all(
            np.array_equal(a.hit, b.hit) and np.array_equal(a.counts, b.counts) for a, b in pairs
        )

    def _redrawn(self, model: int, seed: int) -> Floats:
        if (model, seed) not in self._drawn:
            draws = redrawn_counts(self.images, draws=_DRAWS, seed=seed)
            values = [self._weighed(model, weights) for block in draws for weights in block]
            self._drawn[model, seed] = np.array(values)
        return self._drawn[model, seed]

    def _weighed(self, model: int, weights: Floats) -> float:
        found = [p for one in self.found[model] if (p := _precision(one, weights)) is not None]
        return float(np.mean(found)) if found else 0.0


def _with_box(found: ClassDetections, image: int, *, hit: bool) -> ClassDetections:
    """Return the detections with a box on one more image, which is found at the best score or not at all."""
    wanted = np.append(found.wanted, image)
    if not hit:
        return replace(found, wanted=wanted)
    limits = len(found.hit)
    return ClassDetections(
        image=np.insert(found.image, 0, image),
        hit=np.insert(found.hit, 0, np.ones(limits, np.bool_), axis=1),
        counts=np.insert(found.counts, 0, np.ones(limits, np.bool_), axis=1),
        wanted=wanted,
    )


def _only(found: ClassDetections, chosen: Indices) -> ClassDetections:
    place = np.full(max(found.image.max(initial=-1), found.wanted.max(initial=-1), *chosen) + 1, -1)
    place[chosen] = np.arange(chosen.size)
    kept, wanted = place[found.image] >= 0, place[found.wanted]
    return ClassDetections(
        image=place[found.image[kept]],
        hit=found.hit[:, kept],
        counts=found.counts[:, kept],
        wanted=wanted[wanted >= 0],
    )


def _precision(found: ClassDetections, weights: Floats) -> float | None:
    """Return AP of a class, mean over the limits, where each image counts `weights` times; None: it has no boxes."""
    total = weights[found.wanted].sum()
    if not total:
        return None
    if not found.image.size:
        return 0.0
    own = weights[found.image]
    hits = np.cumsum(np.where(found.hit & found.counts, own, 0.0), axis=1)
    misses = np.cumsum(np.where(~found.hit & found.counts, own, 0.0), axis=1)
    precision = hits / np.maximum(hits + misses, _TINY)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    best = np.concatenate([best, np.zeros((len(best), 1))], axis=1)
    places = [np.searchsorted(row, _LEVELS) for row in hits / total]
    return float(np.mean([row[at] for row, at in zip(best, places, strict=True)]))


def matched(
    images: Sequence[Detections], labels: Sequence[Boxes], limits: Sequence[float] = LIMITS
) -> tuple[ClassDetections, ...]:
    """Return the detections of each class that the labels know, matched with the boxes.

    Args:
        images: What a model found, one per image.
        labels: What is to be found, one per image.
        limits: Overlaps (intersection over union) from which a detection is a hit.
    """
    known = labels[0].known if labels else ()
    return tuple(_class_of(kind, images, labels, limits) for kind in known)


def _class_of(
    kind: int, images: Sequence[Detections], labels: Sequence[Boxes], limits: Sequence[float]
) -> ClassDetections:
    scores, places, hits, counts = [np.empty(0)], [np.empty(0, np.int64)], [], []
    wanted: list[int] = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        of = [i for i, c in enumerate(label.classes) if c == kind]
        boxes, crowd = _boxes(label, tuple(of))
        wanted += [number] * int((~crowd).sum())
        own = np.flatnonzero(image.classes == kind)
        if not own.size:
            continue
        own = own[np.argsort(-image.scores[own], kind="stable")][:_MOST]
        hit, ignored = _greedy(image.boxes[own], boxes, crowd, limits)
        scores.append(image.scores[own])
        places.append(np.full(own.size, number))
        hits.append(hit)
        counts.append(~ignored)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    empty = [np.empty((len(limits), 0), np.bool_)]
    return ClassDetections(
        image=np.concatenate(places)[order],
        hit=np.concatenate([*empty, *hits], axis=1)[:, order],
        counts=np.concatenate([*empty, *counts], axis=1)[:, order],
        wanted=np.array(wanted, np.int64),
    )


@lru_cache(maxsize=1 << 16)
def _boxes(label: Boxes, of: tuple[int, ...]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return some of the boxes and which of them are crowds, the others first."""
    order = sorted(of, key=lambda i: label.crowd[i])
    boxes = np.array([label.boxes[i] for i in order], np.float64).reshape(-1, 4)
    return boxes, np.array([label.crowd[i] for i in order], np.bool_)


def _greedy(
    found: Floats, boxes: Floats, crowd: NDArray[np.bool_], limits: Sequence[float]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections hit and which are neither hit nor mistake, (limits, detections); best scores first."""
    hit = np.zeros((len(limits), len(found)), np.bool_)
    ignored = np.zeros_like(hit)
    over = overlaps(found, boxes, crowd)
    near = np.flatnonzero(over.max(axis=1, initial=0.0) >= min(limits) - _TINY)
    for row, limit in enumerate(limits):
        taken = np.zeros(len(boxes), np.bool_)
        for one in near.tolist():
            at = _best(over[one], taken, crowd, limit)
            if at is not None:
                hit[row, one], ignored[row, one], taken[at] = True, crowd[at], True
    return hit, ignored


def _best(
    over: Floats, taken: NDArray[np.bool_], crowd: NDArray[np.bool_], limit: float
) -> int | None:
    """Return the box that a detection hits: the free one with the largest overlap, a crowd only where there is none."""
    for able in (~taken & ~crowd, crowd):
        fitting = np.where(able, over, -1.0)
        # Of equal overlaps the last one, as COCO's own tool has it.
        at = len(over) - 1 - int(fitting[::-1].argmax()) if fitting.size else -1
        if at >= 0 and fitting[at] >= min(limit, 1 - _TINY):
            return at
    return None


def overlaps(a: Floats, b: Floats, crowd: NDArray[np.bool_] | None = None) -> Floats:
    """Return intersection over union of each of `a` with each of `b`; over `a` alone where `b` is a crowd.

    Args:
        a: Boxes (n, 4): x1, y1, x2, y2.
        b: Boxes (m, 4).
        crowd: (m,): which of `b` mark a crowd; None: none does.
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(np.clip(x[:, 2:] - x[:, :2], 0, None), axis=1) for x in (a, b)]
    union = areas[0][:, None] + areas[1][None] - both
    if crowd is not None:
        union = np.where(crowd[None], areas[0][:, None], union)
    return np.asarray(np.divide(both, union, out=np.zeros_like(both), where=union > 0))

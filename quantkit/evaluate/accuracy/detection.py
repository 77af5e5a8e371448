"""Detectors: boxes, scores and classes from what a model puts out, and how good they are.

Labels come from a COCO file, as they lie in the model's input (`quantkit.data.pixels.place_in`). A model's boxes are taken to
be in pixels of its input; where none is beyond 2 they are taken to be parts of its width and height. YOLO's heads are
decoded, the best class of each place alone, and suppressed here.

Mean average precision is COCO's. For a class and a limit of overlap: detections of all images by falling score; each, if it
overlaps a box of its image that no better one has, is a hit. AP is the mean precision at 101 levels of recall, where the
precision at a level is the best at that level or above. The metric is the mean over classes that have boxes, and limits.
Redrawn images count as often as they are drawn: hits are found once, and only sums are made again for each draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Boxes
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, OutputSpec
from quantkit.evaluate.accuracy.scorer import Figure, Floats, Indices, Mean, Scorer
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


_TABLES = (6, 7)  # columns of [N, 6] and [N, 7]
_FRACTION = 2.0  # no box beyond it: parts of the width and height
_FEWEST = 300  # places of a head; a table after suppression has no more rows
_FAINT = 0.001  # a place's score below which it is no detection
_KEPT = 300  # detections of an image
_SAME = 0.7  # overlap of two detections of a class of which the fainter goes
_SURE = 0.5  # the score that a detection needs to count for the overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOutputs:
    """Where a model puts its detections.

    Attributes:
        boxes: The output with the boxes; with `scores` "" the table of all.
        scores: The output with one score per box.
        classes: The output with one class per box.
        upright: Boxes are y1, x1, y2, x2, as TensorFlow's detection API gives them.
        head: YOLO's, before suppression: "columns" of [4 + classes, places] (cx, cy, w, h), or "rows" of
            [places, 5 + classes] with the score of there being anything in the middle.
    """

    boxes: str
    scores: str = ""
    classes: str = ""
    upright: bool = False
    head: Literal["", "columns", "rows"] = ""

    def image(self, outputs: Mapping[str, Array]) -> Detections:
        """Return what was found on an image; places that hold nothing (no score, or not a number) are left out."""
        table = outputs[self.boxes]
        if self.scores:
            boxes = table.reshape(-1, 4)
            scores, classes = (outputs[n].reshape(-1) for n in (self.scores, self.classes))
            count = min(len(boxes), scores.size, classes.size)
            boxes, scores, classes = boxes[:count], scores[:count], classes[:count]
        elif self.head:
            return _suppressed(table.reshape(table.shape[-2:]), self.head)
        else:
            rows = table.reshape(-1, table.shape[-1])
            rows = rows[:, [1, 2, 3, 4, 6, 5]] if rows.shape[1] == _TABLES[1] else rows
            boxes, scores, classes = rows[:, :4], rows[:, 4], rows[:, 5]
        boxes = boxes[:, [1, 0, 3, 2]] if self.upright else boxes
        held = np.isfinite(boxes).all(axis=1) & np.isfinite(classes) & (scores > 0)
        return Detections(
            boxes=boxes[held].astype(np.float64),
            scores=scores[held].astype(np.float64),
            classes=np.rint(classes[held]).astype(np.int64),
        )


def detector_outputs(
    outputs: Sequence[OutputSpec], first: Mapping[str, Sequence[Array]], metric: str
) -> DetectorOutputs:
    """Return where the detections are: three outputs that are called so, or one of 6 or 7 columns.

    Args:
        outputs: Of the model, in its order.
        first: The answers to the first units, by output.
        metric: For the message.

    Raises:
        DataError: There are none.
    """
    # There is no standard for what a detector puts out; names are tried before shapes. 1. Three outputs called boxes,
    # scores and classes with one number per box (torchvision, TensorFlow: there y comes first). 2. One table of 6 or
    # 7 columns and at most 300 rows: a head of one or two classes has as many columns, but thousands of rows. 3. A
    # head before suppression, [1, 4 + classes, places] or [1, places, 5 + classes]: places are always more than
    # columns, which tells the two apart. Suppression is then done here.
    shapes = {o.name: first[o.name][0].shape for o in outputs}
    if (named := _by_name(shapes)) is not None:
        return named
    for name, shape in shapes.items():
        if len(shape) in {2, 3} and shape[-1] in _TABLES and np.prod(shape[:-1]) <= _FEWEST:
            return DetectorOutputs(boxes=name)
    for name, shape in shapes.items():
        if len(shape) == 3 and shape[0] == 1 and max(shape) > _FEWEST:
            if 4 < shape[1] < shape[2]:
                return DetectorOutputs(boxes=name, head="columns")
            if 5 < shape[2] < shape[1]:
                return DetectorOutputs(boxes=name, head="rows")
    described = ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
    raise DataError(
        f"{metric} needs detections after non-maximum suppression: three outputs called boxes, scores and labels, or one "
        f"[N, 6] (x1, y1, x2, y2, score, class); the model has {described}: export it with suppression, or give a metric "
        "of your own."
    )


def _by_name(shapes: Mapping[str, tuple[int, ...]]) -> DetectorOutputs | None:
    """Return the three outputs that are called boxes, scores and classes; None if one is missing."""
    boxes = _output_called(shapes, ("box", "dets", "loc"), last=4)
    scores = _output_called(shapes, ("score", "conf", "prob"))
    classes = _output_called(shapes, ("label", "class", "cls", "categor"), other=scores)
    counts = {int(np.prod(shapes[name])) for name in (scores, classes) if name}
    if not (boxes and scores and classes) or counts != {int(np.prod(shapes[boxes])) // 4}:
        return None
    upright = boxes.rpartition("/")[2].startswith("detection_boxes")
    return DetectorOutputs(boxes=boxes, scores=scores, classes=classes, upright=upright)


def _output_called(
    shapes: Mapping[str, tuple[int, ...]], words: Sequence[str], *, last: int = 0, other: str = ""
) -> str:
    fitting = (n for n, s in shapes.items() if n != other and (not last or s[-1:] == (last,)))
    return next((n for n in fitting if any(word in n.lower() for word in words)), "")


def _suppressed(head: Array, form: str) -> Detections:
    """Return the detections of a head: the best class of each place, of those that overlap much the best."""
    places = (head.T if form == "columns" else head).astype(np.float64)
    scores = places[:, 4:] if form == "columns" else places[:, 5:] * places[:, 4:5]
    scores = np.where(np.isfinite(scores), scores, 0.0)
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    order = np.argsort(-best, kind="stable")
    order = order[(best[order] >= _FAINT) & np.isfinite(places[order, :4]).all(axis=1)]
    middle, half = places[order, :2], places[order, 2:4] / 2
    boxes = np.concatenate([middle - half, middle + half], axis=1)
    # Boxes of different classes are moved apart, so that they never overlap.
    apart = boxes + classes[order][:, None] * (2 * np.abs(boxes).max(initial=0.0) + 1)
    left, kept = np.arange(order.size), list[int]()
    while left.size and len(kept) < _KEPT:
        kept.append(int(left[0]))
        left = left[1:][overlaps(apart[left[:1]], apart[left[1:]])[0] <= _SAME]
    return Detections(
        boxes=boxes[kept], scores=best[order][kept], classes=classes[order][kept].astype(np.int64)
    )


class BoxScorer(Scorer):
    """Mean average precision over COCO's limits and at 0.5, and the mean overlap of boxes."""

    def __init__(self, outputs: DetectorOutputs, models: int, main: str) -> None:
        self.main = main
        self._outputs = outputs
        self._labels: list[Boxes] = []
        self._images: list[list[Detections]] = [[] for _ in range(models)]
        self._notes: tuple[str, ...] = ()

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk; a few hundred numbers per image are kept.

        Raises:
            DataError: A label is no list of boxes.
        """
        for unit in chunk.units:
            if not isinstance(unit.label, Boxes):
                raise DataError(
                    f"The label of '{unit.name}' is '{unit.label}', and {self.main} needs boxes: give COCO's instances JSON "
                    "with --label FILE."
                )
            self._labels.append(unit.label)
        for images, answers in zip(self._images, chunk.answers, strict=True):
            for place in range(len(chunk.units)):
                images.append(self._outputs.image({n: a[place] for n, a in answers.items()}))

    def figures(self) -> tuple[Figure, ...]:
        """Return all three; classes are numbered as fits float best."""
        images = self._in_pixels()
        how, numbered = self._numbered(images[0])
        self._notes = (f"Classes of the detections are taken as {how}.",)
        given = [[_renamed(image, numbered) for image in own] for own in images]
        found = tuple(matched(own, self._labels) for own in given)
        other = [*self._labels[1:], *self._labels[:1]]  # of the next image: what luck would find
        lucky = matched(given[0], other) if len(other) > 1 else None
        count = len(self._labels)
        both: list[Figure] = []
        for name, limits in (("map", slice(None)), ("map-50", slice(1))):
            parts = tuple(_limited(own, limits) for own in found)
            luck = None
            if lucky is not None:
                part = _limited(lucky, limits)
                luck = AveragePrecision(found=(part,), images=count, name=name).value(0)
            both.append(AveragePrecision(found=parts, images=count, name=name, chance=luck))
        scores = np.stack([_overlap(own, self._labels) for own in given])
        return (*both, Mean(name="iou", scores=scores))

    def notes(self) -> tuple[str, ...]:
        """Say how classes were numbered."""
        return self._notes

    def _in_pixels(self) -> list[list[Detections]]:
        """Return the images with boxes in pixels of the input."""
        largest = max((float(i.boxes.max(initial=0.0)) for i in self._images[0]), default=0.0)
        if largest > _FRACTION:
            return self._images
        sizes = [np.array([b.width, b.height, b.width, b.height], np.float64) for b in self._labels]
        return [
            [replace(i, boxes=i.boxes * size) for i, size in zip(own, sizes, strict=True)]
            for own in self._images
        ]

    def _numbered(self, images: Sequence[Detections]) -> tuple[str, dict[int, int]]:
        """Return how a model's classes become category ids: as the float model scores best."""
        known = self._labels[0].known
        ways = {
            "category ids": {i: i for i in known},
            "places among the categories, from 0": dict(enumerate(known)),
            "places among the categories, from 1": dict(enumerate(known, 1)),
        }
        distinct = {tuple(sorted(way.items())): name for name, way in reversed(ways.items())}
        best, most = next(iter(ways)), -1.0
        for name in (n for n in ways if n in distinct.values()):
            given = [_renamed(image, ways[name]) for image in images]
            part = _limited(matched(given, self._labels, (0.5,)), slice(1))
            value = AveragePrecision(found=(part,), images=len(given), name="map-50").value(0)
            best, most = (name, value) if value > most else (best, most)
        return best, ways[best]

    def answer(self, model: int, unit: int) -> str:
        """Return how many boxes were found with some certainty."""
        count = int((self._images[model][unit].scores >= _SURE).sum())
        return f"{count} box{'' if count == 1 else 'es'}"


def _limited(found: Sequence[ClassDetections], limits: slice) -> tuple[ClassDetections, ...]:
    """Return the same at some of the limits of overlap."""
    return tuple(replace(one, hit=one.hit[limits], counts=one.counts[limits]) for one in found)


def _renamed(image: Detections, numbered: Mapping[int, int]) -> Detections:
    classes = [numbered.get(c, -1) for c in image.classes.tolist()]
    return replace(image, classes=np.array(classes, np.int64))


def _overlap(images: Sequence[Detections], labels: Sequence[Boxes]) -> Floats:
    """Return for each image the mean, over its boxes, of the overlap with the nearest sure detection of their class.

    Where nothing is to be found: 1 if nothing was, else 0.
    """
    scores = np.empty(len(images))
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        sure = image.scores >= _SURE
        wanted = [i for i, crowd in enumerate(label.crowd) if not crowd]
        if not wanted:
            scores[number] = float(not sure.any())
            continue
        boxes = np.array([label.boxes[i] for i in wanted], np.float64)
        kinds: Indices = np.array([label.classes[i] for i in wanted], np.int64)
        over = overlaps(boxes, image.boxes[sure])
        over = np.where(kinds[:, None] == image.classes[sure][None], over, 0.0)
        scores[number] = over.max(axis=1, initial=0.0).mean()
    return scores

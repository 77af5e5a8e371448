"""Which steps turn an image into the model's input: settings, preset and model put together.

For a pixel value v of 0..255 and a channel c, in float32 and in this order, as training code does it:

    x = (v / unit - mean[c]) / std[c]        unit = 1 for pixels of 0-255, 255 for 0-1

`quantkit.data.pixels` applies the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from quantkit.data.model import InputSpec
from quantkit.errors import DataError, UsageError
from quantkit.settings import ImageSettings, Layout, Size

_IMAGE_RANK = 4
_AS_STORED = "pixels as stored: EXIF is not looked at"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """The steps for one model's input, all questions answered.

    Attributes:
        mode: PIL's mode: "L", "RGB" or "RGBA".
        resize: The shorter side, or (height, width), or None: by the crop.
        crop: (height, width), or None: the whole image.
        layout: "NCHW" or "NHWC".
        order: For each channel of the array, the channel of the image.
        unit: 255 for pixels of 0-1, else 1.
        mean: For each channel of the array.
        std: Likewise.
        dtype: The input's.
        exif: Turn the image upright first.
        letterbox: (height, width) to fit into, between borders; then `resize` and `crop` are None.
        lines: The steps in words.
        warnings: What may be wrong.
        guessed: Nothing says which values pixels become.
    """

    mode: str
    resize: Size | None
    crop: tuple[int, int] | None
    layout: Layout
    order: tuple[int, ...]
    unit: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: np.dtype[Any]
    exif: bool
    letterbox: tuple[int, int] | None
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    guessed: bool

    @property
    def advice(self) -> str:
        """What to try if the model does not run: it takes any size, or says so, and none is set."""
        if (self.resize, self.crop, self.letterbox) != (None, None, None):
            return ""
        return "; the image has its own size: set --letterbox 640x640 or --resize 640x640, or what the model was trained on"

    def settings(self) -> dict[str, str]:
        """Return what tells two preprocessings apart, by name, for people."""
        *size, _, _ = (line for line in self.lines if line != _AS_STORED)
        means, stds = (", ".join(f"{v:g}" for v in values) for values in (self.mean, self.std))
        names = "grey" if self.mode == "L" else "".join(self.mode[c] for c in self.order)
        return {
            "size": "; ".join(size),
            "pixels": "0-1" if self.unit > 1 else "0-255",
            "mean": means,
            "std": stds,
            "channels": names,
            "layout": self.layout,
            "rotation": "by EXIF" if self.exif else "as stored",
        }

    def identity(self) -> str:
        """Return what tells two preprocessings apart, for a fingerprint: all but the words."""
        # What came later is only named where it is used, so that older fingerprints stay.
        apart = {"lines", "warnings", "guessed", "exif", "letterbox"}
        values = [getattr(self, f.name) for f in fields(self) if f.name not in apart]
        values += [] if self.exif else ["as stored"]
        values += [] if self.letterbox is None else ["letterbox", self.letterbox]
        return repr(values)


def image_input(inputs: Sequence[InputSpec]) -> InputSpec:
    """Return the input that takes the image: the only one, of rank 4."""
    if len(inputs) == 1 and len(inputs[0].shape) == _IMAGE_RANK:
        return inputs[0]
    if not inputs:
        raise DataError("Images cannot feed a model that takes no inputs.")
    other = next((s for s in inputs if len(s.shape) != _IMAGE_RANK), inputs[-1])
    raise DataError(
        f"Images cannot feed the model's input '{other}': they need a model with one input of 4 "
        "axes; give --data .npz files with an array for each input."
    )


def preprocessing(settings: ImageSettings, spec: InputSpec) -> Preprocessing:
    """Return the steps for an input of the model.

    Raises:
        UsageError: A setting contradicts the model, or is needed and not given.
    """
    # Resolved in the order in which one needs the other: 1. the layout, as all else reads its axes; 2. channels; 3.
    # sizes, where a letterbox replaces crop and resize (it does both); 4. values. A free channel axis is taken for
    # colour. The model's own size wins over a preset's, and contradicts what was set by hand with an error. The range
    # of values is printed as well as checked: "resulting range -2.1 to 2.6" tells a user who knows the model that mean or std
    # is wrong.
    chosen = _for_dtype(settings, spec)
    resolved = chosen.resolved()
    layout = _layout(settings, spec)
    channels, height, width = (
        spec.shape[a] for a in ((1, 2, 3) if layout == "NCHW" else (3, 1, 2))
    )
    channels = channels or 3
    if channels not in _MODES:
        raise UsageError(
            f"The input '{spec}' has {channels} channels in layout '{layout}' and images have 1, 3 "
            "or 4: set --layout, or give --data .npz files."
        )
    letterbox = _letterbox(settings, (height, width), spec)
    crop = None if letterbox else _crop(settings, resolved, (height, width), spec)
    resize = None if letterbox else _resize(settings, resolved, crop)
    order = tuple(range(channels))
    if resolved.channels == "BGR" and channels > 1:
        order = (2, 1, 0, *order[3:])
    unit = 255.0 if resolved.pixels == "0-1" else 1.0
    mean = _each("mean", resolved.mean or (0.0,), channels)
    std = _each("std", resolved.std or (1.0,), channels)
    low, high = _range(unit, mean, std)
    _check_integers(spec, low, high)
    colours = "grey" if channels == 1 else "".join(_MODES[channels][c] for c in order)
    return Preprocessing(
        mode=_MODES[channels],
        resize=resize,
        crop=crop,
        layout=layout,
        order=order,
        unit=unit,
        mean=mean,
        std=std,
        dtype=spec.dtype,
        exif=resolved.exif is not False,
        letterbox=letterbox,
        lines=(
            *([_AS_STORED] if resolved.exif is False else []),
            *_size_lines(resize, crop, letterbox),
            f"{_value_line(settings, resolved)}; resulting range {low:.4g} to {high:.4g}",
            f"{colours}, {layout}",
        ),
        warnings=_warnings(chosen, resolved, spec),
        guessed=_is_unset(chosen),
    )


def _for_dtype(settings: ImageSettings, spec: InputSpec) -> ImageSettings:
    """Return the settings; an integer input takes pixels as they are unless told otherwise."""
    if spec.dtype.kind not in "iu" or not _is_unset(settings):
        return settings
    return replace(settings, preset="raw")


def _is_unset(settings: ImageSettings) -> bool:
    """Return whether nothing says which values pixels become."""
    return all(v is None for v in (settings.preset, settings.pixels, settings.mean, settings.std))


def _layout(settings: ImageSettings, spec: InputSpec) -> Layout:
    if settings.layout is not None:
        return settings.layout
    first, last = spec.shape[1] in _MODES, spec.shape[3] in _MODES
    if first and not last:
        return "NCHW"
    if last and not first:
        return "NHWC"
    raise UsageError(
        f"Cannot tell the layout of the input '{spec}' from its shape: "
        "set --layout NCHW or --layout NHWC."
    )


def _pair(size: Size | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size


def _letterbox(
    settings: ImageSettings, model: tuple[int | None, int | None], spec: InputSpec
) -> tuple[int, int] | None:
    given = _pair(settings.letterbox)
    if given is not None and any(
        want not in {None, have} for want, have in zip(model, given, strict=True)
    ):
        raise UsageError(
            f"letterbox '{given[0]}x{given[1]}' does not fit the input '{spec}': give its own size."
        )
    return given


def _crop(
    settings: ImageSettings,
    resolved: ImageSettings,
    model: tuple[int | None, int | None],
    spec: InputSpec,
) -> tuple[int, int] | None:
    """Return the crop: as given, else the model's own size, else the preset's."""
    height, width = model
    given = _pair(settings.crop)
    if given is None and height and width:
        return height, width
    if given is None and not height and not width:
        if settings.resize is not None:
            return None
        return _pair(resolved.crop)
    if given is None:
        raise UsageError(
            f"The input '{spec}' leaves one side of the image free: set --crop or --letterbox "
            "HEIGHTxWIDTH."
        )
    if height not in {None, given[0]} or width not in {None, given[1]}:
        raise UsageError(
            f"crop '{given[0]}x{given[1]}' does not fit the input '{spec}': leave it out."
        )
    return given


def _resize(
    settings: ImageSettings, resolved: ImageSettings, crop: tuple[int, int] | None
) -> Size | None:
    """Return the size before the crop.

    A preset's goes with the preset's crop: 256 pixels make no sense for a model of 32.
    """
    resize = settings.resize
    if resize is None:
        resize = resolved.resize if crop == _pair(resolved.crop) else None
    if resize is None or crop is None:
        return resize
    sides = _pair(resize) or crop
    if isinstance(resize, int) and resize < min(crop):
        raise UsageError(f"resize '{resize}' is smaller than the crop {crop[0]}x{crop[1]}.")
    if isinstance(resize, tuple) and (sides[0] < crop[0] or sides[1] < crop[1]):
        raise UsageError(
            f"resize '{sides[0]}x{sides[1]}' is smaller than the crop {crop[0]}x{crop[1]}."
        )
    return resize


def _range(unit: float, mean: Sequence[float], std: Sequence[float]) -> tuple[float, float]:
    """Return the least and greatest number that a pixel can become."""
    ends = [(v / unit - m) / s for v in (0, 255) for m, s in zip(mean, std, strict=True)]
    return min(ends), max(ends)


def _check_integers(spec: InputSpec, low: float, high: float) -> None:
    if spec.dtype.kind not in "iu":
        return
    limits = np.iinfo(spec.dtype)
    if high - low <= 1 or low < limits.min or high > limits.max:
        raise UsageError(
            f"Pixels from {low:g} to {high:g} make no sense for the input '{spec}': "
            "set --preset raw, or a mean and std that fit."
        )


def _each(key: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) not in {1, channels}:
        raise UsageError(
            f"{key} '{list(values)}' has {len(values)} numbers and the model {channels} "
            f"channel{'s' * (channels > 1)}: give one, or {channels}."
        )
    return values if len(values) == channels else values * channels


def _size_lines(
    resize: Size | None, crop: tuple[int, int] | None, letterbox: tuple[int, int] | None
) -> tuple[str, ...]:
    lines = []
    if letterbox is not None:
        return (f"letterbox {letterbox[0]}x{letterbox[1]}, borders of 114",)
    if isinstance(resize, int):
        lines.append(f"shorter side to {resize}")
    elif resize is not None:
        lines.append(f"resize to {resize[0]}x{resize[1]}")
    elif crop is not None:
        lines.append(
            f"smaller than {crop[0]}x{crop[1]}: enlarged to cover it; "
            "over 1.5 times larger: reduced to 1.14 times"
        )
    if crop is not None:
        lines.append(f"centre crop {crop[0]}x{crop[1]}")
    return tuple(lines)


def _value_line(settings: ImageSettings, resolved: ImageSettings) -> str:
    line = "scale to 0-1" if resolved.pixels == "0-1" else "pixels of 0-255"
    high = max((*(settings.mean or ()), *(settings.std or ())), default=0.0)
    if settings.pixels is None and high > 1:
        line += f" (because of a mean or std of {high:g})"
    for verb, values in (("subtract mean", resolved.mean), ("divide by std", resolved.std)):
        if values is not None:
            line += f", {verb} {', '.join(f'{v:g}' for v in values)}"
    return line


def _warnings(settings: ImageSettings, resolved: ImageSettings, spec: InputSpec) -> tuple[str, ...]:
    if _is_unset(settings):
        text = (
            f"No preprocessing is set: the input '{spec.name}' gets pixels of {resolved.pixels}. "
            "If the model was trained on anything else, the ranges will be wrong: "
            "set --mean and --std, or --preset; in quantkit.toml under [data.image]."
        )
        return (text,)
    if resolved.pixels == "0-1" and max(resolved.mean or (0.0,)) > 1:
        return ("The mean is above 1 and pixels are 0-1: set --pixels 0-255 if that is wrong.",)
    return ()

"""Image files: in a folder, in one folder a class, or beside a labels.csv.

Labels, the first that applies: `labels.csv` in the folder (a column for the file, one for the label;
whole numbers become int, anything else stays text); boxes in a COCO file (`quantkit.data.model`); class folders (the
index of the folder's name in sorted order, or the name itself where all names are whole numbers); none.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quantkit.data.boxes import Boxes, boxes_file, read_boxes
from quantkit.data.detect import Found
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.labels import labels_line, plural
from quantkit.data.model import Array, Description, InputSpec, Label, Sample
from quantkit.data.pixels import place_in, read_image, stored_size, stored_turned
from quantkit.data.preprocessing import Preprocessing, image_input, preprocessing
from quantkit.data.rows import conform, first_good, input_lines, quoted
from quantkit.errors import DataError
from quantkit.settings import DataSettings, closest, memory_of

_FILE_COLUMNS = ("file", "filename", "file_name", "image", "path", "name")
_LOOKED_AT = 32
_NEAR = 1000  # names among which the nearest is looked for
_LABEL_COLUMNS = ("label", "labels", "class", "class_id", "target", "y")


class ImageSamples:
    """Random access to image files, decoded when asked for."""

    def __init__(
        self,
        *,
        found: Found,
        spec: InputSpec,
        steps: Preprocessing,
        labels: Mapping[str, Label],
        memory: int,
        description: Description,
    ) -> None:
        self._found = found
        self._spec = spec
        self._steps = steps
        self._labels = labels
        self._memory = memory
        self.description = description

    def __len__(self) -> int:
        return len(self._found.files)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = self._found.files[index]
        name = file.relative_to(self._found.root).as_posix()
        label = self._labels.get(name)
        sample = Sample(
            feeds={self._spec.name: _read_image(file, self._steps, self._memory)},
            name=name,
            label=place_in(label, self._steps) if isinstance(label, Boxes) else label,
            advice=self._steps.advice,
        )
        return conform(sample, (self._spec,))

    def fingerprint(self) -> str:
        """Return the digest of the files, their labels and the preprocessing."""
        settings = (self._steps.identity(), sorted(self._labels.items()))
        return file_fingerprint(self._found.files, self._found.root, settings)


def one_at_a_time(spec: InputSpec) -> InputSpec:
    """Return the input as one sample fills it: a fixed batch is filled when samples are batched."""
    leading = None if spec.shape[0] is None else 1
    return replace(spec, shape=(leading, *spec.shape[1:]))


def _read_image(file: Path, steps: Preprocessing, memory: int) -> Array:
    try:
        return read_image(file, steps, memory)
    except ValueError as e:
        raise DataError(f"Cannot read the image '{file}': {e}; replace or remove it.") from e


def open_images(found: Found, inputs: Sequence[InputSpec], settings: DataSettings) -> ImageSamples:
    """Open the image files of a folder, or one, and read the first.

    Args:
        found: The files, and what was passed over.
        inputs: What the model takes: one input of rank 4.
        settings: `image` says how pixels become values, `label` where labels are (None: look), `memory` the limit.

    Raises:
        DataError: The first image, or the file of labels, cannot be read.
    """
    spec = image_input(inputs)
    steps = preprocessing(settings.image, spec)
    names = [file.relative_to(found.root).as_posix() for file in found.files]
    table = found.root / "labels.csv"
    warnings, classes = [*found.warnings, *steps.warnings], tuple[str, ...]()
    labels: Mapping[str, Label]
    # Labels come from one source only: 1. a COCO file that --label names, or that lies there where no labels.csv
    # does; 2. labels.csv; 3. the folders' names. Two sources are never mixed: an image that the chosen one does not
    # name has no label, and that is said. A labels.csv that names not one image is an error and no warning: it was
    # written for another folder, and a run of an hour without a metric would be the answer. A single image
    # (`found.single`) makes every other row absent, which means nothing.
    boxes = boxes_file(found.root, settings.label)
    if boxes is not None and (settings.label is not None or not table.is_file()):
        labels, classes = read_boxes(boxes, names, memory_of(settings.memory))
        source, table = boxes.name, boxes
    elif table.is_file():
        labels, absent = _from_table(table, names, settings.label)
        if absent and not labels and not found.single:
            raise DataError(
                f"'{table}' names no image of the folder: it has {quoted(absent)}"
                f"{closest(absent[0], names[:_NEAR])}; name them as they are in the folder."
            )
        source = table.name
        if absent and not found.single:
            warnings.append(
                f"{plural(len(absent), 'row', 'rows')} of {table.name} without an image in the folder: "
                f"{quoted(absent)}."
            )
    else:
        labels, classes = _from_folders(names)
        source = "folder names"
        if not labels and len({name.count("/") > 0 for name in names}) > 1:
            warnings.append("Images lie both beside and inside of folders: no labels.")
    missing = sum(name not in labels for name in names) if table.is_file() else 0
    if missing:
        warnings.append(f"{plural(missing, 'image', 'images')} not in {table.name}: no label.")
    some = found.files[:: max(1, len(found.files) // _LOOKED_AT)][:_LOOKED_AT]
    warnings += _turned_warnings(some, exif=steps.exif)
    if steps.advice:
        warnings += _size_warnings(some)
    batch = spec.shape[0]
    if batch is not None and batch > 1:
        warnings.append(f"The model takes {batch} images at once: a rest of fewer cannot be run.")
    description = replace(
        found.described(len(names)),
        preprocessing=steps.lines,
        settings=steps.settings(),
        labels=labels_line(list(labels.values()), source),
        classes=classes,
        warnings=tuple(warnings),
        guessed=steps.guessed,
    )
    samples = ImageSamples(
        found=found,
        spec=one_at_a_time(spec),
        steps=steps,
        labels=labels,
        memory=settings.memory_limit,
        description=description,
    )
    samples.description = replace(description, inputs=input_lines(first_good(samples)))
    return samples


def _size_warnings(some: Sequence[Path]) -> list[str]:
    """Say if images differ in size where the model leaves that open, by a look at some of them."""
    sizes = sorted({size for file in some if (size := stored_size(file))})
    if len(sizes) < 2:
        return []
    least, most = (f"{height}x{width}" for width, height in (sizes[0], sizes[-1]))
    what = "set --letterbox HxW or --resize HxW if the model, which takes any, was trained on one"
    return [f"Images differ in size ({least}, {most}, ...) and are fed as they are: {what}."]


def _turned_warnings(some: Sequence[Path], *, exif: bool) -> list[str]:
    """Say if photographs are stored turned, by a look at some of them."""
    turned = sum(stored_turned(file) for file in some)
    if not turned:
        return []
    count = f"{turned} of {plural(len(some), 'image', 'images')} looked at"
    what = "and are turned upright: set --no-exif if the code that feeds the model does not do that"
    return [f"{count} have an EXIF rotation{f' {what}' if exif else ', which is not applied'}."]


def label_value(text: str) -> Label:
    """Return a label as written: a whole number as int, else the text."""
    try:
        return int(text)
    except ValueError:
        return text


def _from_folders(names: Sequence[str]) -> tuple[dict[str, Label], tuple[str, ...]]:
    """Return each file's label, and the classes' names unless these are the labels."""
    folders = {name: name.split("/")[0] for name in names if "/" in name}
    classes = sorted(set(folders.values()))
    if len(classes) < 2 or len(folders) < len(names):
        return {}, ()
    if all(c.isdecimal() for c in classes):
        return {name: int(folder) for name, folder in folders.items()}, ()
    index = {c: i for i, c in enumerate(classes)}
    return {name: index[folder] for name, folder in folders.items()}, tuple(classes)


def _from_table(
    table: Path, names: Sequence[str], label: str | None
) -> tuple[dict[str, Label], list[str]]:
    """Return the label of each image, and the images that are listed and not there."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise DataError(f"Cannot read '{table}': {e}.") from e
    if not rows:
        raise DataError(f"'{table}' is empty: give it a column 'file' and a column 'label'.")
    # Three kinds of tables: two columns without a header, told by a first cell that is an image's name; a header with
    # usual names; a header and the column that --label names. Paths of Windows and a leading ./ are taken as they are
    # meant. Labels are numbers only if all are: one text among them makes all of them texts, or "7" and 7 would be
    # two classes.
    known = set(names)
    if rows[0][0] in known and len(rows[0]) == 2 and label is None:
        file_column, label_column, start = 0, 1, 0
    else:
        file_column = _column(table, rows[0], _FILE_COLUMNS, "file")
        wanted = _LABEL_COLUMNS if label is None else (label,)
        label_column, start = _column(table, rows[0], wanted, "label"), 1
    labels: dict[str, Label] = {}
    absent: list[str] = []
    for number, row in enumerate(rows[start:]):
        if len(row) <= max(file_column, label_column):
            raise DataError(f"'{table}' row {number} has {len(row)} columns: it needs the label.")
        name = row[file_column].replace("\\", "/").removeprefix("./")
        if name in known:
            labels[name] = label_value(row[label_column])
        else:
            absent.append(name)
    if all(isinstance(v, int) for v in labels.values()):
        return labels, absent
    return {name: str(value) for name, value in labels.items()}, absent


def _column(table: Path, header: Sequence[str], wanted: Sequence[str], what: str) -> int:
    lowered = [name.strip().lower() for name in header]
    for name in wanted:
        if name.lower() in lowered:
            return lowered.index(name.lower())
    raise DataError(
        f"'{table}' has no column '{wanted[0]}' for the {what}: it has {quoted(header)}."
    )

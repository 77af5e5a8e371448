"""onnxruntime's module of the same name, and its command: ``python -m quantkit.ort.preprocess --input IN --output OUT``."""

import argparse
import sys
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.ort.missing import missing
from quantkit.ort.shape_inference import quant_pre_process

__all__ = ["main", "parse_arguments", "quant_pre_process"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

# Flags that take a word in onnxruntime's command, and those that take none.
_WORDS = {
    "skip_optimization": "Leave the nodes as they are.",
    "skip_onnx_shape": "Together with --skip_symbolic_shape: write no inferred shapes.",
    "skip_symbolic_shape": "Together with --skip_onnx_shape: write no inferred shapes.",
}
_SWITCHES = {
    "auto_merge": "Accepted.",
    "guess_output_rank": "Accepted.",
    "save_as_external_data": "Write weights to a file of their own beside the model.",
    "all_tensors_to_one_file": "Accepted: it is one file.",
}
_NUMBERS = {"int_max": 2**31 - 1, "verbose": 0, "external_data_size_threshold": 1024}


def parse_arguments() -> argparse.Namespace:
    """Read the command line: onnxruntime's flags and defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m quantkit.ort.preprocess",
        description="Simplify a float model and write the shapes inside it; the result is compared with the model.",
    )
    parser.add_argument("--input", required=True, help="The model.")
    parser.add_argument("--output", required=True, help="Where to write.")
    for name, text in _WORDS.items():
        parser.add_argument(f"--{name}", type=_yes, nargs="?", const=True, default=False, help=text)
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name, usual in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=usual, help="Accepted.")
    parser.add_argument("--external_data_location", help="The name of the file with the weights.")
    return parser.parse_args()


def _yes(word: str) -> bool:
    """Read a word; onnxruntime's command takes "False" for true."""
    if word.lower() not in {"true", "1", "yes", "false", "0", "no"}:
        raise argparse.ArgumentTypeError(f"true or false, not '{word}'")
    return word.lower() in {"true", "1", "yes"}


def main() -> None:
    """Prepare a model as the command line says.

    Raises:
        QuantkitError: With one line that says what is wrong. Nothing is written then.
    """
    given = vars(parse_arguments())
    quant_pre_process(given.pop("input"), given.pop("output"), **given)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)


if __name__ == "__main__":
    try:
        main()
    except QuantkitError as e:
        sys.exit(f"error: {e}")

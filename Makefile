# Two commands do all the set-up: `make demo` and `make test`. They need Python >= 3.11 and a package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check lint bench clean

demo: .venv/.core  ## install quantkit and run it on an embedded model
	$(BIN)/quantkit demo

test: check  ## everything that CI runs

check: lint  ## style, types, architecture, tests
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)  ## side by side with onnxruntime.quantization; takes about one and a half hours
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python benchmarks/compare_dynamic.py
	$(BIN)/python benchmarks/picture.py
	$(BIN)/python benchmarks/crossover.py
	$(BIN)/python benchmarks/conv_storage.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/calibrate.py
	$(BIN)/python benchmarks/compare_static.py
	$(BIN)/python benchmarks/picture_static.py
	$(BIN)/python benchmarks/static_ablation.py
	$(BIN)/python benchmarks/static_weights.py
	$(BIN)/python benchmarks/static_integers.py
	$(BIN)/python benchmarks/scale_static.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "quantkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/.core: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(STAMP): .venv/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf .venv quantkit-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two commands do all the set-up: `make demo` and `make test`. They need Python >= 3.11 and a package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

BROWSER := $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name) 2>/dev/null)))

.PHONY: demo test check quick portable test-export fuzz lint browser bench reports docs clean

demo: .venv/.core  ## install quantkit and run it on an embedded model
	$(BIN)/quantkit demo

test: check  ## everything that CI runs

check: lint browser portable  ## style, types, architecture, tests
	$(BIN)/pytest

QUICK := $(addprefix tests/,plan emit numerics ops rewrite settings pipeline test_size.py test_plain_words.py)

quick: lint  ## style, types, and the fast tests of what quantizes: a minute and a half
	$(BIN)/pytest -m "not slow and not browser and not server" $(QUICK)

CORE := $(addprefix tests/,portable test_files.py $(addprefix cli/test_,cli.py quantize_static.py quantize_float16.py verify_command.py))

portable: $(STAMP)  ## core tests on a simulated Windows and macOS: no POSIX names, no fork, files in use stay
	$(BIN)/pytest --portable windows $(CORE)
	$(BIN)/pytest --portable macos tests/portable -k "not external"

# An exact version takes the CPU build where an index or a folder of wheels has one; a plain "torch" is CUDA on Linux.
TORCH ?= torch==2.13.0

test-export: $(STAMP)  ## exports from PyTorch, and training with it; where that cannot be installed it is said, and they skip
	@$(BIN)/python -c 'import torch' 2> /dev/null \
	  || $(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)' \
	  || echo "$(TORCH) cannot be installed: the tests of its exports and of training skip"
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[export]'
	$(BIN)/pytest -rs tests/export tests/reduce/distill tests/pipeline/test_distill.py

FUZZ_RUNS ?= 2000

fuzz: $(STAMP)  ## hostile models, data and settings, many more of them than the tests try; takes hours
	QUANTKIT_FUZZ_RUNS=$(FUZZ_RUNS) $(BIN)/pytest tests/fuzz --dist load

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

browser:  ## chromium for the tests of the report's page; where it cannot be installed they skip and say so
ifeq ($(BROWSER),)
	@if ! command -v apt-get > /dev/null; then \
	  echo "no chromium, and no apt-get to install it: the browser tests skip"; \
	else \
	  sudo=$$([ "$$(id -u)" = 0 ] || command -v sudo || echo none); \
	  if [ "$$sudo" = none ]; then \
	    echo "no chromium, and no right to install it: the browser tests skip"; \
	  else \
	    { $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -qq --no-install-recommends chromium fonts-liberation > /dev/null; } \
	      || echo "chromium could not be installed: the browser tests skip"; \
	  fi; \
	fi
endif

bench: $(STAMP)  ## side by side with onnxruntime.quantization; takes well over an hour
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
	$(BIN)/python benchmarks/memory_static.py
	$(BIN)/python benchmarks/evaluate_overhead.py
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/compare_float16.py
	$(BIN)/python benchmarks/grids.py
	$(BIN)/python benchmarks/frontier.py
	$(BIN)/python benchmarks/few_bits.py
	$(BIN)/python benchmarks/scale_weights.py
	$(BIN)/python benchmarks/predicted.py

reports: $(STAMP)  ## the committed reports of real models, made again; takes about half an hour
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python benchmarks/make_reports.py

docs: .venv/.core  ## the pages of docs/ as a site, in site/
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/build.py

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
	rm -rf .venv quantkit-demo site .mypy_cache .ruff_cache .pytest_cache .hypothesis

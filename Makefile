# All targets share a virtual environment, which is created on first use. `make demo` installs the extras train and demo
# only; all other targets also install the tools of developers. Versions are those of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEMO_READY := $(VENV)/.installed-demo
# Sentences for the demo: make demo TEXT="I laughed all evening. The ending was weak."
TEXT ?=
export TEXT
# Compiled tests are kept: pytest rewrites their assertions, which takes a quarter of the collection.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test test-all test-gpu demo bench docs release-check style lint format clean torture fuzz numbers audit test-oldest test-newest

# One thread in each process: with more threads than cores, threads wait ten times as long as they compute.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q
# Compiling kernels takes most of the time of the tests on a GPU: one process for each core but one.
GPU_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) - 1)

test: style  ## lint, and the short form of the tests
	$(PYTEST)

test-all: style  ## lint, type checks and the long form: all cases of parametrized tests, and more random examples
	$(BIN)/mypy
	$(PYTEST) --long

test-gpu: $(READY)  ## the tests that use a GPU, on one; ARGS=--long runs all cases
	$(BIN)/headwise warm-up --schemes plain --lengths 64
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(GPU_PROCESSES) --dist worksteal -q --gpu tests $(ARGS)

demo: $(DEMO_READY)  ## fine-tune a real model on real sentences, offline; TEXT="…" are sentences of your own
	@echo "[2/2] Running the demo, which has five parts"
	HF_HUB_OFFLINE=1 $(BIN)/python examples/demo.py --out demo "--text=$$TEXT"

bench: $(READY)  ## benchmark attention on this machine
	$(BIN)/headwise bench attention --out benchmarks/results/local

torture: $(READY)  ## kill 500 commands, lose nodes, databases and memory, let clocks jump; ARGS="--size 0.1 --processes 8"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.robustness.torture $(ARGS)

fuzz: $(READY)  ## 250,000 corrupt and hostile files, models, runs and studies; ARGS="--processes 4" and others
	$(BIN)/python -m tests.robustness.fuzz --inputs 250000 $(ARGS)

numbers: $(READY)  ## measure the accuracy of float32 and write docs/numbers.md
	$(BIN)/python benchmarks/exactness.py --cases 10000 --out docs/numbers.md

audit: $(READY)  ## check packages for known vulnerabilities; needs a network
	$(BIN)/python tools/audit.py $(ARGS)

test-oldest: $(READY)  ## tests with the oldest versions that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-oldest
	$(BIN)/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct --editable '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n 2 -q

test-newest: $(READY)  ## tests with the newest versions that pyproject.toml allows; on Linux, torch may bring CUDA
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-newest
	$(BIN)/uv pip install --quiet --python $(VENV)-newest/bin/python --upgrade --editable '.[dev,demo]'
	OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest -n 2 -q

docs: $(READY)  ## build the site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: $(READY)  ## build wheel and sdist, and run the demo from the wheel in an empty environment
	$(BIN)/python tools/release_check.py

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest demo artefacts dist fuzz-findings site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(DEMO_READY): pyproject.toml constraints.txt
	@echo "[1/2] Installing headwise[train,demo] in $(VENV); this takes minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt --editable '.[train,demo]'
	touch $@

$(READY): $(DEMO_READY)
	$(BIN)/pip install --constraint constraints.txt --editable '.[dev,demo]'
	touch $@

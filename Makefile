# Everything runs in a virtual environment of its own, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: test demo bench docs release-check lint format clean torture fuzz numbers audit test-oldest

# Two processes of one thread each: with more threads than cores, threads wait for each other ten times as long as they work.
test: lint  ## lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q

demo: $(READY)  ## the main job on a small true example, offline: real model, real sentences
	HF_HUB_OFFLINE=1 $(BIN)/python examples/demo.py --out demo

bench: $(READY)  ## time and memory of attention on this machine, side by side
	$(BIN)/headwise bench attention --out benchmarks/results/local

torture: $(READY)  ## hundreds of kills, of runs, studies and simulations
	$(BIN)/pytest -q --slow tests/robustness/test_killed.py tests/robustness/test_killed_study.py

fuzz: $(READY)  ## more than 100,000 hostile inputs
	$(BIN)/pytest -q --slow tests/robustness/test_hostile.py

numbers: $(READY)  ## how exact float32 is, into docs/numbers.md
	$(BIN)/python benchmarks/exactness.py --cases 10000 --out docs/numbers.md

audit: $(READY)  ## no package with a known vulnerability; needs a network
	$(BIN)/python tools/audit.py $(ARGS)

test-oldest: $(READY)  ## the tests with the oldest versions that pyproject.toml allows, before a release
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-oldest
	$(BIN)/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct --editable '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n 2 -q

docs: $(READY)  ## the site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: $(READY)  ## what a release would be: wheel and sdist, and the demo from the wheel in an empty environment
	$(BIN)/python tools/release_check.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-oldest demo artefacts dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev,demo]'
	touch $@

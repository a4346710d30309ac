# Every target makes the environment it needs; `make test` and `make demo` work on a fresh machine with Python 3.11 to 3.13.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.NOTPARALLEL:

VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ARGS ?=
# The interpreter that makes the environment; without one given, the first of these that runs and is supported.
PYTHON ?=
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# The same order of sets in every run, and no version look-up by pyright: it runs what pip installed.
export PYTHONHASHSEED := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLBACKEND := Agg

.PHONY: help test check format-check format lint types tests audit thorough demo network federated bench size docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- the environment -------------------------------------------------------------------------------------------------
$(BIN)/python:
	@for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	    if "$$candidate" -c '$(SUPPORTED)' >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$${chosen:-}" ]; then \
	    echo 'No Python 3.11, 3.12 or 3.13 found. Install one, or say which: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; \
	fi; \
	"$$chosen" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "'$$chosen -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

# One stamp for each set of extras: pip runs again only when pyproject.toml has changed.
$(VENV)/installed-%: pyproject.toml | $(BIN)/python
	@echo "== install [$*]"
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# ---- what must pass --------------------------------------------------------------------------------------------------
test: check  ## set up, then format, lint, types, tests, doctests and the documentation's code: what .ci/run runs

check: format-check lint types tests  ## the same as `make test`

format-check: $(VENV)/installed-dev
	@echo '== format'
	$(BIN)/ruff format --check .

lint: $(VENV)/installed-dev  ## ruff
	@echo '== lint'
	$(BIN)/ruff check .

types: $(VENV)/installed-dev  ## pyright, strict, on the package
	@echo '== types'
	$(BIN)/python -m pyright --pythonpath $(BIN)/python --threads $(WORKERS)

tests: $(VENV)/installed-dev  ## pytest only: tests, doctests, code blocks (ARGS='-k name' narrows it)
	@echo '== tests, doctests, code blocks of README.md and docs/'
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 --most-seconds 2 $(ARGS)

# ---- what takes longer -----------------------------------------------------------------------------------------------
audit: $(VENV)/installed-dev $(VENV)/installed-docs  ## the slow statistics and a million neighbours; writes docs/evidence.md
	XLA_FLAGS= $(BIN)/python -m pytest -m 'audit or evidence' -n $(WORKERS) --dist worksteal --durations 10 \
	    --hypothesis-profile thorough --evidence docs $(ARGS)

thorough: $(VENV)/installed-dev  ## the tests with hypothesis' thorough profile
	XLA_FLAGS= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --hypothesis-profile thorough $(ARGS)

size: $(VENV)/installed-dev  ## lines, files, and what a default fit runs through
	$(BIN)/python -m benchmarks.size $(ARGS)

demo: $(VENV)/installed-demo  ## private models on medical records, with a report
	$(BIN)/privopt demo $(ARGS)

network: $(VENV)/installed-demo  ## a private neural network written by hand, on the same records, with a report
	$(BIN)/python examples/network.py $(ARGS)

federated: $(VENV)/installed-flower  ## federated averaging with Flower, one node a person, all in this process
	$(BIN)/python examples/federated.py $(ARGS)

bench: $(VENV)/installed-dev  ## the benchmarks; results as JSON lines
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/installed-docs  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# ---- upkeep ----------------------------------------------------------------------------------------------------------
format: $(VENV)/installed-dev  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:  ## remove everything that these targets made, the environment included, but not the examples of hypothesis
	rm -rf $(VENV) .programs build dist site .pytest_cache .ruff_cache src/*.egg-info demo-output network-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything a fresh machine needs: Python 3.11 or later, pip and make. Each target installs what it uses into .venv.
# A recipe may be run again at any time; nothing is installed twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A machine that forbids caches of compiled code makes every process that a test starts compile all of it anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PROCESSES ?= $(shell echo $$(($$(nproc) + 3)))
BIN := .venv/bin
READY := .venv/.installed
CODE := src tests $(wildcard examples benchmarks)

# The build tool is pinned as well; older pips read the first variable for it, newer ones the second.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install -qq

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

.PHONY: demo
demo: $(READY)  ## kill an agent at step 47, start it again, and see what was not done twice
	@$(BIN)/holdfast demo

.PHONY: test
test: check tools  ## everything: the checks and all tests, in random order
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadgroup --ignore tests/test_tidy.py

.PHONY: sweeps
sweeps: $(READY) tools  ## the sweeps alone, killing at every place; `make test` passes some over that are like others
	HOLDFAST_SWEEP=all $(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadgroup tests -m sweep

.PHONY: check
check: $(READY)  ## style, types, layers and tidiness
	$(BIN)/ruff check -q $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_tidy.py

.PHONY: chaos
chaos: $(READY)  ## four workers and 500 runs, while everything is killed, stopped and cut off; SEED=7 repeats one
	@PYTHONPATH=tests $(BIN)/python -m chaos --runs 500 --seconds 120 $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: $(READY)  ## what a step costs, as a multiple of one disk flush
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.postgres
	@$(BIN)/python -m benchmarks.files
	@$(BIN)/python -m benchmarks.fleet

.PHONY: clean
clean:  ## remove .venv, builds and caches; runs that were kept stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Holdfast needs Python 3.11 or later; $(PYTHON) is older or missing. Say which one: make PYTHON=python3.12" >&2; exit 1; }
	@$(create_venv)
	@echo "installing into .venv ..."
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $@

# Debian splits ensurepip off into python3-venv. Where it is missing, pip itself can fill an empty environment.
define create_venv
if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
  $(PYTHON) -m venv .venv; \
else \
  $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install -qq pip \
    || { echo "$(PYTHON) cannot create a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }; \
fi
endef

# The sweeps kill a process at each flush with strace, and take away its process ids with unshare.
.PHONY: tools
tools:
	@if command -v strace >/dev/null && command -v unshare >/dev/null; then \
	  :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing strace and util-linux ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq strace util-linux >/dev/null; \
	else \
	  echo "the tests need strace and unshare. On Debian: sudo apt-get install strace util-linux" >&2; exit 1; \
	fi

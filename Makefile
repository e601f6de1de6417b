# Everything a new user or a CI system runs. `make demo` on a fresh machine with Python 3.11+ needs nothing else.
#
#   make demo        install, start the platform, run Pilot-Commit on the bundled data (EXIT=1: stop afterwards)
#                    PORT_API=8702 PORT_UI=8703: other ports than 8700 and 8701; also for make up
#   make up          the platform without the run
#   make verl        add verl, Ray and vLLM's CPU build to the environment, to try the verl engine without a GPU
#   make test        all checks: lint, test-fast, test-verl, test-faults, test-ui (each can be run alone)
#   make bench       the measurements in bench/
#   make clean       remove the environment and caches; runs and the database in .pilot/ stay
#
# PYTHON=/path/to/python3.11 picks the interpreter. TORCH="torch==2.13.0" picks the torch build. JOBS=2: parallel tests.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
export EXIT
PORTS := $(if $(PORT_API),--port-api $(PORT_API)) $(if $(PORT_UI),--port-ui $(PORT_UI))

# The lock files are complete: no resolving (--no-deps), and no byte-compiling of what is never imported (--no-compile).
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input --no-compile
PYTEST := $(BIN)/python -m pytest

.PHONY: help demo up install verl test lint test-fast test-verl test-faults test-ui bench clean

help:
	@sed -n 's/^#   //p' Makefile

# exec: the launcher is make's direct child, so that Ctrl-C and kill reach it and its exit status is make's.
demo: $(DONE)/run
	@exec $(BIN)/python -m cli up --demo $(PORTS)

up: $(DONE)/run
	@exec $(BIN)/python -m cli up $(PORTS)

install: $(DONE)/run

verl: $(DONE)/verl

test: lint test-fast test-verl test-faults test-ui
	@echo "All tests passed."

lint: $(DONE)/dev
	@echo "== lint: ruff, mypy, import rules"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check . || { echo "Run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# -m "not browser": the browser tests are test-ui's. One thread each: the tests run side by side.
test-fast: $(DONE)/dev
	@echo "== test-fast: units, and the whole path on real services"
	@OMP_NUM_THREADS=1 $(PYTEST) tests -m "not browser" --ignore=tests/verl --ignore=tests/faults -n $(JOBS) --dist loadfile

# One after the other: each scenario is a whole Ray with vLLM, and takes both cores.
test-verl: $(DONE)/verl
	@echo "== test-verl: the verl engine for real, on the CPU"
	@$(PYTEST) tests/verl

test-faults: $(DONE)/dev
	@echo "== test-faults: parts are killed, cut off and filled up; nothing may be lost, doubled or left behind"
	@OMP_NUM_THREADS=1 $(PYTEST) tests/faults -n $(JOBS) --dist load

test-ui: $(DONE)/dev
	@echo "== test-ui: the dashboard in headless Chromium"
	@if ! command -v chromium chromium-browser google-chrome > /dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "Installing chromium ..."; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -qq --no-install-recommends chromium > /dev/null; \
	  else \
	    echo "test-ui needs Chromium, and there is none on the PATH. Install it first:"; \
	    echo "  Debian/Ubuntu: sudo apt-get install chromium      Fedora: sudo dnf install chromium"; exit 1; \
	  fi; \
	fi
	@$(PYTEST) tests -m browser --ignore=tests/verl --ignore=tests/faults

bench: $(DONE)/dev
	@for script in bench/*.py; do case $$script in */__init__.py|*/served.py|*/verdict.py) ;; *) \
	  echo "== $$script"; $(BIN)/python -m "$$(echo "$${script%.py}" | tr / .)";; esac; done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A PYTHON that was given although the environment exists: refused when it cannot be run, else told that it is not used.
.PHONY: python-asked-for
python-asked-for:
ifneq ($(origin PYTHON),file)
	@[ -x $(BIN)/python ] || exit 0; \
	where='import os, sys; print(os.path.realpath(sys.executable))'; \
	asked=$$($(PYTHON) -c "$$where" 2> /dev/null) || { echo "PYTHON=$(PYTHON) cannot be run. Correct it, or leave it out to use $(VENV) as it is."; exit 1; }; \
	made_with=$$($(BIN)/python -c "$$where"); \
	[ "$$asked" = "$$made_with" ] || echo "PYTHON=$(PYTHON) is not used: $(VENV) was made with $$made_with. To make it anew: make clean, then this command again."
endif

# Stamps: what is installed is installed once, and again only when its lock file changes.
$(DONE)/venv: | python-asked-for
	@command -v $(PYTHON) > /dev/null || { echo "There is no $(PYTHON). Install Python 3.11 or newer, or run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { echo "Creating $(VENV) ..."; $(PYTHON) -m venv --clear $(VENV); } \
	  || { echo "Cannot create a virtual environment. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@mkdir -p $(DONE) && touch $@

# torch first and alone, so that pip picks the build and accelerator libraries that suit the machine.
$(DONE)/torch: $(DONE)/venv requirements/torch.txt
	@echo "Installing torch ..."
	@$(PIP_INSTALL) "$(TORCH)"
	@$(PIP_INSTALL) --no-deps -r requirements/torch.txt
	@touch $@

$(DONE)/run: $(DONE)/torch requirements/platform.txt
	@echo "Installing the platform ..."
	@$(PIP_INSTALL) --no-deps -r requirements/platform.txt
	@touch $@

$(DONE)/dev: $(DONE)/run requirements/dev.txt
	@echo "Installing test tools ..."
	@$(PIP_INSTALL) --no-deps -r requirements/dev.txt
	@touch $@

$(DONE)/verl: $(DONE)/dev requirements/verl.txt
	@echo "Installing verl, Ray and vLLM ..."
	@$(PIP_INSTALL) --no-deps -r requirements/verl.txt
	@touch $@

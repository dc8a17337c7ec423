# Everything here needs only make and a Python of at least 3.11; a virtual environment is created in .venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# What is installed here is installed here, whatever the person's own pip settings and Python path say.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER := 0

.PHONY: demo test check format lint types contracts wheel bench chaos clean

demo: .venv/app  ## kill a working agent and watch it finish without repeating a step
	@if [ -t 0 ]; then $(BIN)/relight demo; else $(BIN)/relight demo --yes; fi

test: .venv/dev  ## the whole test suite
	$(BIN)/python -m pytest

check: lint types contracts .venv/dev  ## what a change must pass
	$(BIN)/python -m pytest --cov --cov-report=term --cov-fail-under=85
	$(BIN)/python tests/wheel_trial.py

lint: .venv/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: .venv/dev
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts: .venv/dev
	$(BIN)/lint-imports

bench: .venv/dev  ## measure Relight beside plain SqliteHuey and write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

chaos: .venv/dev  ## kill workers at random, a thousand times, and look for what was lost or doubled; SEED= and KILLS= choose
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --kills $(or $(KILLS),1000)

wheel: .venv/dev  ## build the wheel, install it in a clean environment, run one task through it
	$(BIN)/python tests/wheel_trial.py

format: .venv/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build relight.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*

.venv/app: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Relight needs Python 3.11 or newer; none was found. Name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	@touch $@

.venv/dev: .venv/app
	$(PIP) --editable '.[dev]'
	@touch $@

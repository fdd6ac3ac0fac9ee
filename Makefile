# Navi: `make demo` and `make test` are all a fresh machine needs; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export DAGSTER_HOME := $(CURDIR)/dagster_home
# Idle OpenMP threads must not spin: the ray kernels and torch take turns on the same cores.
export OMP_WAIT_POLICY := passive
# Without compiled files every process that a test starts would compile the tests and Navi anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-slow torture fuzz mutate ui check docs format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@echo 'installing Navi and its dependencies into $(VENV): 3 to 5 minutes, 3.1 GB'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip uninstall --quiet --yes navi 2>/dev/null  # the name of an earlier checkout
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## scenes -> training -> evaluation -> promotion through Dagster, then a table
	$(BIN)/navi demo $(ARGS)

test: $(READY)  ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(READY)  ## the inner loop: the default suite without its long files
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow and not gpu and not integration' $(ARGS)

test-slow: $(READY)  ## the long checks too: learning on three seeds, fuzzing
	$(BIN)/python -m pytest -m 'slow and not gpu' --timeout 3600 $(ARGS)

torture: $(READY)  ## kills, failing writes, full disks, odd machines: an hour, or SECONDS=
	$(BIN)/navi bench torture --seconds $(or $(SECONDS),3600)

fuzz: $(READY)  ## coverage-guided fuzzing of all formats: RUNS= inputs in all
	$(BIN)/python -m tests.fuzz --runs $(or $(RUNS),1000000)

mutate: $(READY)  ## mutation testing of a ROOM=: N= mutants, each against the tests that reach it
	$(BIN)/python -m tests.mutate $(ROOM) --number $(or $(N),100)

ui: $(READY)  ## the Dagster UI on http://127.0.0.1:3000
	$(BIN)/navi ui --port $(or $(PORT),3000)

check: $(READY)  ## ruff, mypy, import walls, Dagster's definitions, the documents' style, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy navi_core navi_pipeline
	$(BIN)/lint-imports
	$(BIN)/dg check defs
	$(BIN)/python docs/site/style.py
	$(MAKE) docs

docs: $(READY)  ## the documentation's site in build/site, built offline and strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

format: $(READY)  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches; runs, models and the warehouse stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

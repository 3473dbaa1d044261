PYTHON ?= python3
VENV ?= .venv
# More arguments for pytest: make test ARGS="-n 4 tests/ops"; two processes unless it says otherwise
ARGS ?=

BIN := $(VENV)/bin
# Two processes with one thread each: more threads than cores would wait for each other
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# Without the note on the end of life of Material for MkDocs
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
STAMP := $(VENV)/.installed
TRAIN := $(VENV)/.installed-train

.DEFAULT_GOAL := help
.PHONY: help demo docs docs-serve install test test-slow test-all wheel lint format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -e '.[dev]'
	touch $@

$(TRAIN): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(STAMP) -nt pyproject.toml || { $(BIN)/python -m pip install --upgrade pip && $(BIN)/python -m pip install -e '.[train]'; }
	touch $@

demo: $(TRAIN)  ## train a small RGNet and the same without its layer on the CPU; the page is demo/index.html
	$(BIN)/repgraph demo $(ARGS)

docs: $(STAMP)  ## build the documentation in site/; warnings are errors
	$(MKDOCS) build --strict $(ARGS)

docs-serve: $(STAMP)  ## serve the documentation on http://127.0.0.1:8000, and build it again when a page changes
	$(MKDOCS) serve $(ARGS)

install: $(STAMP)  ## make .venv and install the project with all it needs for development

test: $(STAMP)  ## run the fast tests
	$(PYTEST) $(ARGS)

test-slow: $(STAMP)  ## run the slow tests, which make test leaves out
	$(PYTEST) -m slow $(ARGS)

test-all: test test-slow  ## run all tests

wheel: $(STAMP)  ## build the package, install the wheel into a clean environment, and try it there
	rm -rf dist build/clean
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet dist/*.whl
	cd build && clean/bin/python ../tests/smoke.py

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv, builds and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup lint test test-all quickstart clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[run,dev]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest

test-all: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not gpu'

quickstart: setup
	$(BIN)/rlrun launch quickstart

clean:
	rm -rf .venv build dist

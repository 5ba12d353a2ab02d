PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup sglang lint test test-all parity quickstart quickstart-model clean

setup: .venv/.ready

# What a job needs, and no more.
.venv/.run: pyproject.toml
	@echo "installing rlrun and torch into .venv: several GB, which takes minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -e '.[run]'
	touch $@

# The plugin packages of this repository, as editable installs beside rlrun.
PACKAGES := $(wildcard packages/*)

.venv/.ready: .venv/.run $(PACKAGES:%=%/pyproject.toml)
	$(BIN)/pip install -q -e '.[run,dev]' $(PACKAGES:%=-e %)
	touch $@

# The real SGLang server on a CPU, for the tests, in an environment of its own: 1.7 GB.
SGLANG := tests/sglang_cpu/requirements
sglang: .venv-sglang/.ready

.venv-sglang/.ready: $(SGLANG).txt $(SGLANG)-alone.txt
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install -q -r $(SGLANG).txt
	.venv-sglang/bin/pip install -q --no-deps -r $(SGLANG)-alone.txt
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Whole jobs have the machine to themselves: their processes have deadlines. The rest shares the cores.
JOBS := tests/integration tests/fault
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest

test: setup sglang
	$(PYTEST) -n 2 --dist loadfile $(JOBS:%=--ignore=%)
	$(PYTEST) $(JOBS)

test-all: setup sglang
	$(PYTEST) -n 2 --dist loadfile $(JOBS:%=--ignore=%) -m 'not gpu'
	$(PYTEST) $(JOBS) -m 'not gpu'

# Every parallel layout of the trainer against transformers, and against one rank whatever the loss, the
# micro-batches and the order of samples: gloo groups of up to four processes, each for all layouts of its size.
PARITY := tests/runner/trainer/test_parity.py tests/runner/trainer/test_invariance.py
parity: setup
	$(PYTEST) $(PARITY) -m 'not gpu' --durations=12

quickstart: .venv/.run
	$(BIN)/rlrun launch quickstart --new

# Rebuilds the model that the quickstart starts from: half an hour on two cores.
MODEL := rlrun/specs/recipes/quickstart/model
quickstart-model: setup
	rm -rf build/quickstart
	$(BIN)/python examples/quickstart/make_model.py $(MODEL)
	$(BIN)/rlrun launch quickstart-sft --set runs_dir=build/quickstart
	cp build/quickstart/quickstart-sft/model/model.safetensors $(MODEL)

clean:
	rm -rf .venv build dist

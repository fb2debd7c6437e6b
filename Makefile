# make demo, make test: each makes its own .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two tests a core: tests of processes and federations wait for most of their time.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))

# Where it is set, every process would compile every module anew, and pytest would rewrite every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types contracts docs test-all test-slow bench gpu-check chaos soak jobs clean

$(READY): requirements.txt requirements-dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	touch $@

demo: $(READY)
	$(BIN)/fedsm data synth demo_data --sites 6 --seed 0 --force
	$(BIN)/fedsm run --task retinal --data demo_data --rounds 40 --size 64 --batch-size 4 --lr 3e-3 \
		--out runs/demo --force

# All checks, the quick ones first.
test: lint types contracts docs test-all

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # never --quiet: mkdocs then counts no warnings
	@echo site/index.html

# Lines of custom/fedsm are counted as far as the main thread of a test runs them.
test-all: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --cov=fedsm --cov-report=term:skip-covered --cov-fail-under=90

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

bench: $(READY)
	$(BIN)/python -m benchmarks.run

gpu-check: $(READY)
	$(BIN)/python -m benchmarks.gpu_check

chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos --out runs/chaos

soak: $(READY)
	$(BIN)/python -m benchmarks.soak --out runs/soak --minutes 120

jobs: $(READY)
	$(BIN)/python -m app_fedsm.jobs jobs

clean:
	rm -rf $(VENV) demo_data runs build dist site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .coverage

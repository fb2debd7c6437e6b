# make demo, make test: each makes its own .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow bench chaos lint docs jobs clean

$(READY): requirements.txt requirements-dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	touch $@

demo: $(READY)
	$(BIN)/fedsm data synth demo_data --sites 6 --seed 0 --force
	$(BIN)/fedsm run --task retinal --data demo_data --rounds 40 --size 64 --batch-size 4 --lr 3e-3 \
		--out runs/demo --force

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

bench: $(READY)
	$(BIN)/python -m benchmarks.run

chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos --out runs/chaos

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # never --quiet: mkdocs then counts no warnings
	@echo site/index.html

jobs: $(READY)
	$(BIN)/python -m app_fedsm.jobs jobs

clean:
	rm -rf $(VENV) demo_data runs build dist site .pytest_cache .ruff_cache

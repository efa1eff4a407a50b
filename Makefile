# Two commands do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTED := $(VENV)/.ready-to-test

.PHONY: demo test test-all soak lint format docs bench bench-neighbors clean help

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $(READY)

$(TESTED): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,cluster,dev]'
	touch $(TESTED)

demo: $(READY)  ## the main job on built-in data, with a report at the end
	$(BIN)/offmap demo --out out/demo
	$(BIN)/offmap loop --data digits --out out/loop

test: $(TESTED)  ## all tests but the slow ones, with every docstring example
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

test-all: $(TESTED)  ## the slow tests too: every fault, every tampered file, fifty kills
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

soak: $(READY)  ## an hour of good and bad requests to a real service; fails when an answer is wrong or an input is lost
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serve.py --soak $${SOAK_MINUTES:-60}

lint: $(READY)  ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## the documentation site, in site/
	for page in docs/gen_*.py; do $(BIN)/python $$page || exit 1; done
	$(BIN)/mkdocs build --strict

bench-neighbors: $(READY)  ## nearest neighbours beside the limit of the machine
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/neighbors.py

bench: $(READY)  ## everything that is measured against peers; benchmarks/README.md lists the scripts
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/neighbors.py
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/detect.py
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/discover.py

clean:  ## remove what was built, but not the environment
	rm -rf out site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

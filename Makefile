# Two commands: `make run` shows what this is for, `make test` checks that it works. Both set everything up first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 1
KILLS ?= 20
SECONDS ?= 300
# One thread per test process: with two processes on two cores, more threads only get in each other's way.
# Bytecode is kept, whatever is the custom here: every process that tests start would compile the package again.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: run test lint types unit soak soak-labels soak-many fuzz format docs clean

run: $(VENV)/installed
	$(BIN)/mixmatch compare digits --labels 20 --seeds $(SEEDS) --out runs/digits

# Types are checked beside the tests, which leave a core idle here and there.
test: lint
	$(MAKE) -j 2 types unit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/ready
	$(BIN)/mypy

unit: $(VENV)/ready
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal

# Kill a run many times at random moments and compare it with one that was left alone.
soak: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python tests/soak.py --kills $(KILLS)

# The same for a process that labels: no label that was said to be saved may be lost.
soak-labels: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python tests/soak_labels.py --kills $(KILLS)

# The same for one run over two processes, and for a list of runs that a driver has done by workers.
soak-many: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python tests/soak_many.py --way processes --kills $(KILLS)
	$(TEST_ENV) $(BIN)/python tests/soak_many.py --way driver --kills $(KILLS)

# Attack with damaged and hostile files for some minutes.
fuzz: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python tests/fuzz.py --seconds $(SECONDS)

# The documentation as a site, in docs/_build/html. A warning, such as a link to nowhere, is an error.
docs: $(VENV)/docs
	$(BIN)/python -m sphinx -W --keep-going -j auto -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

$(VENV)/docs: $(VENV)/ready docs/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -r docs/requirements.txt
	touch $@

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What `make run` needs; the tools of development come on top for everything else.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mixmatch needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e .
	touch $@

$(VENV)/ready: $(VENV)/installed requirements-dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build docs/reference

# Everything runs in $(VENV), which is made on first use; a second run installs nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where to look for a CPU build of torch besides the usual index, e.g. https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP_INSTALL = $(BIN)/pip install --quiet -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# One thread each: networks this small only get slower when processes share cores.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= disabled
# The tests start many processes: compiled files spare each of them from compiling the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-python mutants coverage check format docs bench dist clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# Three processes also on two cores, because many tests wait for a process or a time limit.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not gpu"

# Small defects, one at a time, each of which the quick tests must notice.
mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutants/run.py

# The quick tests under another interpreter, in an environment of its own: make test-python PYTHON=python3.12
test-python:
	$(MAKE) VENV=.venv-$(notdir $(PYTHON)) test-fast

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term --cov-report=html

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

# Speed beside Stable-Baselines3 and SBX. SBX brings JAX, so it has an environment of its own; without it, it is left out.
# Options: make bench BENCH="--quick"
bench: $(VENV)/.installed-bench
	-$(MAKE) VENV=.venv-sbx .venv-sbx/.installed-bench-sbx
	$(BIN)/python benchmarks/speed.py $(BENCH)

# Build the source archive and, from it, the wheel; then try the wheel in a clean environment outside the repository.
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	.ci/try_wheel dist/*.whl $(BIN)/python $(TORCH_INDEX)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(PIP_INSTALL) -e ".[$*]"
	@touch $@

clean:
	rm -rf .venv .venv-* build dist site htmlcov .coverage* src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Everything runs in .venv, which is made on first use; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin
# One thread each: networks this small only get slower when processes share cores.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= disabled

.PHONY: demo test check format docs bench clean

demo: .venv/.installed
	$(BIN)/python examples/demo.py

test: .venv/.installed-dev
	$(BIN)/python -m pytest -n 2

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.installed-dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: .venv/.installed-docs
	$(BIN)/mkdocs build --strict

bench: .venv/.installed-bench
	$(BIN)/python benchmarks/speed.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e .
	@touch $@

.venv/.installed-%: .venv/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e ".[$*]"
	@touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two commands do everything: `make demo` and `make test`. Both make .venv when it is not there.
PYTHON ?= python3
BIN := .venv/bin
# Compiled once here, so that every later start is quick where PYTHONDONTWRITEBYTECODE is set.
COMPILE := $(BIN)/python -m compileall -q src

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench bench-peers soak lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: ## install, then grade the examples and print a table
	@$(PYTHON) tools/environment.py runtime
	@$(COMPILE)
	@$(BIN)/python tools/rootfs.py .demo/state/rootfs/pytest --lock tools/rootfs-pytest.lock
	@$(BIN)/python examples/demo.py --state .demo/state

test: ## install what tests need, then run all tests
	@$(PYTHON) tools/environment.py dev
	@$(PYTHON) tools/postgresql.py install
	@$(COMPILE)
	@$(BIN)/python -m pytest

lint: ## format, lint and type checks
	@$(PYTHON) tools/environment.py dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

bench: ## measure a verification beside the floor and bare bubblewrap; prints ratios
	@$(PYTHON) tools/environment.py dev
	@$(COMPILE)
	@$(BIN)/python -m benchmarks

bench-peers: ## install what others verify with, and measure all beside it
	@$(PYTHON) tools/environment.py dev
	@$(COMPILE)
	@$(BIN)/python -m benchmarks --peers

soak: ## 50,000 warm verifications; fails when something grew
	@$(PYTHON) tools/environment.py dev
	@$(COMPILE)
	@$(BIN)/python -m benchmarks.soak --verifications 50000

lock: ## renew the lock files
	@$(PYTHON) tools/environment.py dev
	@$(BIN)/python tools/lock.py

clean: ## remove what make made
	rm -rf .venv benchmarks/.venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

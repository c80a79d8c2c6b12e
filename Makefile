# On a machine with Python 3.11 or later and pip, each of these sets up .venv in the checkout and runs.
# Another interpreter: make test PYTHON=python3.12. Part of the tests: make test ARGS="tests/cli -x".

PYTHON ?= python3
ARGS ?=
VENV := .venv
IN_VENV := $(VENV)/bin/python -m

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo deploy-demo bench docs test lint check format clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(VENV)/.installed ## one round with liars, then a federation trained among them
	@$(IN_VENV) fedhold demo

deploy-demo: $(VENV)/.installed-flower ## a Flower federation of seven processes, TLS and node keys; two of six nodes lie
	@$(VENV)/bin/python examples/deploy/demo.py

bench: $(VENV)/.installed ## our rules beside those of other libraries, in an environment made for them; docs/performance.md
	@$(VENV)/bin/python benchmarks/peers --inputs --round --scaling --json docs/performance.json --docs docs/performance.md

docs: $(VENV)/.installed-dev ## the documentation site, into build/docs; a warning is an error
	$(IN_VENV) sphinx --fail-on-warning --keep-going --quiet --jobs auto docs build/docs
	@echo "The site is build/docs/index.html."

# Deployments are real processes that need the cores for themselves. Pytest exits with 5 where ARGS names none of their tests.
test: $(VENV)/.installed-dev ## every test
	$(IN_VENV) pytest -n auto -m 'not deployment' $(ARGS)
	$(IN_VENV) pytest -m deployment $(ARGS) || test $$? -eq 5

lint: $(VENV)/.installed-dev ## format, lint, imports, types: say what is wrong, change nothing
	$(IN_VENV) ruff format --check .
	$(IN_VENV) ruff check .
	$(VENV)/bin/lint-imports --no-logo
	$(IN_VENV) mypy

check: lint docs test ## all that must pass before a change goes in

format: $(VENV)/.installed-dev ## format, and fix what the linter can fix
	$(IN_VENV) ruff format .
	$(IN_VENV) ruff check --fix .

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# pip, not python, stands for the environment: without ensurepip `venv` leaves a python behind and fails.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedhold needs Python 3.11 or later, this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/pip
	$(IN_VENV) pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-flower: pyproject.toml | $(VENV)/bin/pip
	$(IN_VENV) pip install --quiet --editable '.[flower]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/pip
	$(IN_VENV) pip install --quiet --editable '.[dev,docs]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-flower

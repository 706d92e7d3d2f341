# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TESTERS ?= auto
BIN := $(VENV)/bin
TYPING := build/typing
CHECKED := $(wildcard tests examples benchmarks)

# Tests start hundreds of interpreters: each would compile flowmx anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv train test lint types pytest format soak clients editor notebooks web bench onnx-models models docs site dist journeys clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit(f"flowmx needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: name another one with make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)

# One stamp per set of extras, written last: a step that failed leaves none and is done again.
$(VENV)/.examples: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,examples]'
	@touch $(VENV)/.examples $@

venv: $(VENV)/.dev ## make .venv with everything that development needs

train: $(VENV)/.examples ## train the digits example
	$(BIN)/python examples/train_digits.py

test: $(VENV)/.dev ## lint, types and tests, side by side
	@$(MAKE) --no-print-directory --jobs=3 lint types pytest

lint: $(VENV)/.dev ## check the format and the rules of ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.dev ## put the source into ruff's format
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

# The stubs follow the operators, so they are written anew. mypy sees devices/, ops/ and comm/ where they are installed,
# under flowmx/, through links that are made anew each time; sed turns its paths back into those of the repository.
types: $(VENV)/.dev ## run mypy --strict
	@$(BIN)/python -m flowmx.tools.stubs
	@rm -rf $(TYPING) && mkdir -p $(TYPING)/flowmx
	@ln -s $(CURDIR)/flowmx/* $(CURDIR)/devices $(CURDIR)/ops $(CURDIR)/comm $(TYPING)/flowmx/
	@ln -s $(CURDIR)/packaging/pytest/flowmx_pytest $(TYPING)/
	@ln -s $(CHECKED:%=$(CURDIR)/%) $(CURDIR)/docs $(TYPING)/
	cd $(TYPING) && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache \
		flowmx flowmx_pytest $(CHECKED) | sed -E 's#^flowmx/(devices|ops|comm)/#\1/#'

pytest: $(VENV)/.dev ## run the tests alone, in processes that keep all cores busy (TESTERS=0: in one)
	$(BIN)/pytest -n $(TESTERS)

soak: $(VENV)/.dev ## run the long random tests
	$(BIN)/pytest -m soak --timeout 3600

$(VENV)/.editor: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet 'pyright[nodejs]>=1.1.400'
	@touch $@

editor: $(VENV)/.editor ## check what editors say of programs that use flowmx: mypy and pyright, both strict
	$(BIN)/pytest tests/repository/test_editor_types.py

notebooks: $(VENV)/.dev ## run the notebooks in examples/notebooks from top to bottom
	$(BIN)/pytest -m soak tests/repository/test_example_notebooks.py

# The programs are fetched once; touch pyproject.toml or remove build/web to have them anew.
build/web/.installed: $(VENV)/.dev
	mkdir -p build/web
	npm install --silent --no-audit --no-fund --prefix build/web axe-core@4 jsdom@29
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/web/netron netron
	@touch $@

web: build/web/.installed docs ## run axe-core on the site and the dashboard, and Netron's readers on saved models (needs node)
	$(BIN)/pytest tests/repository/test_web_tools.py

clients: $(VENV)/.dev ## run packages that were written for MXNet, beside the real one (makes environments in build/)
	$(BIN)/python -m tests.clients

onnx-models: $(VENV)/.dev ## fetch the ONNX files of `python -m benchmarks onnx` into $ONNX_MODELS, or the user's cache
	@$(BIN)/python -m benchmarks.onnx_models

models: $(VENV)/.dev ## fetch the models of languages and voices that some tests read into $TEXT_MODELS, or the user's cache
	@$(BIN)/python -m benchmarks.text_models

bench: $(VENV)/.examples ## run the benchmarks
	$(BIN)/python -m benchmarks

$(VENV)/.docs: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# All pages anew each time (-E): of pages that Sphinx leaves as they were, its search forgets the entries of the index.
docs: $(VENV)/.docs ## build the documentation site in build/site; warnings are errors
	$(BIN)/python -m docs.reference build/pages
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q -d build/doctrees build/pages build/site
	@echo "the site: build/site/index.html"

# The folder is kept from release to release: a host serves it as it is.
site: docs ## put the built site beside those of other versions, in build/versions
	$(BIN)/python -m docs.versions build/site build/versions
	@echo "the sites: build/versions/index.html"

$(VENV)/.dist: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet 'build>=1.2' 'twine>=6.1'
	@touch $@

# The wheel is made from the source distribution, so that both are whole. It is tried outside of the checkout.
dist: $(VENV)/.dist ## build dist/*.tar.gz and dist/*.whl, check them, and try the wheel in a fresh environment
	rm -rf dist build/lib build/bdist.* build/fresh
	$(BIN)/python -m build --outdir dist . >build/dist.log 2>&1 || { tail -n 40 build/dist.log; exit 1; }
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet dist/*.whl
	build/fresh/bin/python -m pip check
	cd build/fresh && bin/python -m flowmx info
	@ls -l dist

# As a user would: the wheel in an environment of its own, and folders outside of the checkout.
journeys: dist ## go through the first hours of a newcomer with the built wheel
	build/fresh/bin/python -m pip install --quiet "$$(ls dist/*.whl)[image,onnx]" pandas nbclient ipykernel onnxruntime
	$(BIN)/python -m tests.journeys build/fresh/bin/python

clean: ## remove what the targets above made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

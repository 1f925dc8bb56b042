# Everything a newcomer does with the project. `make help` lists it.

PYTHON ?= python3
VENV ?= .venv
# Where torch comes from, if not from pip's own index. On a machine without a GPU
# TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes of CUDA libraries.
TORCH_INDEX ?=
PORT ?= 8000
CONFIG ?= serve_configs/demo.yaml
SOAK_S ?= 600
FUZZ_S ?= 3600

PIP = $(VENV)/bin/pip --disable-pip-version-check install --constraint constraints.txt
INDEX = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
RUN = $(VENV)/bin/
FAULTS = $(addprefix tests/,service/test_faults.py service/test_callers.py service/test_rollout.py cluster/test_node_death.py)

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-services test-rest test-long test-gpu faults soak fuzz lint format typecheck weights clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

demo: $(VENV)/.demo  ## serve the default models, encode real media, draw demo.png, stop
	$(RUN)encoder-pool demo $(CONFIG) --port $(PORT)

serve: $(VENV)/.demo  ## serve CONFIG on PORT until Ctrl-C
	$(RUN)encoder-pool serve $(CONFIG) --port $(PORT)

test: $(VENV)/.dev  ## run the tests, with real weights, real Ray Serve and real HTTP
	@echo "services and everything else in two processes; each tells when it is through"
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-services test-rest

test-services: $(VENV)/.dev
	$(RUN)pytest -m "service and not long"

test-rest: $(VENV)/.dev
	$(RUN)pytest -m "not service and not long" -p no:cacheprovider

test-long: $(VENV)/.dev  ## run what takes minutes: a pool on several Ray nodes of this machine, and a configuration that changes under load
	$(RUN)pytest -m long tests/cluster tests/service

test-gpu:  ## run the tests that need a GPU, and those that need no service, with PYTHON's own packages
	$(PYTHON) -B -m pytest -p no:cacheprovider --continue-on-collection-errors -m "gpu or not service"

faults: $(VENV)/.dev  ## break a running service in every way the tests know, and write docs/faults.md
	$(RUN)pytest -m service $(FAULTS) --fault-table docs/faults.md

soak: $(VENV)/.dev  ## mixed traffic and random kills on CONFIG for SOAK_S, and what became of every request
	$(RUN)python -m tests.soak $(CONFIG) --seconds $(SOAK_S) --out soak.json --plot soak.png

fuzz: $(VENV)/.fuzz  ## fuzz parser, decoders and the whole application for FUZZ_S, and write docs/fuzz.json
	$(RUN)python -m tests.fuzz $(FUZZ_S) docs/fuzz.json

lint: $(VENV)/.dev  ## check style
	$(RUN)ruff check
	$(RUN)ruff format --check

format: $(VENV)/.dev  ## rewrite to style
	$(RUN)ruff check --fix
	$(RUN)ruff format

typecheck: $(VENV)/.dev  ## check types, strictly
	$(RUN)mypy

weights: $(VENV)/.demo  ## bring the built-in weights into the cache
	$(RUN)encoder-pool weights

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz demo.png soak.json soak.png

$(VENV)/bin/pip:
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
		|| { echo "Python 3.11 or 3.12 is needed; choose it with PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing what the service needs (a few minutes the first time)"
	$(PIP) torch $(INDEX)
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "installing what the tests need"
	$(PIP) --editable '.[demo,dev]'
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@echo "installing the fuzzer"
	$(PIP) --editable '.[demo,dev,fuzz]'
	@touch $@

# Every target sets up what it needs; nothing has to be installed by hand but git, make, python3 and Go.
# Caches (binaries, the CPU engine's environment, images) live outside the checkout and are safe to lose.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export LLAMASERVER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/llamaserver-operator
CLUSTER ?= own
SCENARIOS ?= e2e
WORKERS ?= 2
UV_VERSION := 0.13.9
UV := $(LLAMASERVER_CACHE)/uv-$(UV_VERSION)/bin/uv
PYTHON := .venv/bin/python
NODE := python3 e2e/cluster
TYPED := operator/llamaserver images/tuner/llamaserver_tuner images/engine-sim/llamaserver_engine_sim e2e/bench e2e/demo e2e/cluster

.PHONY: help
help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environments -------------------------------------------------------------------------------

$(UV):
	@echo "[setup] uv $(UV_VERSION)"
	@/usr/bin/env python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "[setup] python3-venv (Debian)"; \
	  apt-get install -qy --no-install-recommends python3-venv >/dev/null || { apt-get update -q >/dev/null && apt-get install -qy --no-install-recommends python3-venv >/dev/null; }; }
	@rm -rf $(dir $(UV)).. && python3 -m venv $(LLAMASERVER_CACHE)/uv-$(UV_VERSION)
	@$(LLAMASERVER_CACHE)/uv-$(UV_VERSION)/bin/pip install -q --disable-pip-version-check uv==$(UV_VERSION)

.venv/.stamp: requirements-dev.lock pyproject.toml | $(UV)
	@echo "[setup] project environment (.venv)"
	@$(UV) venv -q --clear --python "$$(python3 -c 'import sys; print(sys.executable)')" .venv
	@$(UV) pip install -q --python $(PYTHON) --require-hashes -r requirements-dev.lock
	@$(UV) pip install -q --python $(PYTHON) --no-deps -e .
	@touch $@

.PHONY: venv
venv: .venv/.stamp ## The project's own environment, from the lock file.

.PHONY: binaries
binaries: ## Build (or find in the cache) Kubernetes, etcd, CoreDNS, Helm and kubeconform.
	@$(NODE) build

.PHONY: engine
engine: ## Install (or find in the cache) vLLM for the CPU.
	@$(NODE) engine

.PHONY: lock
lock: | $(UV) ## Renew the lock files from pyproject.toml.
	@for extra in "requirements.lock --extra prometheus" "requirements-dev.lock --group dev"; do set -- $$extra; out=$$1; shift; \
	  $(UV) pip compile pyproject.toml "$$@" --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	    --no-emit-find-links --custom-compile-command "make lock" -q -o $$out; done

# --- checks -------------------------------------------------------------------------------------

.PHONY: lint
lint: venv ## Style, types and the import rule.
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .
	@.venv/bin/mypy $(TYPED)
	@.venv/bin/lint-imports

.PHONY: test
test: lint binaries engine ## All tests that need no running cluster: against a real API server, real Helm, the real vLLM wheel. WORKERS=1 for one after the other.
	@LLAMASERVER_VLLM_PYTHON="$$($(NODE) engine --print-python)" $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile

.PHONY: format
format: venv ## Format the code.
	@.venv/bin/ruff check --fix -q . ; .venv/bin/ruff format .

.PHONY: crds
crds: venv ## Generate crds/, the chart's copy of it and docs/reference.md from the models.
	@for folder in crds charts/llamaserver-operator/files; do .venv/bin/llamaserver crd --output $$folder; done
	@.venv/bin/llamaserver crd --markdown --output docs

# --- the cluster, the demo and the scenarios ----------------------------------------------------

.PHONY: cluster
cluster: ## A real Kubernetes cluster on this machine, in a network namespace of its own.
	@$(NODE) up

.PHONY: cluster-down
cluster-down: ## End that cluster and leave nothing of it behind.
	@$(NODE) down

.PHONY: demo
demo: venv ## The main job: overload a real vLLM and watch the objective being held. CLUSTER=current uses your own cluster.
	@if [ "$(CLUSTER)" = own ]; then $(NODE) up; fi
	@cd e2e && ../$(PYTHON) -m demo --cluster $(CLUSTER) --output ../build/demo

.PHONY: bench-engine
bench-engine: venv ## The law beside the best fixed settings, on a real vLLM; an hour. BENCH="--help" says what else it can do.
	@cd e2e && exec ../$(PYTHON) -m bench $(BENCH)

.PHONY: bench-control
bench-control: venv ## The law beside other policies, in simulation; half an hour. SCENARIOS=S1 for some, BENCH="--help" for more.
	@PYTHONPATH=operator:tests $(PYTHON) tests/control/bench.py $(filter-out e2e,$(SCENARIOS)) $(BENCH)

.PHONY: bench-operator
bench-operator: venv binaries ## 200 LlamaServers at once: how soon each has its Deployment, and what a render takes. BENCH="--help" for more.
	@PYTHONPATH=operator:tests:e2e $(PYTHON) -m controller.bench $(BENCH)

.PHONY: e2e
e2e: venv ## The end-to-end scenarios, on the cluster of `make cluster`. SCENARIOS=FILES for some of them.
	@$(NODE) build flux keda
	@$(NODE) up
	@$(NODE) images engine-sim
	@$(PYTHON) -m pytest --timeout 1200 $(SCENARIOS) -v

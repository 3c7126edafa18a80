# Everything here runs from `.venv`, made once from the hash-locked requirements; whatever the programs write goes
# under var/. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first interpreter that is new enough; say `make PYTHON=/path/to/python …` to choose another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
PY := $(VENV)/bin/python
LOCKS := requirements/runtime.txt requirements/dev.txt
# The name carries a checksum of the lock files, so an edited lock is installed and an untouched one costs nothing.
STAMP := $(VENV)/.locked-$(firstword $(shell cat $(LOCKS) | cksum))
CODE := $(wildcard manage.py config maintenance agents examples benchmarks tests)
PYTEST_ARGS ?=

.PHONY: help venv demo test up lint format types contracts migrations-check bench soak crash lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-17s %s\n", $$1, $$2 }'

venv: $(STAMP) ## Make .venv from the lock files (done by every other target)

$(STAMP): $(LOCKS)
	@test -n "$(PYTHON)" || { echo "Wakeful needs Python 3.11 or newer; none was found." >&2; exit 1; }
	@test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing the locked requirements into $(VENV) …"
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@rm -f $(VENV)/.locked-*
	@touch $@

demo: $(STAMP) ## Run the main job: audit this environment while workers are killed
	@$(PY) -m examples.audit

test: $(STAMP) ## Run the tests on the embedded default (SQLite, filesystem broker)
# Queues and processors are shared: what talks to a broker or starts workers runs one by one, the rest side by side.
ifeq ($(strip $(PYTEST_ARGS)),)
	@$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not broker and not process"
	@$(PY) -m pytest -m "broker or process"
else
	@$(PY) -m pytest $(PYTEST_ARGS)
endif

up: $(STAMP) ## Start web, two workers and beat; Ctrl-C stops them all
	@$(PY) -m config.up

lint: $(STAMP) ## Check style and formatting
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check $(CODE)

format: $(STAMP) ## Repair what `lint` can repair by itself
	@$(PY) -m ruff check --fix $(CODE)
	@$(PY) -m ruff format $(CODE)

types: $(STAMP) ## Check types (mypy strict, django-stubs)
	@$(PY) -m mypy $(CODE)

contracts: $(STAMP) ## Check who may import whom
	@$(VENV)/bin/lint-imports

migrations-check: $(STAMP) ## Fail if a model changed without its migration
	@$(PY) manage.py makemigrations --check --dry-run

bench: $(STAMP) ## Measure against plain Celery (PostgreSQL and Redis)
	@$(PY) -m benchmarks $(BENCH_ARGS)

soak: $(STAMP) ## Run the cases that need wall-clock minutes
	@$(PY) -m pytest -m soak --timeout 3600 $(PYTEST_ARGS)

crash: $(STAMP) ## Kill a process at every failpoint, on both databases, and see that its work ends once
	@$(PY) -m tests.process.crash $(PYTEST_ARGS)

# Locks hold for every supported Python at once and name no index. Needs `uv` on the path; only maintainers of the
# dependencies run it. `make lock LOCK_ARGS=--upgrade` takes newer versions.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet $(LOCK_ARGS)

lock: ## Resolve requirements/*.txt again
	$(LOCK) --extra server --output-file requirements/runtime.txt
	$(LOCK) --extra dev --constraint requirements/runtime.txt --output-file requirements/dev.txt

clean: ## Remove what was made at run time (not .venv)
	@rm -rf var .mypy_cache .ruff_cache .pytest_cache .hypothesis

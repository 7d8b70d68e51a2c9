# Broadloom's chores. `make help` lists them; all work in .venv, which `make setup` makes.

# Debian packages that tests need. Root gets them installed; for others those tests are skipped.
SYSTEM_PACKAGES = mosquitto nats-server openssl chromium

PYTHON ?= python3
UV ?= uv
VENV := .venv
TESTS := --dist loadgroup -m "not rabbitmq and not kills"
FAILED := .pytest_cache/v/cache/lastfailed
RUN := $(VENV)/bin/
INSTALL := $(RUN)python -m pip install --quiet --disable-pip-version-check --no-build-isolation
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)

.PHONY: help setup demo test test-failed test-rabbitmq test-kills lint docs report-ui lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 16

setup: $(VENV)/java.done $(VENV)/kernels.done ## make .venv: hashed packages, Broadloom itself, Java where there is none

$(VENV)/venv.done: tools/make-venv
	@tools/make-venv $(PYTHON) $(VENV)
	@touch $@

$(VENV)/packages.done: $(VENV)/venv.done requirements/build.txt requirements/dev.txt
	@echo "Installing the packages of requirements/dev.txt (about 600 MB to fetch, once)"
	@$(INSTALL) --require-hashes -r requirements/build.txt
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/broadloom.done: $(VENV)/packages.done pyproject.toml
	@$(INSTALL) --no-deps --editable .
	@touch $@

$(VENV)/java.done: $(VENV)/broadloom.done requirements/java.txt
	@$(RUN)python -m broadloom.pipeline.java >/dev/null 2>&1 || $(INSTALL) --require-hashes -r requirements/java.txt
	@echo "Java: $$($(RUN)python -m broadloom.pipeline.java)"
	@touch $@

$(VENV)/kernels.done: $(VENV)/broadloom.done
	@echo "Compiling the kernels (a minute or two, once)"
	@tools/compile-kernels $(VENV)
	@touch $@

demo: setup ## generate raw inputs of 200 brokers, and run the whole pipeline on them
	@test -d demo/raw || $(RUN)broadloom devices --brokers 200 --subscriptions 500000 --subscribers 10000 --seed 0 \
		-o demo/raw
	$(RUN)broadloom run examples/demo.toml

test: setup ## run all tests
	@tools/system-packages $(SYSTEM_PACKAGES)
	@rm -f $(FAILED)
	@# A run that broke off leaves no list of what failed: it is no whole one.
	$(RUN)pytest -n 2 $(TESTS) || { [ $$? = 1 ] || rm -f $(FAILED); exit 1; }

test-failed: setup ## run the tests that failed last time, one after the other
	@# Names of tests get their groups only after files are read, so no file is left out before (lfplugin-collwrapper).
	$(RUN)pytest -n 1 $(TESTS) -p no:lfplugin-collwrapper --last-failed --last-failed-no-failures none

test-rabbitmq: setup ## run the tests that start four RabbitMQ nodes; takes minutes
	@tools/system-packages rabbitmq-server
	$(RUN)pytest -m rabbitmq

test-kills: setup ## run the tests that kill the parts of a live move; they want a machine that does nothing else
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)pytest -m kills

lint: setup ## check style, format and types
	$(RUN)ruff check
	$(RUN)ruff format --check
	$(RUN)mypy

docs: setup ## build the documentation into site/
	$(RUN)mkdocs build --strict

report-ui: ## build the script of the report's page into the package, with Node.js
	cd report-ui && npm ci --no-audit --no-fund && npm run --silent check && npm run --silent build

lock: ## pin and hash requirements/*.txt anew, with uv (newest versions: make lock UPGRADE=--upgrade)
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) pyproject.toml --extra spark --extra lp --extra deploy --extra papers --group dev --group docs requirements/dev.in -o requirements/dev.txt
	$(LOCK) requirements/java.in -o requirements/java.txt

clean: ## remove what the targets made, but not .venv
	rm -rf demo site build dist artefacts report-ui/node_modules .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find src tests -name __pycache__ -prune -exec rm -rf {} +

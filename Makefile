# tokenlane: everything runs from .venv, which is built from the locked requirements.
PYTHON     ?= python3
PORT       ?= 8080
ADMIN_PORT ?= 8081
VENV       ?= .venv
JOBS       ?= 2
MINUTES    ?= 1
VERSIONS   ?= 3.11 3.12 3.13
BIN        := $(VENV)/bin
PIP        := $(BIN)/python -m pip --disable-pip-version-check
STAMP_RUN  := $(VENV)/.stamp-run
STAMP_DOCS := .venv-docs/.stamp-docs
STAMP_DEV  := $(VENV)/.stamp-dev

.DEFAULT_GOAL := help
# Every target with a line of help is a task, not a file.
.PHONY: build-compiled build-newest $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  variables: PYTHON=python3.12  PORT=8080  ADMIN_PORT=8081  VENV=.venv  JOBS=2  MINUTES=1  VERSIONS="3.11 3.12 3.13"'

run: $(STAMP_RUN) ## gateway on 127.0.0.1:PORT in front of 4 simulated vLLM replicas
	$(BIN)/python -m tokenlane demo --port $(PORT) --admin-port $(ADMIN_PORT) $(LOAD)

run-fleet: $(STAMP_DEV) ## three gateways behind one port that share a store, and 4 simulated replicas
	$(BIN)/python -m scripts.fleet_demo --port $(PORT) --admin-port $(ADMIN_PORT) $(ARGS)

test: $(STAMP_DEV) ## the tests, on this Python
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-all-pythons: test test-other-pythons ## the tests on every one of VERSIONS at hand

# Each other version has a .venv-VERSION of its own, built as .venv is.
test-other-pythons:
	@own=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	sh scripts/pythons.sh $(VERSIONS) | while read -r version python; do \
		[ "$$version" = "$$own" ] && continue; \
		echo "== Python $$version: $$python"; \
		$(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venv-$$version" </dev/null || exit 1; \
	done

# The sources' folder is not in the path: only bench and tests are found beside the build, which is
# optimized less here than what is installed: it is made in half the time.
build-compiled test-compiled: export MYPYC_OPT_LEVEL = 1
build-compiled: $(STAMP_DEV)
	$(BIN)/python -m bench build

test-compiled: build-compiled ## the tests on the compiled build (see setup.py)
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled:$(CURDIR) $(BIN)/python -m pytest -n $(JOBS) \
		-o pythonpath="build/compiled ." $(ARGS)

# What is named -newest here is what is named -compiled above, on another Python.
test-newest: ## the same on the newest of VERSIONS at hand
build-newest test-newest:
	@sh scripts/pythons.sh $(VERSIONS) | tail -1 | { \
		read -r version python && echo "== Python $$version, compiled: $$python" || python="$(PYTHON)"; \
		own=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		venv="$(VENV)"; [ "$${version:-$$own}" = "$$own" ] || venv=".venv-$$version"; \
		$(MAKE) --no-print-directory $(@:-newest=-compiled) PYTHON="$$python" VENV="$$venv" </dev/null; \
	}

reliability: $(STAMP_DEV) ## the failures to survive: docs/reliability.md (LONG=--long: in full)
	$(BIN)/python -m tests.reliability.report -n 0 $(LONG) $(ARGS)

amplification: $(STAMP_DEV) ## look for the inputs that cost most for their bytes: docs/amplification.md
	$(BIN)/python -m tests.amplification.search $(ARGS)

conformance: $(STAMP_DEV) ## the corpus of raw requests, whole and byte by byte, and beside nginx and HAProxy
	$(BIN)/python -m pytest tests/conformance $(ARGS)

truncation: $(STAMP_DEV) ## every byte of 20 recorded streams, ended in 4 ways
	$(BIN)/python -m pytest --long tests/faults/test_truncation.py $(ARGS)

disconnect: $(STAMP_DEV) ## 10,000 clients that leave at random moments
	$(BIN)/python -m pytest --long tests/faults/test_disconnect.py $(ARGS)

keepalive-race: $(STAMP_DEV) ## 100,000 requests to a replica that closes at its timeout
	$(BIN)/python -m pytest --long tests/faults/test_keepalive_race.py $(ARGS)

soak: $(STAMP_DEV) ## all faults at once under load, MINUTES long; nothing lost, nothing left behind
	SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest --long tests/soak/test_soak.py $(ARGS)

drain: $(STAMP_DEV) ## 200 gateways that take over from each other under load; no request lost
	$(BIN)/python -m pytest --long tests/soak/test_drain.py $(ARGS)

reload: $(STAMP_DEV) ## 200 reloads under load, with broken files, removed replicas and changed keys
	$(BIN)/python -m pytest --long tests/faults/test_reload.py $(ARGS)

# Needs the network; what is locked is what is asked about.
audit: ## ask for known vulnerabilities of the locked requirements (pip-audit)
	$(MAKE) --no-print-directory VENV=.venv-audit .venv-audit/bin/python
	.venv-audit/bin/python -m pip --disable-pip-version-check install -q 'pip-audit>=2.7'
	.venv-audit/bin/pip-audit --disable-pip --require-hashes -r requirements.txt -r requirements-dev.txt

# atheris is not locked: it has no wheels for every Python, and nothing here depends on it.
fuzz: ## coverage-guided search (atheris), MINUTES for each of 9 targets; a crash leaves its input
	$(MAKE) --no-print-directory VENV=.venv-fuzz .venv-fuzz/.stamp-dev
	.venv-fuzz/bin/python -m pip --disable-pip-version-check install -q 'atheris>=3'
	for target in head response chunked events body yaml config request answer; do \
		.venv-fuzz/bin/python -m tests.fuzz.run $$target build/fuzz/$$target -print_final_stats=1 \
			-max_total_time=$$(($(MINUTES) * 60)) || exit 1; \
	done

overload: $(STAMP_DEV) ## 10 times what a fleet of 300 requests/s can serve: goodput, and how fast the rest is refused
	$(BIN)/python -m bench overload $(ARGS)

bench: $(STAMP_DEV) ## the laboratory, minutes: tables, plots, one HTML page, a verdict (bench/results)
	$(BIN)/python -m bench $(ARGS)

# Of others, to measure beside; nothing here depends on them.
bench-routers: ## the routers of SGLang and vLLM, in a venv of their own: `make bench` then has them too
	$(MAKE) --no-print-directory VENV=.venv-routers .venv-routers/bin/python
	.venv-routers/bin/python -m pip --disable-pip-version-check install -q sglang-router==0.3.2 vllm-router==0.1.17

bench-full: $(STAMP_DEV) ## the same in its long form
	$(BIN)/python -m bench --full $(ARGS)

# The Python that has vLLM is VLLM_PYTHON, or that of .venv-vllm, built if need be.
bench-engine: $(STAMP_DEV) ## the laboratory on real vLLM, 90 minutes (ARGS=--quick: 20): docs/engine.md
	vllm=$$(sh scripts/vllm_python.sh) && VLLM_PYTHON="$$vllm" $(BIN)/python -m bench --engine $(ARGS)

dashboards: $(STAMP_DEV) ## deploy/grafana from scripts/dashboard
	$(BIN)/python -m scripts.dashboard

docs: $(STAMP_DOCS) ## the site, out of docs/*.md: build/site
	.venv-docs/bin/python -m scripts.site build/site

bench-docs: $(STAMP_DEV) ## write the tables of docs/bench.md and docs/engine.md from the last runs' bench/results
	$(BIN)/python -m bench docs $(ARGS)

bench-stalls: $(STAMP_DEV) ## plants stalls in every stage and counts how many the gateway explains
	$(BIN)/python -m bench stalls $(ARGS)

lint: $(STAMP_DEV) ## format, lint, types, rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy proxy bench tests
	$(BIN)/lint-imports --no-cache

format: $(STAMP_DEV) ## rewrite the code in the house format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test-clients: ## the clients that are tried, LangChain among them, in a venv of their own
	$(MAKE) --no-print-directory VENV=.venv-clients .venv-clients/.stamp-clients
	.venv-clients/bin/python -m pytest tests/clients $(ARGS)

test-deploy: ## deploy/ by Helm's engine, Kubernetes' schemas, hadolint and Grafana's model, in a venv of their own
	$(MAKE) --no-print-directory VENV=.venv-deploy .venv-deploy/.stamp-deploy
	.venv-deploy/bin/python -m pytest tests/deploy/test_tools.py tests/deploy/test_chart.py \
		tests/deploy/test_chart_objects.py $(ARGS)

# build is not locked: it makes the wheel in an environment of its own, as an installer does.
test-package: ## wheel and sdist: built, and the demo run from the wheel beside PyPI's proxy.py
	$(MAKE) --no-print-directory VENV=.venv-package .venv-package/.stamp-dev
	.venv-package/bin/python -m pip --disable-pip-version-check install -q 'build>=1.2'
	.venv-package/bin/python -m pytest tests/deploy/test_package.py $(ARGS)

release-check: ## all of a release but the upload: wheels, sdist, chart and image in dist/ (docs/releasing.md)
	VERSIONS="$(VERSIONS)" sh scripts/release_check.sh

test-vllm: $(STAMP_DEV) ## end to end with two real vLLM servers in a venv of their own
	sh scripts/test_vllm.sh

lock: ## resolve the requirements anew (needs uv)
	uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' -q -o requirements.txt \
		--extra fleet pyproject.toml
	uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' -q -o requirements-dev.txt \
		--extra dev -c requirements.txt pyproject.toml
	uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' -q -o requirements-docs.txt \
		-c requirements-dev.txt --group docs
	uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' -q -o requirements-clients.txt \
		--extra dev --extra clients -c requirements-dev.txt pyproject.toml
	uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' -q -o requirements-deploy.txt \
		-c requirements-dev.txt --group deploy

clean: ## remove what was built, the virtual environments included
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once and then brought up to date in place: a changed lock installs the
# difference, an unchanged one does nothing.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tokenlane needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.12 (or 3.11, 3.13)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { \
		echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP_RUN): requirements.txt pyproject.toml | $(BIN)/python
	@echo 'installing the locked requirements into $(VENV): a minute or two, once'
	$(PIP) install -q --require-hashes -r requirements.txt
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

$(STAMP_DEV): requirements-dev.txt $(STAMP_RUN)
	$(PIP) install -q --require-hashes -r requirements-dev.txt
	@touch $@

# An environment of its own: nothing else needs a site's generator.
$(STAMP_DOCS): requirements-docs.txt
	$(MAKE) --no-print-directory VENV=.venv-docs .venv-docs/bin/python
	.venv-docs/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r requirements-docs.txt
	@touch $@

$(VENV)/.stamp-clients: requirements-clients.txt $(STAMP_DEV)
	$(PIP) install -q --require-hashes -r requirements-clients.txt
	@touch $@

$(VENV)/.stamp-deploy: requirements-deploy.txt $(STAMP_DEV)
	$(PIP) install -q --require-hashes -r requirements-deploy.txt
	@touch $@

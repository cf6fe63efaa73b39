# `make demo` runs the main job on real data, `make test` passes the tests. Each sets up .venv itself when it is missing
# or setup.cfg changed; that, and Maven's first download for `make test`, is the only time the network is used.
#
#   make help        this text
#   make demo        bkspark demo: a throw-away cluster, a real DataFrame written, read, streamed and checked
#   make test        the tests that each change must pass; PYTEST_ARGS="-k recovery" runs some, TEST_PROCESSES=0 runs them
#                    in one process (by default two more than there are cores, because many tests wait, if each has
#                    1.5 GB of memory)
#   make test-long   the tests that `make test` leaves out: more parameters of the same tests, and longer searches
#   make test-all    both
#   make test-oldest-spark
#                    tests/spark on the oldest Spark that is supported, in .venv-oldest; PYTEST_ARGS="-m every_spark"
#                    runs what each run of .ci/run does
#   make test-interop
#                    those of all tests that run against Apache's client and bookies, which Maven fetches
#   make test-pulsar the tests with an Apache Pulsar broker, which Maven fetches (235 MB)
#   make test-real-cluster
#                    Spark on hosts of their own: kills, cuts, a slow link, speculation, dynamic allocation; needs root
#   make test-histories
#                    45 seconds of faults on real processes, judged by a linearizability checker, and planted defects
#                    that it must find; needs Go (docs/histories.md)
#   make fuzz        hostile bytes for every decoder; FUZZ_ARGS="--seconds 600 --target wire" chooses time and targets
#   make mutants     small defects in the product, and the tests that must fail of them; MUTANTS_ARGS="--module core"
#   make check       lint, types, layers and the fast tests: a minute
#   make lint        ruff, rules and format; plain English in pages, messages, docstrings and names of tests
#   make typecheck   mypy
#   make bench       write, read and Spark throughput of a cluster on this machine
#   make lock        makes requirements/*.txt again: the newest versions that setup.cfg allows, with hashes; needs uv
#   make audit       looks for known vulnerabilities of what the lock files name
#   make licences    writes docs/licences.md
#   make clean       removes everything that was built, but not .venv
#
# PYTHON=/path/to/python3 chooses the interpreter, VENV=DIR where the virtual environment goes. LOCKED=yes installs the
# versions of requirements/ci.txt and checks the hash of each file.

VENV ?= .venv
VENV_OLDEST ?= .venv-oldest
VENV_AUDIT ?= .venv-audit
LOCKED ?=
OLDEST_SPARK := 4.0.*
# Linux says how much memory is available; elsewhere, or with less, two processes run the tests.
TEST_PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || echo 1); \
  room=$$(awk '/^MemAvailable/ { print int($$2 / 1500000) }' /proc/meminfo 2>/dev/null); \
  most=$$((cores + 2 < $${room:-2} ? cores + 2 : $${room:-2})); echo $$((most > 2 ? most : 2)))
# Few tests of `make check` wait, and each process takes three seconds of processor time before its first test.
CHECK_PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || echo 1); \
  echo $$((cores + 1 < $(TEST_PROCESSES) ? cores + 1 : $(TEST_PROCESSES))))
# tests/conftest.py says in which order the processes get the tests.
DISTRIBUTE := --dist loadgroup --no-loadscope-reorder
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)

# Spark starts its Python workers with this one; a python3 from the PATH would lack bkspark.
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Many images set this variable. Each of the thousands of processes that tests start would compile the product again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo check test test-long test-all test-oldest-spark test-interop test-pulsar \
  test-real-cluster test-histories fuzz mutants lint typecheck bench lock audit licences clean install \
  install-oldest-spark requirements compiled-tests

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

demo: install
	$(BIN)/bkspark demo

# What most changes of the library break first. tests/bookie and the rest of tests/spark take minutes.
FAST_TESTS := $(wildcard tests/test_*.py) tests/core tests/wire tests/net tests/metadata tests/log tests/ledger \
  tests/spark/test_options.py tests/spark/test_typed_options.py tests/bookie/test_rules.py \
  tests/bookie/test_configuration_docs.py

# Types are checked beside the rest, on one core, for 18 s without a cache on quiet cores; what mypy says comes last. `lint` has read all pages
# and programs for plain English.
check: install
	@said=$$(mktemp); $(BIN)/mypy >$$said 2>&1 & typing=$$!; \
	$(MAKE) --no-print-directory lint && $(BIN)/python -m pytest --quiet --numprocesses $(CHECK_PROCESSES) $(DISTRIBUTE) \
	  -m "not cluster and not spark and not interop and not slow" \
	  --deselect tests/test_plain_english.py::test_what_people_read_is_plain $(PYTEST_ARGS) $(FAST_TESTS); checked=$$?; \
	wait $$typing; typed=$$?; cat $$said; rm -f $$said; exit $$((checked ? checked : typed))

# pytest compiles the tests when it first imports them. In a fresh clone each process of `test` would compile all of them,
# because these begin together. Here each folder is compiled once. Errors are for the run itself to report.
compiled-tests: install
	@[ -d tests/wire/__pycache__ ] || \
	  printf '%s\n' $(wildcard tests/*/) | xargs -n 7 -P 2 $(BIN)/python -m pytest --quiet --collect-only >/dev/null || true

# An -m in PYTEST_ARGS replaces the one of these targets.
test test-long test-all: install compiled-tests
	@$(BIN)/python -m tests.interop.build
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) $(DISTRIBUTE) $(TIER) $(PYTEST_ARGS)

test: TIER := -m "not long"
test-long: TIER := -m long
test-all: TIER :=

test-interop: install
	@$(BIN)/python -m tests.interop.build
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/interop

test-pulsar: install
	@$(BIN)/python -m tests.interop.build pulsar
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/interop/test_pulsar*.py

test-real-cluster: install
	$(BIN)/python -m tests.real_cluster

test-histories: install
	$(BIN)/python -m tests.histories

# pip chooses the oldest Spark beside whatever else setup.cfg asks for; the sources are used where they lie.
install-oldest-spark: requirements
	@[ $(VENV_OLDEST)/.installed -nt setup.cfg ] || { $(FIND_PYTHON); $$python -m venv --clear $(VENV_OLDEST) && \
	  $(VENV_OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' \
	    'pyspark==$(OLDEST_SPARK)' && touch $(VENV_OLDEST)/.installed; }

test-oldest-spark: install-oldest-spark
	PYSPARK_PYTHON=$(abspath $(VENV_OLDEST))/bin/python PYSPARK_DRIVER_PYTHON=$(abspath $(VENV_OLDEST))/bin/python \
	  $(VENV_OLDEST)/bin/python -m pytest $(PYTEST_ARGS) tests/spark

fuzz: install
	$(BIN)/python -m tests.fuzzing $(FUZZ_ARGS)

mutants: install
	$(BIN)/python -m tests.mutation $(MUTANTS_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.plain_english

typecheck: install
	$(BIN)/mypy

bench: install
	$(BIN)/bkspark bench write --entry-size 1024 --ensemble 3 --write-quorum 3 --ack-quorum 2
	$(BIN)/bkspark bench read --entry-size 1024 --ensemble 3 --write-quorum 3 --ack-quorum 2
	$(BIN)/bkspark bench spark --rows 500000 --value-size 1024

LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate
lock: export UV_CUSTOM_COMPILE_COMMAND := make lock
lock: install
	@command -v uv >/dev/null || { echo "missing: uv (pip install uv)" >&2; exit 1; }
	$(LOCK) requirements/build.in --output-file requirements/build.txt
	$(LOCK) requirements/audit.in --output-file requirements/audit.txt
	$(LOCK) requirements/kerberos-build.in --output-file requirements/kerberos-build.txt
	@for lock in bookie executor spark kerberos; do \
	  $(BIN)/python -m tests.supply_chain.locks $$lock.txt | $(LOCK) - --output-file requirements/$$lock.txt; done
	$(LOCK) --extra demo --extra test --extra fuzz --extra deploy setup.cfg --output-file requirements/ci.txt

# Exit code 2: pip-audit failed. 3: the database of vulnerabilities could not be asked; what is printed says why.
audit: install
	@[ $(VENV_AUDIT)/.installed -nt requirements/audit.txt ] || { $(BIN)/python -m venv --clear $(VENV_AUDIT) && \
	  $(VENV_AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement requirements/audit.txt && touch $(VENV_AUDIT)/.installed; }
	@$(BIN)/python -m tests.supply_chain.audit $(VENV_AUDIT)/bin/pip-audit

licences: install
	$(BIN)/python -m tests.supply_chain.licences > docs/licences.md

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache tests/interop/java/target tests/interop/pulsar/target
	find bkspark bookie_service pyspark_bookkeeper tests -name __pycache__ -type d -prune -exec rm -rf {} +

install: requirements $(STAMP)

# A working interpreter is one that runs (a version manager's shim may not) and can make a virtual environment.
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
IS_SUITABLE := -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
FIND_PYTHON := python=$$(for each in $(CANDIDATES); do $$each $(IS_SUITABLE) && echo $$each && break; done)

# Everything that is missing is said at once, before anything is made.
requirements:
	@$(FIND_PYTHON); \
	if [ -z "$$python" ]; then \
	  echo "missing: Python 3.11 or later with its venv module (tried $(CANDIDATES))." \
	    "Install it, or name one: make PYTHON=/path/to/python3" >&2; \
	fi; \
	java=$$($(JAVA) -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1); \
	if [ -z "$$java" ]; then \
	  echo "missing: Java 17 or later ('$(JAVA) -version' did not answer)." \
	    "Install it, or set JAVA_HOME to where it is" >&2; \
	elif [ "$${java%%[!0-9]*}" -lt 17 ]; then \
	  echo "missing: Java 17 or later ('$(JAVA)' is version $$java)." \
	    "Install a newer one, or set JAVA_HOME to where it is" >&2; \
	  java=; \
	fi; \
	[ -n "$$python" ] && [ -n "$$java" ]

# An environment whose interpreter has gone is made again.
ifneq ($(shell $(BIN)/python $(IS_SUITABLE) && echo works),works)
.PHONY: $(STAMP)
endif

$(STAMP): setup.cfg pyproject.toml | requirements
	@echo "setting up $(VENV) (once; fetches Spark and takes a minute or two)"
	@$(BIN)/python $(IS_SUITABLE) || { $(FIND_PYTHON); $$python -m venv --clear $(VENV); }
ifeq ($(LOCKED),)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test,fuzz]'
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --requirement requirements/build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation \
	  --requirement requirements/ci.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
endif
	@touch $@

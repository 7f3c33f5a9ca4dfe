# `make` lists what there is. Everything runs from .venv; nothing is installed twice.

PYTHON ?= python3
SECONDS ?= 900
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BIN := .venv/bin
ENGINE = $(BIN)/python -m tools.engine
# The tests write and remove many small files: in memory, where 12 GiB are free, that takes less processor time.
IN_MEMORY = $$([ "$$(df --output=avail /dev/shm | tail -n 1)" -gt 12000000 ] && \
    awk '/^MemAvailable/ && $$2 > 16000000 {print "env PYTEST_DEBUG_TEMPROOT=/dev/shm"}' /proc/meminfo)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without byte-code, each of the thousands of processes that tests start compiles imagegen again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup packages requirements quickstart test test-unit test-functional test-local coverage test-slow test-browser chromium qemu faults tables findings counts docs bench truth fuzz lint lint-code lint-files compiled-tests engine-up engine-down clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	    printf '  make %-12s %s\n' "$$name" "$$what"; done

setup: packages .venv/ready  ## the programs of the system that are missing, and .venv with imagegen and its tools

# Installs only what is missing, and sees that apt knows its mirrors (bases and the private engine come from them). What the private engine needs is left alone where Docker answers: Docker's own packages
# bring a runc of theirs, and a second one would replace it.
packages:
	@set -eu; missing=""; \
	need() { command -v "$$1" >/dev/null || PATH="/usr/sbin:/sbin:$$PATH" command -v "$$1" >/dev/null || missing="$$missing $$2"; }; \
	need git git; need mmdebstrap mmdebstrap; need bwrap bubblewrap; need mksquashfs squashfs-tools; \
	if [ -z "$${DOCKER_HOST:-}" ] && ! docker info >/dev/null 2>&1; then \
	    need ip iproute2; need iptables iptables; need runc runc; \
	fi; \
	[ -x $(BIN)/python ] || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	lists() { apt-get indextargets --format '$$(LABEL)' | grep -q Debian; }; \
	if [ -e /etc/debian_version ] && [ -z "$${IMAGEGEN_DEBIAN_MIRROR:-}" ] && ! lists; then $(SUDO) apt-get -qq update; fi; \
	[ -z "$$missing" ] && exit 0; \
	command -v apt-get >/dev/null || { echo "missing here:$$missing; install them and try again" >&2; exit 1; }; \
	echo "installing$$missing" >&2; \
	$(SUDO) apt-get -qq update; \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null

# pip, since it is the one that reads a machine's pip settings; a new one, since old ones know no dependency groups.
# Modules are compiled when they are first imported, which most never are.
.venv/ready: pyproject.toml | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "imagegen needs Python 3.11 or newer; make PYTHON=... names one" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --no-compile --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -q --no-compile --editable . --group dev
	@touch $@

# CI installs exactly these files: jobs that may push images and sign run nothing else from an index.
LOCKED = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-build --generate-hashes \
    --no-emit-index-url --no-annotate --custom-compile-command 'make requirements'
requirements: setup  ## lock what CI installs: .github/requirements/*.txt
	@cd .github/requirements && ../../$(LOCKED) --extra keyless ../../pyproject.toml backend.in --output-file imagegen.txt
	@cd .github/requirements && ../../$(LOCKED) package.in --output-file package.txt

quickstart: setup  ## build cpu-grpo, run its smoke checks, print how to run it
	@set -eu; $(use_engine); $(BIN)/imagegen build cpu-grpo --scratch-base; \
	[ -z "$$engine" ] || echo 'the engine is private: first select it in a shell, eval "$$(make -s engine-up)"' >&2

# The linters leave half of two cores idle: meanwhile an engine starts, and the tests are compiled, which each test
# process would do again.
test: setup  ## the linters, and all tests but the slow ones
	@$(MAKE) --no-print-directory --output-sync -j 3 lint compiled-tests & checks=$$!; \
	trap 'kill $$checks' EXIT; \
	$(call with_engine,wait $$checks; $(IN_MEMORY) $(BIN)/pytest -n 3 --dist loadscope -m 'not slow')

compiled-tests: setup
	@$(BIN)/pytest -q --collect-only -m 'not slow' >/dev/null || true  # the tests themselves report what is wrong

test-unit: setup  ## the tests of functions, which start nothing: a minute
	@$(BIN)/pytest -n 2 --dist loadscope -m 'not slow' tests/unit

test-functional: setup  ## the tests with servers on loopback, processes, git and uv: a few minutes, no engine
	@$(BIN)/pytest -n 2 --dist loadscope -m 'not slow' tests/functional

test-local: test-unit test-functional  ## the tests that need neither an engine nor a network

coverage: setup  ## the lines and branches that unit and functional tests reach, which must not fall
	@$(BIN)/pytest -n 2 --dist loadscope -m 'not slow' --cov --cov-report=term:skip-covered tests/unit tests/functional

test-slow: setup chromium qemu  ## the slow tests: several GB, many minutes
	@$(call with_engine,$(BIN)/pytest -m slow)

test-browser: setup chromium  ## the slow tests of the report's pages in a real browser: a minute
	@$(BIN)/pytest tests/integration/test_report_browser.py

qemu:
	@command -v arch-test >/dev/null || { $(SUDO) apt-get -qq update; $(SUDO) env DEBIAN_FRONTEND=noninteractive \
	    apt-get -qq install -y --no-install-recommends arch-test binfmt-support qemu-user-static >/dev/null; }

chromium:
	@command -v chromium >/dev/null || { $(SUDO) apt-get -qq update; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; }

faults: setup  ## play the faults and attacks that are not slow, and write docs/internals/faults.md
	@$(call with_engine,$(BIN)/pytest -n 2 --dist loadscope -m "fault and not slow" --fault-table=docs/internals/faults.md)

fuzz: setup  ## property tests with many examples; fuzz the readers of wheels and binaries for SECONDS=900 each (atheris)
	@$(BIN)/pytest -n 2 -m hypothesis --hypothesis-profile=thorough tests/unit tests/functional
	@$(BIN)/python -m pip install -q --group fuzz
	@for way in wheel_reader.py "wheel_reader.py --structured" binary_reader.py; do \
	    $(BIN)/python tests/fuzz/$$way -max_total_time=$(SECONDS) -artifact_prefix=tests/fuzz/ || exit; \
	done

bench: setup  ## five ways from one lock to an environment, side by side; the first import in a container; commands
	@$(call with_engine,$(BIN)/python bench/compare.py --save cpu-grpo cpu-grpo && \
	    $(BIN)/imagegen build cpu-grpo --no-test --scratch-base >/dev/null && $(BIN)/python bench/imports.py)
	@$(BIN)/python bench/startup.py --save startup
	@$(BIN)/python bench/grid.py --save grid
	@$(BIN)/pytest -q tests/unit/test_bench_results.py --update-golden

truth: setup  ## ask `why` about the cases of tests/truth, and write docs/internals/why-accuracy.md: some minutes
	@$(BIN)/python bench/why_truth.py docs/internals/why-accuracy.md

tables: setup  ## write the generated tables, pages and schema: README, docs/reference, measurements, schema
	@$(BIN)/pytest -q tests/unit/test_readme.py tests/unit/test_error_codes.py tests/unit/test_reference.py \
	    tests/unit/test_matrix_load.py tests/unit/test_bench_results.py --update-golden

docs: setup  ## build the documentation into site/, with strict links
	@$(BIN)/python -m pip install -q --group docs
	@$(BIN)/zensical build --clean --strict

counts: setup  ## count what has a budget: lines, names, sentences, shape of the code
	@$(BIN)/python -m tools.counts

findings: setup  ## write docs/reference/findings.md from the catalogue of what an audit finds
	@$(BIN)/pytest -q tests/unit/test_audit_catalogue.py --update-golden

lint: lint-code lint-files  ## ruff, mypy, codespell; of the workflows zizmor and their schema

lint-code: setup
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

lint-files: setup
	@$(BIN)/codespell
	@$(BIN)/zizmor --offline --quiet .github
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-actions .github/actions/*/action.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.gitlab-ci .gitlab/nightly.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.buildkite .buildkite/nightly.yml

engine-up: setup  ## start a private Docker engine if no usable one runs: eval "$(make -s engine-up)" selects it
	@$(ENGINE) up --if-needed

engine-down: setup  ## remove the private engine and its images, undo its changes of the machine
	@$(ENGINE) down

clean:  ## remove .venv and the tools' caches; the store stays
	rm -rf .venv site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# Select an engine in a shell: the user's, or else a private one, which sets engine_started if it did not run before.
define use_engine
engine_started=""; engine=$$($(ENGINE) up --if-needed); eval "$$engine"
endef

# Run a command with an engine, and remove the engine if it was started for that.
define with_engine
set -eu; $(use_engine); \
trap '[ -z "$$engine_started" ] || $(ENGINE) down' EXIT; trap 'exit 130' INT TERM; \
$(1)
endef

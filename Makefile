# `make help` lists what there is. Everything runs from .venv, which is made from the locked requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -m pytest -q
BESIDE := -n 2 --dist worksteal # most tests wait for something most of the time
STAMP := .venv/.made
PROTOS := $(wildcard spark-apps/changefeed/wire/*.proto)
CODE := spark-apps devcluster operator tests bench examples

.PHONY: help demo test test-unit test-simulation simulate test-integration lint generate check-generated lock bench evidence \
	clean java classes

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) classes ## a bank, a changefeed from it to files, and the proof that they are right
	@$(PY) examples/demo.py

test: lint test-unit test-simulation test-integration ## set up, then everything that is checked

test-unit: $(STAMP) ## tests of single parts
	$(PYTEST) $(BESIDE) tests/unit

test-simulation: $(STAMP) ## tests of the cores together, in virtual time
	$(PYTEST) tests/simulation

simulate: $(STAMP) ## more seeds (SEEDS=5000), or one with its whole story (SEED=123)
	SEEDS=$(or $(SEEDS),5000) $(PYTEST) -s --timeout 0 tests/simulation -k no_seed

test-integration: $(STAMP) classes ## tests with real processes: development cluster, Spark, kills
	$(PYTEST) $(BESIDE) tests/integration

lint: $(STAMP) check-generated ## style, types, layers, generated files
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check $(CODE)
	.venv/bin/mypy
	.venv/bin/lint-imports

# A pyi can't name an enum value None; the value stays reachable as Value("None").
define protoc
	$(PY) -m grpc_tools.protoc -I spark-apps --python_out=$(1) --pyi_out=$(1) $(PROTOS)
	for file in $(1)/changefeed/wire/*_pb2.pyi; do \
		{ grep -v '^ *None: ' "$$file" || true; } > "$$file.new"; mv "$$file.new" "$$file"; \
	done
endef

generate: $(STAMP) ## Python from the .proto files
	$(call protoc,spark-apps)

check-generated: $(STAMP) ## fails when the checked-in Python is not what the .proto files give
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(MAKE) --silent generate-into INTO="$$fresh"; \
	for file in "$$fresh"/changefeed/wire/*; do \
		diff -u "spark-apps/changefeed/wire/$${file##*/}" "$$file" \
			|| { echo "$${file##*/} is not what its .proto gives: run make generate." >&2; exit 1; }; \
	done

.PHONY: generate-into
generate-into:
	$(call protoc,$(INTO))

lock: ## requirements/dev.txt anew from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra dataplane --extra devcluster --extra dev --extra operator pyproject.toml -o requirements/dev.txt

bench: $(STAMP) classes ## how fast: prints the figures, writes bench/out/bench.json
	$(PY) bench/bench.py

evidence: $(STAMP) classes ## the full-length figures, into bench/results/ for committing
	$(PY) bench/bench.py --out bench/results/bench.json

clean: ## forget the demo, caches and outputs; .venv stays
	rm -rf .demo bench/out build dist spark-warehouse metastore_db artifacts
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed: install it, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Java 17 is needed (found: $${version:-none}): apt-get install openjdk-17-jre-headless," \
			"or any JDK 17 with JAVA_HOME set." >&2; exit 1; \
	fi

classes: $(STAMP) java
	@$(PY) -m changefeed.spark.class_archive

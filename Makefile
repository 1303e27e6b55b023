# Everything foreword needs is installed in .venv; nothing outside this folder is changed but the user's cache of models.
#
#   make demo    the same words, faster            make check       lint, formatting and types
#   make test    the tests (test-slow: the rest)   make format      put the code in order
#   make install only set up .venv                 make clean       delete .venv and caches
#   make soak    100,000 tokens, none may differ   make check-kernels   the kernels under sanitizers
#   make fuzz    5,000 random combinations of models, options, drafters, callers
#   make fuzz-files   2,000 damaged files of models and drafters
#
# Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
KERNEL_SOURCES := $(shell find kernels -name build -prune -o -type f -print 2>/dev/null)

.PHONY: help install demo test test-slow check check-kernels soak fuzz fuzz-files format constraints clean

help:
	@sed -n 's/^#   //p' Makefile

# Each stamp is newer than what it was made from, so that the second run starts at once.
install: $(VENV)/.kernels-stamp

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: foreword needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 || true)." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing foreword and what it needs in $(VENV): minutes the first time, torch is large"
	@$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# Without a compiler, or where the kernels do not build, foreword works all the same.
$(VENV)/.kernels-stamp: $(VENV)/.stamp $(KERNEL_SOURCES)
	@if [ -f kernels/pyproject.toml ]; then \
	  echo "building the kernels of the native runtime"; \
	  if { $(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja && \
	       $(PIP) install -c constraints.txt --no-build-isolation ./kernels; } >$(VENV)/kernels.log 2>&1; then :; else \
	    $(PIP) uninstall --quiet --yes foreword-kernels 2>/dev/null || true; \
	    echo "the kernels could not be built (see $(VENV)/kernels.log): the torch runtime takes over, slower; foreword doctor says more"; \
	  fi; \
	fi
	@touch $@

demo: install
	@$(BIN)/foreword demo

test: install
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope

# Also the tests that the default run leaves out: whole cross products, long texts. Some ten minutes more.
test-slow: install
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope -m slow

check: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

# 100,000 tokens on the default model: not one may differ from plain decoding. Minutes.
soak: install
	@$(BIN)/python -m foreword.bench.soak

# 5,000 random combinations of models, prompts, options, drafters, batches and callers against plain decoding. An hour.
fuzz: install
	@$(BIN)/python -m benchmarks.fuzz

# 2,000 damaged files of models and drafters: each is refused in one line, or its words are the same. Minutes.
fuzz-files: install
	@$(BIN)/python -m benchmarks.fuzz_files

# The kernels' tests once more, built with AddressSanitizer and UndefinedBehaviorSanitizer.
check-kernels: install
	@sh kernels/check.sh $(BIN)/python

format: install
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# After a change of the dependencies, in a fresh .venv: write down what was installed.
constraints: install
	@{ sed -n '/^#/p' constraints.txt; \
	   $(PIP) freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | grep -viE '^(foreword|nvidia|cuda|triton)|@'; } >constraints.new
	@mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) kernels/build .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

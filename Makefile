# Everything foreword needs is installed in .venv; nothing outside this folder is changed but the user's cache of models.
#
#   make demo    same tokens, faster                make check       lint, formatting, types, workflow files
#   make test    the tests (test-slow: the rest)    make format      format and fix the code
#   make install only set up .venv                  make docs        the documentation site, in build/site
#   make soak    100,000 tokens, none may differ    make wheels      the three wheels, in dist
#   make fuzz    5,000 random combinations          make check-kernels   the kernels under sanitizers
#                of models, options, drafters,      make clean       delete .venv and caches
#                callers
#   make fuzz-files   2,000 damaged files of models and drafters
#
# Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
KERNEL_SOURCES := $(shell find kernels -name build -prune -o -type f -print 2>/dev/null)
PROGRESS := sh tools/progress.sh 10

.PHONY: help install demo test test-slow check docs wheels check-kernels soak fuzz fuzz-files format constraints clean

help:
	@sed -n 's/^#   //p' Makefile

# Each stamp is newer than what it was made from, so that the second run starts at once.
install: $(VENV)/.kernels-stamp

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: foreword needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 || true)." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "1 of 3: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "2 of 3: foreword and what it needs, into $(VENV): minutes the first time, torch is large"
	@$(PROGRESS) $(VENV)/install.log $(PIP) install --progress-bar off -c constraints.txt -e '.[dev]'
	@touch $@

# Without a compiler, or where the kernels do not build, foreword works all the same.
$(VENV)/.kernels-stamp: $(VENV)/.stamp $(KERNEL_SOURCES)
	@if [ -f kernels/pyproject.toml ]; then \
	  echo "3 of 3: the kernels of the native runtime: a minute or two of compiling"; \
	  if $(PROGRESS) $(VENV)/kernels-tools.log $(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja && \
	     $(PROGRESS) $(VENV)/kernels.log $(PIP) install -c constraints.txt --no-build-isolation ./kernels; then \
	    echo "installed: $(BIN)/foreword"; \
	  else \
	    $(PIP) uninstall --quiet --yes foreword-kernels 2>/dev/null || true; \
	    echo "the kernels could not be built (see $(VENV)/kernels.log): foreword works with the slower torch runtime;" \
	      "$(BIN)/foreword doctor says what is missing"; \
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
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Pages that are made (command line, Python) are made anew each time; a warning is an error.
docs: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# foreword, its kernels, and the drafters of the default model: what an installation without this folder needs.
wheels: install
	@rm -rf build/lib build/bdist* checkpoints/build
	@$(PIP) wheel --quiet --no-deps --wheel-dir dist . ./kernels ./checkpoints
	@ls dist

# 100,000 tokens on the default model: not one may differ from plain decoding. Minutes.
soak: install
	@$(BIN)/python -m foreword.bench.soak

# 5,000 random combinations of models, prompts, options, drafters, batches and callers against plain decoding. An hour.
fuzz: install
	@$(BIN)/python -m benchmarks.fuzz

# 2,000 damaged files of models and drafters: each is refused in one line, or its tokens are the same. Minutes.
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
	rm -rf $(VENV) build dist kernels/build checkpoints/build .pytest_cache .ruff_cache .hypothesis src/*.egg-info checkpoints/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

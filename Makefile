# make train ARGS="encoding=rpr rpr.k=4"   train, measure and log; ARGS="--help" lists the options
# make test                                 run the tests
# make lint                                 check style
# make docs                                 build the guides of docs/ into site/
# make gpu                                  check and measure this GPU; ARGS="--help" says more
# make lock                                 renew requirements.lock
#
# Each first installs what it needs into .venv, once. PYTHON=python3.12 names another Python.
# EXTRA=cuda, EXTRA=tpu and EXTRA=slurm add what those need.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready$(EXTRA:%=-%)
UV := $(BIN)/uv --quiet pip

# CUDA is gigabytes: it is installed where there is a GPU of NVIDIA's, under Linux or WSL.
CUDA := $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),cuda)

.PHONY: help train test lint docs gpu lock

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

train: $(READY)
	@$(BIN)/python -m posexp.train $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

docs:
	@$(MAKE) --no-print-directory EXTRA=docs .venv/ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "site/index.html"

gpu:
	@$(MAKE) -s --no-print-directory EXTRA=$(CUDA) .venv/ready$(CUDA:%=-%)
	@$(BIN)/python scripts/gpu.py $(ARGS)

lock: $(READY)
	@$(UV) compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --no-annotate --output-file requirements.lock > /dev/null

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "posexp needs Python 3.11 or newer: name one, as in make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	  { echo "posexp needs Python's venv: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	@echo "posexp: installing into .venv, once"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install 'uv>=0.9,<1'
	@$(UV) install --python $(BIN)/python --compile-bytecode --require-hashes --requirements requirements.lock
	@$(UV) install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@test -z "$(EXTRA)" || $(UV) install --python $(BIN)/python --constraints requirements.lock --editable '.[$(EXTRA)]'
	@touch $@

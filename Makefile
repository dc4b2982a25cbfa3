# make train encoding=rpr rpr.k=4           train, measure and log; ARGS="--help" lists the options
# make train ARGS="-m seed=0,1,2"           the same with flags, which make would take for its own
# make test                                 run the tests
# make lint                                 check style and types
# make docs                                 build the guides of docs/ into site/
# make gpu                                  check and measure this GPU; ARGS="--help" says more
# make slurm                                try sweeps on clusters of Slurm that it sets up; the same
# make lock                                 renew requirements.lock
#
# Each first installs what it needs into .venv, once. PYTHON=python3.12 names another Python.
# EXTRA=cuda and EXTRA=tpu add what those need.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready$(EXTRA:%=-%)
UV := $(BIN)/uv --quiet pip

# CUDA is gigabytes: it is installed where there is a GPU of NVIDIA's, under Linux or WSL.
CUDA := $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),cuda)

# Options of posexp that were typed as they are, each quoted for the shell. In MAKEOVERRIDES, which
# make has of them, a blank is "\ ", which ␠ stands for meanwhile, and $ is doubled.
comma := ,
empty :=
blank := $(empty) $(empty)
OWN := ARGS=% PYTHON=% EXTRA=% BIN=% READY=% UV=% CUDA=%
TYPED := $(filter-out $(OWN),$(subst $$$$,$$,$(subst \$(blank),␠,$(MAKEOVERRIDES))))
TYPED := $(foreach each,$(TYPED),'$(subst ␠,$(blank),$(subst ','\'',$(each)))')
HINT := flags go into ARGS, as in make train ARGS="-m seed=0,1"

# Make would look at a word that is neither a target nor an option after training.
GOALS := help train test lint docs gpu slurm lock $(READY) .venv/ready-%
ifneq ($(filter-out $(GOALS),$(MAKECMDGOALS)),)
  $(error $(filter-out $(GOALS),$(MAKECMDGOALS)): no target of make; write options as \
    option=value, as in make train encoding=rpr, and other arguments as in make test ARGS="-x")
endif

.PHONY: help train test lint docs gpu slurm lock

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

train: $(READY)
	@$(BIN)/python -m posexp.train $(TYPED) $(ARGS)$(if $(findstring $(comma),$(TYPED)), || \
	  { status=$$?; echo '$(HINT)' >&2; exit $$status; })

test: $(READY)
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(TYPED) $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs:
	@$(MAKE) --no-print-directory EXTRA=docs .venv/ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python scripts/website.py site && echo "site/index.html"

gpu:
	@$(MAKE) -s --no-print-directory EXTRA=$(CUDA) .venv/ready$(CUDA:%=-%)
	@$(BIN)/python scripts/bench/gpu.py $(TYPED) $(ARGS)

slurm: $(READY)
	@$(BIN)/python scripts/slurm.py $(TYPED) $(ARGS)

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

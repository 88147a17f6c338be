# Two commands matter: `make demo` and `make test`. Both build what they need under .venvs/.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# The first of these that really runs (a shim of a version manager may be there and not run).
# 3.11 first: it is the Python that most of the hosts' wheels are made for.
runs = $(firstword $(foreach name,$(1),$(shell $(name) -c 'import sys; print(sys.executable)' 2>/dev/null)))
ifndef PYTHON
PYTHON := $(call runs,python3.11 python3.12 python3.10 python3)
endif
# NeMo Gym needs Python 3.13; its tests skip where there is none.
ifndef PYTHON313
PYTHON313 := $(call runs,python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python3.13))
endif

CORE := .venvs/core
DOCS := .venvs/docs
VERL := .venvs/verl
GYM := .venvs/gym
NEMO := .venvs/nemo-rl
TRL := .venvs/trl
MUTANTS := .venvs/mutants
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# pip repeats one line about local package folders for every package on some machines.
QUIET := 2> >(grep -v "is ignored: it is neither a file nor a directory" >&2)
PYTEST := -m pytest -q

.PHONY: help demo experiment test lint unit docs integration-browser integration-verl integration-gym integration-nemo-rl integration-trl integration mutants compatibility benchmark build clean

help:  ## Show this help
	@grep -E '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 22

demo: $(VERL)/.ready  ## Show the main job: what failed rollouts do to real verl GRPO, and without them
	$(VERL)/bin/samplemask demo --out demo-out

experiment: $(VERL)/.ready  ## Measure what each choice changes in environments that fail; writes docs/experiment.md
	PYTHONPATH=examples $(VERL)/bin/python -m outage --docs docs

test: lint unit docs integration-browser integration-verl integration-gym integration-nemo-rl integration-trl build  ## Run everything that CI runs

lint: $(CORE)/.ready  ## Lint, format and type checks
	$(CORE)/bin/ruff check .
	$(CORE)/bin/ruff format --check .
	$(CORE)/bin/mypy

unit: $(CORE)/.ready  ## Fast tests: no trainer, no network
	$(CORE)/bin/python $(PYTEST) tests

docs: $(DOCS)/.ready  ## Build the guide strictly into .venvs/site: links, anchors, nothing from elsewhere
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	$(DOCS)/bin/python docs/_tools/check_site.py .venvs/site

integration-browser: $(CORE)/.ready  ## The audit's page in a real Chromium; skips where there is none
	$(CORE)/bin/python $(PYTEST) integration/browser

integration-verl: $(VERL)/.ready  ## Tests against the real verl
	$(VERL)/bin/python $(PYTEST) -m "not slow" integration/verl tests/adapters

integration-gym: $(GYM)/.ready  ## Tests against the real NeMo Gym (needs python3.13)
	@if [ -x $(GYM)/bin/python ]; then $(GYM)/bin/python $(PYTEST) -m "not slow" integration/gym; \
	else echo "SKIPPED integration/gym: NeMo Gym needs Python 3.13 and none was found"; fi

integration-nemo-rl:  ## Tests against a NeMo-RL checkout (SAMPLEMASK_NEMO_RL_CHECKOUT)
	@if [ -n "$${SAMPLEMASK_NEMO_RL_CHECKOUT:-}" ]; then \
	  $(MAKE) $(NEMO)/.ready && $(NEMO)/bin/python $(PYTEST) -p no:asyncio integration/nemo_rl; \
	else echo "SKIPPED integration/nemo_rl: set SAMPLEMASK_NEMO_RL_CHECKOUT to a checkout of NVIDIA-NeMo/RL"; fi

integration-trl: $(TRL)/.ready  ## Tests of the guide's worked example against the real TRL
	$(TRL)/bin/python $(PYTEST) integration/trl

integration: $(VERL)/.ready  ## The slower tests too: whole training runs of the real verl
	$(VERL)/bin/python $(PYTEST) integration/verl

mutants: $(MUTANTS)/.ready  ## Mutate the core and ask whether a test notices; writes docs/mutants.md (20 minutes, not in `make test`)
	OMP_NUM_THREADS=1 $(MUTANTS)/bin/python integration/mutation/run.py --work .venvs/mutants-work --write

compatibility:  ## The tests on other versions; writes docs/compatibility.md (15 minutes, not in `make test`)
	$(PYTHON) integration/compatibility/run.py --work .venvs/compatibility --write docs/compatibility.md

benchmark: $(VERL)/.ready  ## Measure against the hosts' own code and write docs/performance.md
	$(VERL)/bin/python $(PIP_INSTALL) "pytest-benchmark>=5" $(QUIET)
	OMP_NUM_THREADS=1 $(VERL)/bin/python $(PYTEST) benchmarks -W ignore -p no:asyncio --benchmark-disable-gc \
	  --benchmark-timer=time.process_time --benchmark-json=.venvs/benchmark.json
	$(VERL)/bin/python benchmarks/report.py .venvs/benchmark.json

build: $(CORE)/.ready  ## Build sdist and wheel and try the wheel in an empty environment
	rm -rf dist && $(CORE)/bin/python -m build --quiet . $(QUIET)
	rm -rf .venvs/wheel && $(PYTHON) -m venv .venvs/wheel
	.venvs/wheel/bin/python $(PIP_INSTALL) dist/*.whl $(QUIET)
	cd / && $(CURDIR)/.venvs/wheel/bin/samplemask --help > /dev/null
	cd / && $(CURDIR)/.venvs/wheel/bin/python -c "import samplemask, samplemask_verl"

clean:  ## Remove the environments and everything built
	rm -rf .venvs dist demo-out experiment-out .pytest_cache .mypy_cache .ruff_cache

$(CORE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python $(PIP_INSTALL) --upgrade "pip>=25.1" $(QUIET)
	$(CORE)/bin/python $(PIP_INSTALL) -e ".[verl]" --group dev $(QUIET)
	touch $@

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIP_INSTALL) --upgrade "pip>=25.1" $(QUIET)
	$(DOCS)/bin/python $(PIP_INSTALL) --group docs $(QUIET)
	touch $@

$(VERL)/.ready: pyproject.toml integration/verl/requirements.txt
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python $(PIP_INSTALL) -r integration/verl/requirements.txt $(QUIET)
	$(VERL)/bin/python $(PIP_INSTALL) -e ".[verl,demo]" $(QUIET)
	touch $@

# TRL beside verl's torch and transformers, which it borrows; verl itself must not see TRL.
$(TRL)/.ready: $(VERL)/.ready integration/trl/requirements.txt
	$(PYTHON) -m venv $(TRL)
	$(VERL)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  "$$($(TRL)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/borrowed.pth"
	$(TRL)/bin/python $(PIP_INSTALL) -r integration/trl/requirements.txt $(QUIET)
	$(TRL)/bin/python $(PIP_INSTALL) -e . $(QUIET)
	touch $@

$(MUTANTS)/.ready: integration/mutation/requirements.txt
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python $(PIP_INSTALL) -r integration/mutation/requirements.txt $(QUIET)
	touch $@

$(NEMO)/.ready: pyproject.toml integration/nemo_rl/requirements.txt
	$(PYTHON) -m venv $(NEMO)
	$(NEMO)/bin/python $(PIP_INSTALL) -r integration/nemo_rl/requirements.txt $(QUIET)
	$(NEMO)/bin/python $(PIP_INSTALL) -e ".[nemo-rl]" $(QUIET)
	touch $@

$(GYM)/.ready: pyproject.toml integration/gym/requirements.txt
	@mkdir -p $(GYM)
	if [ -n "$(PYTHON313)" ]; then \
	  $(PYTHON313) -m venv $(GYM); \
	  $(GYM)/bin/python $(PIP_INSTALL) --ignore-requires-python -r integration/gym/requirements.txt $(QUIET); \
	  $(GYM)/bin/python $(PIP_INSTALL) -e . $(QUIET); \
	fi
	touch $@

# make train:   venv, install of what it needs, the main job on a real environment, where the results are (two minutes on two cores).
# make test:    venv, install of all, lint, types, the wheel, all tests (six minutes on two cores; marked `slow`: make test-slow).
# make wheels:  sdist and wheels for Python 3.11 to 3.14, as far as they are found, in dist/ (three minutes each on two cores).
# make thinker: Thinker learns a model of small Sokoban and plans with it (some five minutes on two cores).
PYTHON ?= python3
VENV := .venv
comma := ,
BIN := $(VENV)/bin
EXPERIMENT ?= hierarchy-doorkey
ARGS ?=
# A setting with which the experiment is trained a second time, for the picture: without its goal task.
BESIDE ?= $(if $(filter hierarchy-doorkey,$(EXPERIMENT)),hierarchy=false)
# uv installs without compiling: what is imported is compiled once, and not at each start, whatever the user has set.
export PYTHONDONTWRITEBYTECODE :=
# Tests at a time: some of them wait, so one more than cores.
JOBS ?= 3

.PHONY: train thinker test test-slow lint types check wheel-check wheels extras notebooks figures architecture algorithms docs bench clean

# What `train` and `thinker` do: train, film an episode, say where everything is.
train: $(VENV)/.light
	@BIN=$(BIN) BESIDE=$(BESIDE) bash docs/first_run.sh $(EXPERIMENT) $(ARGS)

# The whole experiment has 100,000 steps: make thinker ARGS=
thinker: EXPERIMENT := thinker-sokoban-mini
thinker: ARGS := total_steps=50000
thinker: train

# All tests run once, on the installed wheel; lint and types beside its build and the first of them.
test: $(VENV)/.installed
	@BIN=$(BIN) JOBS=$(JOBS) bash tests/all.sh

# Learning over seeds, and everything that has an example drawn for it, with many more of them.
test-slow: $(VENV)/.installed
	@HYPOTHESIS_PROFILE=many $(BIN)/python -m pytest -q -m "slow or hypothesis"

lint: $(VENV)/.installed
	@$(BIN)/ruff check .

types: $(VENV)/.installed
	@$(BIN)/mypy

check: lint types
	@$(BIN)/python -m pytest -q -x tests/test_layers.py tests/test_transport.py tests/run/test_robot.py

# The sdist, the wheel made from it, installed in a venv of its own, and the tests from an empty folder: what a user gets.
wheel-check: $(VENV)/.installed
	@BIN=$(BIN) JOBS=$(JOBS) bash tests/all.sh wheel

# What is released. All of it twice, whose bytes have to be the same: make wheels ARGS=--twice
wheels: $(VENV)/.light
	@$(BIN)/python tests/release.py $(ARGS)

# The wheel in a clean venv with each extra alone, which is then used; some of them: make extras ARGS="plot ray"
extras: $(VENV)/.light
	@$(BIN)/python tests/extras.py $(ARGS)

# The notebooks of docs/notebooks/, run from their first cell on; their output is kept in them.
notebooks: $(VENV)/.installed
	@$(BIN)/python tests/notebooks.py $(ARGS)

# The picture of the rooms, after an import between rooms has come or gone.
architecture: $(VENV)/.installed
	@$(BIN)/python tests/architecture.py

# docs/algorithms.md and the table of docs/start/which-algorithm.md, after an algorithm, an experiment or a mark has changed.
algorithms: $(VENV)/.installed
	@$(BIN)/python tests/algorithm_page.py

# The site, in build/site/html: the pages of docs/, one per algorithm, the reference. A warning is an error, and so is a link to nothing.
# Pictures of it, from a phone's width to a screen's, need Debian's chromium: .venv/bin/python tests/site_pictures.py
docs: $(VENV)/.installed
	$(call install,'parl_like[docs]')
	@$(BIN)/python tests/site_pages.py

# Every figure of the documents, measured on this machine: quiet, please. A quick look: make figures ARGS=--quick
figures: $(VENV)/.installed
	@$(BIN)/python -m benchmarks.figures $(ARGS)

bench: $(VENV)/.installed
	@for name in transport ppo-cartpole dqn-cartpole replay returns memory; do $(BIN)/parl-like bench $$name; done

# Two stages: what `train` and `thinker` need, and on top of it all extras and the tools of `test`. Again whenever a build file or a compiled
# source changes; a second call with nothing new returns at once. uv installs in a tenth of pip's time; it is told where pip looks, and pip
# does what uv cannot.
OPTIONS := --quiet -c constraints.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(OPTIONS)
pip-setting = $$($(BIN)/python -m pip config list | sed -n "s/^[^=]*\.$(1)='\(.*\)'/\1/p" | tail -1)
UV := UV_FIND_LINKS="$(call pip-setting,find-links)" UV_DEFAULT_INDEX="$(call pip-setting,index-url)" $(BIN)/uv pip install $(OPTIONS) -p $(BIN)/python
install = @$(UV) $(1) || $(PIP) $(1)

$(VENV)/.light: setup.py pyproject.toml constraints.txt $(shell find parl_like algorithms models envs robots -name '*.pyx' -o -name '*.cpp' -o -name '*.h')
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (torch first, in its CPU build)"
	@test -x $(BIN)/uv || $(PIP) uv || true
	$(call install,torch==2.13.0 'setuptools>=77' 'cython>=3.1' 'numpy>=2' wheel)
	$(call install,--no-build-isolation -e '.[plot$(comma)grid]')
	@touch $@

$(VENV)/.installed: $(VENV)/.light
	@echo "installing the other extras and the tools of the tests"
	$(call install,'parl_like[dev$(comma)plot$(comma)tb$(comma)grid$(comma)hdf5$(comma)minari$(comma)atari$(comma)pettingzoo$(comma)games$(comma)ray$(comma)sweep$(comma)wandb$(comma)mlflow$(comma)dashboard$(comma)export$(comma)notebooks]')  # itself it is there: no second build
	$(call install,--no-deps minatar)  # what it draws with is not needed
	@touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# make train: venv, install, the main job on a real environment, where the results are.
# make test:  venv, install, lint, types, the wheel, all tests (marked `slow`: make test-slow).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The whole experiment has 100,000 steps: make train ARGS=
EXPERIMENT ?= thinker-sokoban-mini
ARGS ?= $(if $(filter thinker-sokoban-mini,$(EXPERIMENT)),total_steps=50000)

.PHONY: train test test-slow lint types check wheel-check bench clean

train: $(VENV)/.installed
	@$(BIN)/parl-like train $(EXPERIMENT) $(ARGS)

# All tests run once: on the installed wheel, and here those that need the checkout itself.
test: lint types wheel-check
	@$(BIN)/python -m pytest -q -m "checkout and not slow"

test-slow: $(VENV)/.installed
	@$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.installed
	@$(BIN)/ruff check .

types: $(VENV)/.installed
	@$(BIN)/mypy

check: lint types
	@$(BIN)/python -m pytest -q -x tests/test_layers.py tests/test_transport.py tests/test_robot.py

# The sdist, the wheel made from it, installed in a venv of its own, and the tests from an empty folder: what a user gets.
wheel-check: $(VENV)/.installed
	@PYTHON=$(PYTHON) BIN=$(BIN) bash tests/wheel_check.sh

bench: $(VENV)/.installed
	@for name in transport ppo-cartpole dqn-cartpole replay returns memory; do $(BIN)/parl-like bench $$name; done

# Again whenever a build file or a compiled source changes; a second call with nothing new returns at once.
$(VENV)/.installed: setup.py pyproject.toml constraints.txt $(shell find parl_like algorithms models envs robots -name '*.pyx' -o -name '*.cpp' -o -name '*.h')
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (torch first, in its CPU build)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 'setuptools>=77' 'cython>=3.1' wheel
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,plot,tb,grid,hdf5,minari,atari,pettingzoo,ray]'
	@touch $@

clean:
	rm -rf build dist *.egg-info .wheel-venv .pytest_cache .mypy_cache .ruff_cache

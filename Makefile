# What a newcomer needs: `make demo` and `make test`. Both set up .venv first; both can be run again.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := requirements/cpu.txt requirements/demo.txt requirements/diffusion.txt requirements/serve.txt requirements/dev.txt
STAMP := $(VENV)/.setup-done
OMNI_VENV := .venv-omni
OMNI_BIN := $(OMNI_VENV)/bin
OMNI_STAMP := $(OMNI_VENV)/.setup-done

# pip would compile on one core. What cannot be compiled is no module: some packages hold templates that end in .py.
compiled = $(1)/python -m compileall -qq -j 0 $(2)/lib || true

.DEFAULT_GOAL := help
.PHONY: help setup setup-omni browser demo test test-fast test-omni fuzz chaos chaos-real chaos-omni lint bench bench-omni mutation train clean prove mutants vllm-tests

help:
	@echo "make demo       set up everything and ask the tiny-omni pipeline a question (text, speech and a picture)"
	@echo "make test       set up everything and run all tests, real engines included"
	@echo "make test-fast  the tests that start no vLLM engine"
	@echo "make test-omni  set up a second environment with vLLM-Omni and test its models on our runtime (ONLY=\"qwen2_5 or tts\")"
	@echo "make browser    install a chromium for the tests of the web page, where that can be done"
	@echo "make fuzz       requests from the server's own OpenAPI, on fakes and on tiny-omni (N=300 for each operation)"
	@echo "make chaos      200 random schedules of kills, aborts, shutdowns on fake engine processes (N=1000, SEED=0)"
	@echo "make chaos-real 10 of them on real vLLM engines (N, SEED), and the whole failure matrix"
	@echo "make chaos-omni 1000 aborts at random points on vLLM-Omni's stages (N, SEED), and the whole failure matrix on them"
	@echo "make lint       ruff, mypy --strict and the layer contracts"
	@echo "make bench      every benchmark, as tables"
	@echo "make bench-omni against vLLM-Omni, in its environment (40 minutes; ONLY=chain1,q25)"
	@echo "make prove      10,000 simulated scenarios, every invariant checked (EXAMPLES=, SEED=)"
	@echo "make mutants    a seeded bug per invariant, each found by its own checker on three seeds"
	@echo "make mutation   mutation testing of the sans-I/O core: scores and survivors (20 minutes)"
	@echo "make vllm-tests SRC=…  vLLM's own tests of its server and of AsyncLLM, on ours and on its own (docs/vllm_tests.md)"
	@echo "make train      train the tiny-omni models again"

setup: $(STAMP)

$(STAMP): $(REQUIREMENTS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "omni_actors needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@echo "== setup 1/4: a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== setup 2/4: about 200 pinned packages (CPU build of vLLM and torch, 2.5 GB; a minute or two)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps $(PIP_ARGS) $(addprefix -r ,$(REQUIREMENTS))
	@$(call compiled,$(BIN),$(VENV))
	@echo "== setup 3/4: omni_actors itself, editable"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "== setup 4/4: can everything be imported?"
	@$(BIN)/python -c 'import trio, zmq, msgspec, torch, transformers, vllm, diffusers, hibari, onnxruntime, pocketsphinx, soxr, omni_actors; print("   vllm", vllm.__version__, "torch", torch.__version__, "trio", trio.__version__)' 2> $(VENV)/import.log || { cat $(VENV)/import.log; exit 1; }
	@touch $@

# vLLM-Omni wants another vLLM and another transformers than ours: an environment of its own.
setup-omni: $(OMNI_STAMP)

$(OMNI_STAMP): requirements/omni.txt tools/omni_venv.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "omni_actors needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@echo "== setup-omni 1/5: a virtual environment in $(OMNI_VENV)"
	@test -x $(OMNI_BIN)/python || $(PYTHON) -m venv $(OMNI_VENV)
	@echo "== setup-omni 2/5: about 200 pinned packages (vLLM-Omni, CPU build of vLLM and torch, 3 GB; a few minutes)"
	@$(OMNI_BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps $(PIP_ARGS) -r requirements/omni.txt
	@$(call compiled,$(OMNI_BIN),$(OMNI_VENV))
	@echo "== setup-omni 3/5: torchvision and torchaudio without their CUDA parts"
	@$(OMNI_BIN)/python tools/omni_venv.py
	@echo "== setup-omni 4/5: omni_actors itself, editable"
	@$(OMNI_BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "== setup-omni 5/5: is ours the platform that vLLM-Omni finds?"
	@VLLM_LOGGING_LEVEL=ERROR $(OMNI_BIN)/python -c 'import torchvision, vllm_omni, omni_actors; from vllm_omni.platforms import current_omni_platform as platform; print("   vllm-omni", vllm_omni.__version__, "on", type(platform).__name__); assert type(platform).__name__ == "CPUOmniPlatform"' 2> $(OMNI_VENV)/import.log || { cat $(OMNI_VENV)/import.log; exit 1; }
	@touch $@

# For the tests of the web page, which are skipped without one (and fail where OMNI_ACTORS_BROWSER=required).
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit 0; done; \
	test -z "$$OMNI_ACTORS_CHROMIUM" || exit 0; \
	if [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
		echo "== Debian's chromium, for the tests of the web page (about 400 MB)"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1 \
		|| echo "== it could not be installed: those tests are skipped"; \
	else \
		echo "== no chromium here, the tests of the web page are skipped: apt-get install chromium, or OMNI_ACTORS_CHROMIUM=its path"; \
	fi

demo: setup
	@$(BIN)/omni-actors demo

test: setup browser
	$(BIN)/python -m pytest

test-fast: setup browser
	$(BIN)/python -m pytest -m "not engine"

test-omni: setup-omni
	$(OMNI_BIN)/python -m pytest -o faulthandler_timeout=900 tests/omni $(if $(ONLY),-k "$(ONLY)")

fuzz: setup
	OMNI_ACTORS_FUZZ_EXAMPLES=$(or $(N),300) $(BIN)/python -m pytest tests/serve -k "openapi_get_no_5xx"

chaos: setup
	$(BIN)/python -m omni_actors.testing.chaos --count $(or $(N),200) --seed $(or $(SEED),0)

chaos-real: setup
	$(BIN)/python -m omni_actors.testing.chaos --real --verbose --count $(or $(N),10) --seed $(or $(SEED),0)
	OMNI_ACTORS_WHOLE_MATRIX=1 $(BIN)/python -m pytest tests/engines/test_real_matrix.py

chaos-omni: setup-omni
	OMNI_ACTORS_ABORTS=$(or $(N),1000) OMNI_ACTORS_SEED=$(or $(SEED),0) OMNI_ACTORS_WHOLE_MATRIX=1 $(OMNI_BIN)/python -m pytest -s -o faulthandler_timeout=7200 tests/omni/test_many_aborts.py tests/omni/test_faults.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in engine asyncio serve chain idle abort startup shutdown demo inflight abort-soak; do $(BIN)/omni-actors bench $$name || exit $$?; done

bench-omni: setup-omni
	$(OMNI_BIN)/omni-actors bench peer $(if $(ONLY),--only $(ONLY))

mutation: setup
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/mutation.txt
	$(BIN)/python -m tools.mutation

prove: setup
	@$(BIN)/omni-actors prove --examples $(or $(EXAMPLES),10000) $(if $(SEED),--seed $(SEED))

mutants: setup
	@$(BIN)/python tools/mutants/run.py

vllm-tests: setup
	@$(BIN)/python -m tools.vllm_tests $(SRC) $(if $(ONLY),--only $(ONLY))

train: setup
	$(BIN)/python training/train_tiny_omni.py
	$(BIN)/python training/train_painter.py

clean:
	rm -rf $(VENV) $(OMNI_VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

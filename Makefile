# `make demo` and `make test` work as the first command on a fresh clone; everything they need is installed into .venv once.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What the demo needs, without the developers' tools.
RUNS := $(VENV)/.runs
# One intra-op thread: ranks share this machine's cores.
export OMP_NUM_THREADS ?= 1
# The caller's own modules do not reach the tests: what passes here passes in CI.
unexport PYTHONPATH

# The test cluster's tool (tests/cluster).
CLUSTER = PYTHONPATH=tests $(BIN)/python -m cluster

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-frameworks test-oldest test-gpu ray-examples zoo matrix sim mutate model lint format crds chart docs site picture bench bench-kills bench-goodput bench-notice bench-spot bench-k8s bench-k8s-peers bench-scale bench-checkpoint bench-frameworks cluster kubeconfig cluster-down images push e2e clean

help: ## What there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv (once)

# The wider installation has the smaller one's parts.
$(STAMP): EXTRAS := dev
$(STAMP): STAMPS := $(RUNS) $(STAMP)
$(RUNS): EXTRAS := torch,sklearn
$(RUNS): STAMPS := $(RUNS)
$(STAMP) $(RUNS): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "TrainJob needs Python 3.11 or newer, and none was found. Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setup: installing into $(VENV) with $$($(PYTHON) --version) (torch is large: a few minutes the first time, nothing later)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $(STAMPS)

demo: $(RUNS) ## Train digits on two local workers, kill one, watch it come back
	@$(BIN)/python examples/digits/demo.py

test: $(STAMP) ## All tests, with their skips counted
	@$(CLUSTER) binaries || echo "test: tests that need them fail or skip with the reason"
	@echo "test: unit, property, simulation and real-process tests"
	@$(BIN)/python -m pytest -n auto --dist loadgroup $(PYTEST_ARGS)

test-frameworks: $(STAMP) ## Lightning, Transformers, trl, JAX, Orbax, TensorFlow, XGBoost, LightGBM, MPI, DeepSpeed and experiment trackers, in folders of their own
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements.txt) $(BIN)/python -m pytest -n auto --dist loadgroup tests/frameworks $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements.txt):$$($(BIN)/python tests/frameworks/environment.py requirements-orbax.txt) $(BIN)/python -m pytest tests/frameworks/test_orbax.py tests/frameworks/test_import_cost.py tests/frameworks/test_save_kills.py tests/frameworks/test_quickstarts.py -k "orbax" $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-tensorflow.txt) $(BIN)/python -m pytest tests/frameworks -k "tensorflow or keras" $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-mpi.txt) $(BIN)/python -m pytest tests/frameworks/test_mpi.py $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-deepspeed.txt) $(BIN)/python -m pytest tests/frameworks/test_deepspeed.py tests/frameworks/test_import_cost.py tests/frameworks/test_save_kills.py "tests/frameworks/test_quickstarts.py::test_both_run[deepspeed]" $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-trl.txt)/site-packages $(BIN)/python -m pytest tests/frameworks/test_trl.py $(PYTEST_ARGS)
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-trackers.txt) $(BIN)/python -m pytest tests/frameworks/test_trackers.py $(PYTEST_ARGS)

test-oldest: $(STAMP) ## The oldest torch and packages that are promised, in a folder of their own: forks, process groups, sharded states, the operator, the CLI
	@PYTHONPATH=$$($(BIN)/python tests/frameworks/environment.py requirements-oldest.txt) $(BIN)/python -m pytest -n auto --dist loadgroup tests/api tests/cli tests/host tests/trust tests/torchside tests/gpu tests/session/test_warm.py tests/session/test_gloo_threads.py tests/session/test_flight_recorder.py tests/scenarios/test_trainer.py tests/scenarios/test_bit_exact.py tests/scenarios/test_hangs.py tests/examples/test_torchrun.py $(PYTEST_ARGS)

test-gpu: $(STAMP) ## What needs an NVIDIA GPU, on all that there are; skipped with its reason where there is none
	@$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

ray-examples: $(STAMP) ## 66 scripts that use Ray Train's API, with their imports rewritten by `tj migrate`: a quarter of an hour
	@TRAINJOB_TEST_EVERY_RAY_EXAMPLE=1 $(BIN)/python -m pytest -n auto tests/launch/test_ray_examples.py $(PYTEST_ARGS)

zoo: $(STAMP) ## Training loops as people write them, struck with everything there is, and a hundred random kills (`make test` strikes each once)
	@ZOO=all $(BIN)/python -m pytest -n auto --dist loadgroup tests/zoo tests/scenarios/test_random_kills.py $(PYTEST_ARGS)

matrix: $(STAMP) ## Each fault at each moment, with forks of a warm parent and without, and DDP's losses bit for bit at 2, 3 and 4 ranks (`make test` takes a part)
	@MATRIX=all $(BIN)/python -m pytest -n auto --dist loadgroup tests/matrix tests/scenarios/test_bit_exact.py $(PYTEST_ARGS)

sim: $(STAMP) ## Jobs under random faults in virtual time: make sim SEEDS=100000
	@PYTHONPATH=tests:operator:worker-image $(BIN)/python -m support.random_runs --seeds $(or $(SEEDS),2000) $(SIM_ARGS)

mutate: $(STAMP) ## Plant each mistake of the table, and see that its test catches it: make mutate, make mutate WORD=join
	@PYTHONPATH=tests:operator:worker-image $(BIN)/python -m support.mutation.run $(WORD)

model: $(STAMP) ## All orders of events in jobs of two workers, up to DEPTH steps: make model DEPTH=20 MODEL_ARGS="--faults 2 --deviations 1"
	@PYTHONPATH=tests:operator:worker-image $(BIN)/python -m support.model.search --depth $(or $(DEPTH),20) $(MODEL_ARGS)

lint: $(STAMP) ## ruff, mypy --strict, layers
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy -p trainjob_api -p trainjob_operator -p trainjob
	@$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

crds: $(STAMP) ## Generate the CRD
	@$(BIN)/python -m trainjob_api.crd > crds/trainjob.dev_trainjobs.yaml
	@$(BIN)/python crds/pod_fields.py > operator/trainjob_api/pod_fields.json.new && mv operator/trainjob_api/pod_fields.json.new operator/trainjob_api/pod_fields.json
	@$(BIN)/python helm/generate.py

chart: crds ## Generate what the chart and its page repeat

docs: $(STAMP) crds ## Generate the reference pages
	@$(BIN)/python -m trainjob_api.reference
	@$(BIN)/python -m trainjob.cli.reference
	@$(BIN)/python -m trainjob_operator.reference
	@$(BIN)/python docs/python_page.py
	@$(BIN)/python docs/ray_table.py

SITE_VENV := build/site-venv

site: ## The pages as a web site, in build/site; a warning is an error
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make site PYTHON=/path/to/python3.11"; exit 1; }
	@cmp -s docs/requirements.txt $(SITE_VENV)/installed || { rm -rf $(SITE_VENV) && $(PYTHON) -m venv $(SITE_VENV) && \
	  $(SITE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt && cp docs/requirements.txt $(SITE_VENV)/installed; }
	@$(SITE_VENV)/bin/python docs/site.py && echo "site: build/site/index.html"

picture: $(STAMP) ## Draw docs/demo.svg from a run of `make demo`
	@$(BIN)/python docs/demo_picture.py

bench: $(STAMP) ## Measure, one line a figure
	@PYTHONPATH=tests $(BIN)/python -m benchmarks

bench-kills: $(STAMP) ## Kills in a row of a job whose ranks are forks, and what grows with them; BENCH_ARGS="--kills 1000" for more
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.kills $(BENCH_ARGS)

bench-goodput: $(STAMP) ## How much of its time a job trains while a rank is killed each 30 s, beside torchrun: 20 min; BENCH_ARGS="--minutes 2" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.goodput $(BENCH_ARGS)

bench-notice: $(STAMP) ## What a notice of 30 s costs a job with 2 GiB of state on S3; BENCH_ARGS="--mib 64 --rounds 1" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.notice $(BENCH_ARGS)

bench-spot: $(STAMP) ## What machines that come and go yield, elastic and at one size: virtual time, BENCH_ARGS="--minutes 5 --seeds 1 --static 16" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.spot $(BENCH_ARGS)

bench-k8s: $(STAMP) ## The same on the cluster that KUBECONFIG names, with the operator installed
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.kubernetes

bench-k8s-peers: $(STAMP) ## Put Kubeflow Trainer on the cluster of `make cluster`, to be measured beside by `make bench-k8s`
	@$(CLUSTER) peers

bench-scale: $(STAMP) ## The operator with 1,000 jobs and one of 5,000 workers, against their goals; BENCH_ARGS="--jobs 50 --large 200" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.scale $(BENCH_ARGS)

bench-frameworks: $(STAMP) ## Lightning and Hugging Face beside a bare loop, and beside themselves alone: half an hour; BENCH_ARGS="--rounds 1" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.frameworks --libraries $$($(BIN)/python tests/frameworks/environment.py requirements.txt) $(BENCH_ARGS)

bench-checkpoint: $(STAMP) ## What saving and restoring cost; BENCH_ARGS="--rounds 1 --scale 0.1" for a quick look
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.checkpoint $(BENCH_ARGS)

cluster: $(STAMP) ## A real Kubernetes on this machine (kind), with the images loaded
	@$(CLUSTER) up

kubeconfig: $(STAMP) ## Where the kubeconfig of `make cluster` lies: export KUBECONFIG=$$(make -s kubeconfig)
	@$(CLUSTER) kubeconfig

cluster-down: $(STAMP) ## Remove it with every trace; what was built stays in the cache
	@$(CLUSTER) down

images: $(STAMP) ## Build the images
	@$(CLUSTER) images

push: $(STAMP) ## Build and push the images: make push REGISTRY=registry.example.org/team TAG=0.1.0
	@$(CLUSTER) push --registry "$(REGISTRY)" --tag "$(TAG)"

e2e: $(STAMP) ## End-to-end tests on the cluster that KUBECONFIG names, else on one of our own
	@$(CLUSTER) test $(PYTEST_ARGS)

clean: ## Remove what was installed and generated
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

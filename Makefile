# make demo    a car that drives MetaDrive's roads: evaluate it, train it on with and without a signal, report
# make check   linter, type checker and the fast tests: two minutes
# make test    linter, type checker and every test but the soaks: a quarter of an hour on two cores
# make soak    what takes long by nature: chaos on a cluster, every shipped study, every learner on every seed
# make docs    the documentation site, in site/, and the tutorial as a notebook
# make embedded   make the embedded scorer anew, from training agents to its card; takes hours without a GPU
# make drivers    train the shipped drivers, choose and evaluate them, write their cards
# Each sets up what it needs first (make install).

VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo

.PHONY: install demo docs embedded drivers check test soak lint types suite fast clean

PYTEST := $(BIN)/python -m pytest --dist worksteal
# What `make check` runs: tests that mostly compute. Those in these folders that do not are marked slow.
FAST := $(addprefix tests/,analysis cli comparison config io learners paper report runs envs/small envs/test_api.py \
	envs/test_gym.py signals/test_*.py studies/cost studies/test_*.py test_*.py)

# Property tests, which `make soak` runs with ten times the examples.
PROPERTIES := $(addprefix tests/,analysis config learners runs envs/test_hazard.py signals/test_*.py \
	signals/scorers/test_tokenizer.py)

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt tools/install.sh
	tools/install.sh $(VENV)
	touch $@

# A demo that was interrupted is continued; one that is finished is shown again.
demo: install
	@$(BIN)/vlmsafe evaluate driver:metadrive-easy --episodes 20
	@$(BIN)/vlmsafe study run demo
	@$(BIN)/vlmsafe report $(DEMO)
	@$(BIN)/vlmsafe scope $(DEMO)/metadrive-easy-ends+mended/vlm-ppo-lag-conf/seed-1

docs: install examples/tutorial.ipynb
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

examples/tutorial.ipynb: docs/start/tutorial.md
	$(BIN)/jupytext --quiet --to ipynb --output $@ $<

embedded: install
	$(BIN)/vlmsafe embedded build --dir .embedded
	install -m 644 $(addprefix .embedded/,weights.safetensors card.md data.json figures.json) \
		src/vlmsafe/signals/scorers/embedded/

# What .drivers/ holds already is left, so an interrupted training goes on where it stopped.
drivers: install
	$(BIN)/python tools/make_drivers.py

# The type checker runs beside the tests, which leave it time while they wait.
check: install lint
	@$(MAKE) --no-print-directory -j2 types fast

test: install lint
	@tools/browser.sh
	@$(MAKE) --no-print-directory -j2 types suite

soak: install
	VLMSAFE_TEST_PROFILE=soak $(PYTEST) -n auto -m soak
	VLMSAFE_TEST_PROFILE=soak $(PYTEST) -n auto -m "not soak" $(PROPERTIES)

fast:
	$(PYTEST) -n $$(nproc) -m "not slow and not soak" $(FAST)

suite:
	$(PYTEST) -n auto

types:
	$(BIN)/mypy

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) site .benchmarks build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

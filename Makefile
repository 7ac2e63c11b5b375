# make demo   train on MetaDrive, evaluate on held-out scenarios, print the result
# make test   the whole test suite, with linter and type checker
# make embedded   make the embedded scorer anew, from training agents to its card; takes hours without a GPU
# All set up everything they need first (make install).

VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo

.PHONY: demo test embedded install lint clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt tools/install.sh
	tools/install.sh $(VENV)
	touch $@

# A demo that was interrupted is continued; one that is finished is shown again.
demo: install
	@$(BIN)/vlmsafe study run demo
	@$(BIN)/vlmsafe report $(DEMO)
	@$(BIN)/vlmsafe scope $(DEMO)/metadrive-easy/vlm-ppo-lag-conf/seed-42

embedded: install
	$(BIN)/vlmsafe embedded build --dir .embedded
	install -m 644 $(addprefix .embedded/,weights.safetensors card.md data.json figures.json) \
		src/vlmsafe/signals/scorers/embedded/

test: install lint
	@tools/browser.sh
	$(BIN)/python -m pytest -n auto

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .benchmarks build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

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
	@if [ -f $(DEMO)/config.yaml ]; then \
		$(BIN)/vlmsafe train --resume $(DEMO); \
	else \
		$(BIN)/vlmsafe train --env metadrive-easy --method vlm-ppo-lag-conf --signal.every 4 --seed 42 \
			--num-envs 2 --total-steps 80000 --steps-per-epoch 4000 --run-dir $(DEMO); \
	fi
	@$(BIN)/vlmsafe evaluate $(DEMO) --protocol held-out --episodes 20
	@echo "The run is in $(DEMO): epochs.jsonl, episodes.jsonl, checkpoints/, evaluations/."

embedded: install
	$(BIN)/vlmsafe embedded build --dir .embedded
	install -m 644 $(addprefix .embedded/,weights.safetensors card.md data.json figures.json) \
		src/vlmsafe/signals/scorers/embedded/

test: install lint
	$(BIN)/python -m pytest -n auto

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .benchmarks build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

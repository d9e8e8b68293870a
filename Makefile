# Everything a newcomer needs: `make demo` and `make test` set up what they use by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo run test test-quick soak lint bench clean

help:
	@echo "make demo        start a broker, produce and consume with a public client, show figures, stop"
	@echo "make run         a broker in the foreground on 127.0.0.1:9092"
	@echo "make test        all tests (sets up Java and Apache Kafka's jars where it may)"
	@echo "make test-quick  the tests that need no Java, in under two minutes"
	@echo "make soak        the long form of the kill and fuzz tests"
	@echo "make lint        ruff, mypy, import-linter"
	@echo "make bench       the same load on Ottla and on Apache Kafka, side by side"

$(READY): pyproject.toml setup.py src/ottla/records/_kernel.pyx scripts/prepare
	@scripts/prepare python $(PYTHON) $(VENV)
	@touch $(READY)

demo: $(READY)
	@$(BIN)/python scripts/demo.py

run: $(READY)
	@$(BIN)/ottla server

test: $(READY)
	@scripts/prepare java
	@$(BIN)/python -m pytest

test-quick: $(READY)
	@$(BIN)/python -m pytest -m "not java and not slow"

soak: $(READY)
	@scripts/prepare java
	@OTTLA_SOAK=1 $(BIN)/python -m pytest -m soak -s

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)
	@scripts/prepare java
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build .cache .mypy_cache .ruff_cache .pytest_cache src/*.egg-info

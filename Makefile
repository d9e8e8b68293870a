# Everything a newcomer needs: `make demo` and `make test` set up what they use by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The modules that run compiled (src/ottla/compiled.py). Where a source is newer than its binary the plain source runs, so only
# what tests or measures the shipped form has to wait for the compiler.
NATIVE := $(VENV)/.native
COMPILED := $(shell sed -n 's|^    "\(ottla\.[a-z_.]*\)",$$|\1|p' src/ottla/compiled.py | tr . / | sed 's|.*|src/&.py|')

.PHONY: help demo run native test test-quick soak sim lint bench clean

help:
	@echo "make demo        a minute (the first time three): a broker, a public client with figures, a pipeline on Spark with a chart"
	@echo "make run         a broker in the foreground on 127.0.0.1:9092, and a console at http://127.0.0.1:8080"
	@echo "make native      compile again what is compiled, after a change (test, soak and bench do so by themselves)"
	@echo "make test        all tests, JOBS=2 at a time (sets up Java and Apache Kafka's jars where it may)"
	@echo "make test-quick  the tests that need no Java, in under two minutes"
	@echo "make soak        the long form of the kill and fuzz tests"
	@echo "make sim         simulated clusters with faults: SEEDS=1000 [FROM=n], or SEED=n [TRACE=1] for one"
	@echo "make lint        ruff, mypy, import-linter"
	@echo "make bench       the same load on Ottla and on Apache Kafka, side by side"

$(READY): pyproject.toml setup.py $(wildcard src/ottla/*/*.pyx src/ottla/*/*.pxd) scripts/prepare
	@scripts/prepare python $(PYTHON) $(VENV)
	@touch $(READY) $(NATIVE)

# A new $(READY) has just compiled all of it.
$(NATIVE): $(READY) $(COMPILED) src/ottla/compiled.py
	@[ -e $@ ] && [ -z "$$(find $(COMPILED) src/ottla/compiled.py -newer $@)" ] || scripts/prepare native $(VENV)
	@touch $@

native: $(NATIVE)

demo: $(READY)
	@$(BIN)/python scripts/demo.py

run: $(READY)
	@$(BIN)/ottla server --console

# Two at a time: half of what the tests do is to wait. Files stay whole, and in their order: the short ones come last.
JOBS ?= 2
test: $(NATIVE)
	@scripts/prepare java
	@scripts/prepare browser
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 25

test-quick: $(READY)
	@$(BIN)/python -m pytest -m "not java and not slow"

soak: $(NATIVE)
	@scripts/prepare java
	@scripts/prepare browser
	@OTTLA_SOAK=1 $(BIN)/python -m pytest -m soak -s

SEEDS ?= 200
sim: $(NATIVE)
	@$(BIN)/python -m ottla.testing.sim $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace),--seeds $(SEEDS) $(if $(FROM),--from $(FROM)))

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(NATIVE)
	@scripts/prepare java
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build .cache .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src -name '*.so' -delete

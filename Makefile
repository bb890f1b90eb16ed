# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs, in the same environment.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEMO := $(VENV)/.ready-demo
READY_FLOWER := $(VENV)/.ready-flower
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock

.PHONY: demo docs paper test test-fast test-slow test-federation coverage mutants lint check bench bench-peers clean

demo: $(READY_DEMO)
	$(BIN)/upcycled demo

# The paper's tables: Table 1 in small on the synthetic sets, in a minute, unless PAPER asks for something else. The data
# must be in the folder that UPCYCLED_DATA names (docs/data.md).
PAPER ?= table1 --quick --only syn
paper: $(READY)
	$(BIN)/python -m studies.paper $(PAPER)

# A process per core, up to four: each holds torch. Neighbours stay together, for the sake of what they share, until a
# process has nothing left to do.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL)

# The tests of what a change breaks first, in less than a minute: numbers, contracts, config files, data, epsilon, ledger, accounts.
FAST := $(addprefix tests/,api algorithms coefficients config contracts core data golden metrics models serving theory \
	aggregators/test_aggregators.py privacy/test_account*.py privacy/test_ledger*.py test_layers.py test_public_docs.py)
test-fast: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) $(FAST)

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not federation" $(PARALLEL)

# Real federations on this machine: Flower's server and a process a site, at loopback. FEDERATION chooses less. They wait
# most of the time, so that two files have room beside each other; within a file tests share a federation.
FEDERATION ?= federation
test-federation: $(READY_FLOWER)
	$(BIN)/python -m pytest -m "$(FEDERATION)" -n 2 --dist loadfile tests/federation tests/test_notebooks.py

# Lines and branches of the rooms that promise something, by all their tests, slow ones too; and which test reaches what.
coverage: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) -m "not federation" --cov --cov-context=test \
		--cov-report=term-missing:skip-covered -W "ignore::coverage.exceptions.CoverageWarning"

# 300 seeded mutants of strategy, round, accounting and ledger, each against the tests that reach it; goes on where it
# stopped. Survivors are tried again against everything with MUTANTS=--again. Before them the faults of planted.py.
mutants: $(READY)
	$(BIN)/python -m tests.mutation.planted
	test -e .coverage || $(MAKE) coverage
	$(BIN)/python -m tests.mutation mutants.jsonl --contexts .coverage $(MUTANTS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint test test-slow

# Flower, pfl-research and Opacus, each in an environment of its own under benchmarks/peers/.venvs (about 2 GB).
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers.compare
	$(BIN)/python -m benchmarks.dpsgd

# torch is asked for by its exact version first: a looser request would bring a CUDA build.
$(READY_DEMO): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' requirements.lock)"
	$(INSTALL) -e '.[report]'
	touch $@

# The developers' tools on top of what a demo needs.
$(READY): $(READY_DEMO)
	$(INSTALL) -e '.[dev]'
	touch $@

# Flower on top of that; it holds a few packages to versions of its own, which the lock has.
$(READY_FLOWER): $(READY)
	$(INSTALL) -e '.[dev,flower]'
	touch $@

# The documentation as a site in site/, which opens from disk (site/index.html); a link that leads nowhere is an error.
READY_DOCS := $(VENV)/.ready-docs
docs: $(READY_DOCS)
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --quiet

$(READY_DOCS): $(READY_DEMO)
	$(INSTALL) -e '.[docs]'
	touch $@

# Measures everything in docs/performance.md except the peers; takes some twenty minutes on an idle machine.
bench: $(READY)
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.batch
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.compare
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.auto
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.lstm
	$(BIN)/python -m benchmarks.moreau
	$(BIN)/python -m benchmarks.rules
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.certified
	$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

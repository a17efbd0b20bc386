VENV ?= .venv
PYTHON ?= python3
JAX ?=# what pip is to install if not the newest: make test JAX="jax==0.10.2 jaxlib==0.10.2"
SHARD ?= 0/1# which share of the test files `make test-all` takes: 0/4, 1/4, 2/4 or 3/4
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test test-all lint format docs smoke full accuracy bench bench-store clean

demo: $(READY)  ## learn theta on the paper's sinusoid, then run every experiment of the paper and write a report
	$(BIN)/python -m epf_jax.apps.demo
	$(BIN)/epf reproduce

test: lint  ## what CI runs: linter, types, and the quick tests on two workers
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: lint $(VENV)/.notebooks  ## the quick tests and the slow ones
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow or not slow" \
	  $$(find tests benchmarks/tests -name 'test_*.py' | sort | awk -v s=$(SHARD) '{ split(s, a, "/") } NR % a[2] == a[1]')

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## the site, in docs/_build; warnings and broken links are errors
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_gallery.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

smoke: $(VENV)/.release  ## wheel and sdist, checked, and each installed where nothing else is: they run the README's code
	rm -rf dist
	$(BIN)/python -m build -q
	$(BIN)/twine check --strict dist/*
	for package in dist/*; do \
	  rm -rf $(VENV)/smoke && $(PYTHON) -m venv $(VENV)/smoke && $(VENV)/smoke/bin/pip install -q $$package \
	  && $(VENV)/smoke/bin/python tests/smoke.py || exit 1; \
	done

full: $(READY)  ## the paper on twenty data sets per model; its claims and tables go to benchmarks/results
	$(BIN)/epf reproduce --full
	cp results/full/claims.json benchmarks/results/reproduce_full.json
	$(BIN)/python -m benchmarks.tables

accuracy: $(READY)  ## the accuracy tables of single filters in benchmarks/results, 20 data sets each
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.tables

bench: $(VENV)/.peers  ## the speed suite, quickly: tables, curves, and whether the ratios are still those stored
	$(BIN)/python -m benchmarks.speed

bench-store: $(VENV)/.peers  ## the speed tables and curves of benchmarks/results
	$(BIN)/python -m benchmarks.speed --store
	$(BIN)/python -m benchmarks.tables

$(VENV)/.peers: $(READY)  # each on its own: one that will not install is named in the tables
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['peers'], sep='\n')" \
	  | while read -r peer; do $(BIN)/python -m pip install -q --disable-pip-version-check "$$peer" || true; done
	touch $@

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	$(if $(JAX),$(BIN)/python -m pip install -q --disable-pip-version-check $(JAX))
	touch $@

$(VENV)/.%: $(READY)  # an extra
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) dist docs/_build .jax_cache .mypy_cache .ruff_cache *.egg-info

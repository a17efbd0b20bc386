"""Claims about sweeps: one tidy table, kept through interruptions and failures, the same from one process or two."""

import csv
import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import epf_jax as epf
from epf_jax.running.fingerprints import fingerprint

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = importlib.import_module("epf_jax.running.sweep")  # the name epf_jax.running.sweep is the function
AR1 = epf.models.ar1()
LEVEL = epf.models.local_level()
TRUTH = {"level_noise": 0.5, "observation_noise": 1.0}


def sir(model):
    return epf.bootstrap_filter(model, 32)


def picky(model):
    return sir(model) if model is AR1 else broken(model)


def broken(model):
    raise RuntimeError("the first line\nand the second")


def small(folder, **changes):
    """A sweep of five seeds in three batches of two, the last with a filler."""
    given = {"models": {"ar1": (AR1, {"phi": 0.8})}, "methods": {"sir": sir}, "seeds": range(5)}
    return epf.sweep(**{**given, "num_steps": 10, "folder": folder, "batch": 2, **changes})


@pytest.fixture
def batches(monkeypatch):
    """The runs of compiled programs, noted as they happen; the one whose number is in `interrupt` never ends."""
    log, interrupt, compiled = [], set(), MODULE._compiled

    def noting(filter_, *arguments):
        program = compiled(filter_, *arguments)

        def noted(*arguments):
            log.append(len(arguments[0]))
            if len(log) in interrupt:
                raise KeyboardInterrupt
            return program(*arguments)

        return noted

    monkeypatch.setattr(MODULE, "_compiled", noting)
    return log, interrupt


@pytest.fixture(scope="session")  # of a worker
def swept(tmp_path_factory):
    """Two models; a method for both, one that fails on the second, one that fails."""
    folder = tmp_path_factory.mktemp("swept")
    models = {"ar1": (AR1, {"phi": 0.8}), "level": (LEVEL, TRUTH)}
    with pytest.warns(RuntimeWarning, match="15 of 30 cells failed") as caught:
        table = small(folder, models=models, methods={"sir": sir, "picky": picky, "broken": broken})
    return folder, table, next(str(w.message) for w in caught if w.category is RuntimeWarning)


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_table_has_one_row_for_each_cell_and_parameter(swept):
    folder, table, _ = swept
    cells = [(row["model"], row["method"], row["seed"], row["parameter"]) for row in table]
    names = {"ar1": ["phi"], "level": sorted(TRUTH)}
    methods = ("sir", "picky", "broken")
    assert cells == [(m, n, s, p) for m in names for n in methods for s in range(5) for p in names[m]]
    assert {row["truth"] for row in table} == {0.8, 0.5, 1.0}
    assert {len(row) for row in table} == {len(MODULE.LEVELS) + 24}
    kept = read(folder / "table.csv")
    assert kept == [{name: "" if v is None else str(v) for name, v in row.items()} for row in table]


def test_a_cell_holds_the_numbers_of_a_run_with_the_keys_of_its_seed(swept):
    _, table, _ = swept
    row = next(row for row in table if (row["model"], row["method"], row["seed"]) == ("ar1", "sir", 3))
    key_data, key_filter = (jax.random.fold_in(jax.random.key(3), i) for i in (0, 1))
    y = epf.simulate(key_data, AR1, {"phi": 0.8}, 10)[1]
    results = epf.run(key_filter, sir(AR1), y, levels=tuple(MODULE.LEVELS.values()))
    found = [row[name] for name in ("mean", "sd", *MODULE.LEVELS, "log_evidence", "smallest_ess")]
    theta = results.theta
    expected = [theta.mean["phi"][-1], theta.sd["phi"][-1], *theta.quantiles["phi"][-1], results.log_evidence[-1]]
    # float32 sums of 32 particles over 10 steps, in another order under vmap: a few hundred roundings of 6e-8
    np.testing.assert_allclose(found, [*expected, results.ess.min()], rtol=1e-4, atol=1e-5)
    assert row["num_collapsed"] == row["num_bad_densities"] == 0
    assert 0 < row["seconds"] < 1  # the compilation, seconds long, is not in it
    assert (row["num_particles"], row["num_steps"], row["precision"]) == (32, 10, "float32")


def test_a_failing_method_is_recorded_and_the_others_go_on(swept):
    _, table, message = swept
    for row in table:
        failed = row["method"] == "broken" or (row["method"], row["model"]) == ("picky", "level")
        assert row["status"] == ("failed" if failed else "ok")
        assert (row["log_evidence"] is None) == (row["mean"] is None) == failed
    errors = {row["error"] for row in table if row["method"] == "broken"}
    assert errors == {"RuntimeError: the first line and the second"}
    assert "broken on ar1: RuntimeError: the first line and the second" in message


def test_an_interrupted_sweep_goes_on_with_the_rest(tmp_path, batches):
    log, interrupt = batches
    interrupt.add(2)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path)
    assert not (tmp_path / "table.csv").exists()
    assert len(list(tmp_path.rglob("seeds-*.json"))) == 1
    assert not list(tmp_path.rglob("*.part"))
    interrupt.clear()
    del log[:]
    table = small(tmp_path)
    assert log == [2, 2]  # three seeds were left
    assert [row["seed"] for row in table] == list(range(5))
    assert small(tmp_path) == table  # nothing is left to do
    assert log == [2, 2]
    more = small(tmp_path, seeds=range(6, 3, -1))
    assert log == [2, 2, 2]  # 6 and 5 are new, 4 is there
    assert [row["seed"] for row in more] == [6, 5, 4]
    assert more[-1] == table[-1]


def test_a_run_that_fails_is_tried_again_and_its_error_is_then_gone(tmp_path, monkeypatch):
    compiled = MODULE._compiled
    monkeypatch.setattr(MODULE, "_compiled", lambda *_: broken(None))
    with pytest.warns(RuntimeWarning, match="2 of 2 cells failed"):
        table = small(tmp_path, seeds=range(2))
    assert [row["status"] for row in table] == ["failed"] * 2
    monkeypatch.setattr(MODULE, "_compiled", compiled)
    table = small(tmp_path, seeds=[1, 0])  # another batch, another file
    assert [(row["status"], row["error"]) for row in table] == [("ok", None)] * 2
    with pytest.warns(
        RuntimeWarning, match="2 of 2 cells failed"
    ):  # a method that no longer builds is not its old self
        assert small(tmp_path, seeds=range(2), methods={"sir": broken})[0]["mean"] is None
    assert small(tmp_path, seeds=[1, 0]) == table


def test_a_name_that_means_something_else_is_refused(tmp_path, batches):
    small(tmp_path, seeds=[0, 1])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match="num_steps was 10 and is 11"):
        small(tmp_path, seeds=[0, 1], num_steps=11)
    with pytest.raises(ValueError, match=r"'sir' on 'ar1'.*num_particles was 32 and is 33"):
        small(tmp_path, seeds=[0, 1], methods={"sir": lambda model: epf.bootstrap_filter(model, 33)})
    with pytest.raises(ValueError, match=r"truth was \{'phi': 0.8\} and is \{'phi': 0.7\}"):
        small(tmp_path, seeds=[0, 1], models={"ar1": (AR1, {"phi": 0.7})})
    with pytest.raises(ValueError, match="functions or prior"):  # no word of the description tells
        small(tmp_path, seeds=[0, 1], models={"ar1": (epf.models.ar1(prior_sd=0.4), {"phi": 0.8})})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    assert len(batches[0]) == 1
    small(tmp_path, seeds=[0, 1], models={"ar1": (epf.models.ar1(), {"phi": 0.8})})  # the same again, built anew
    assert len(batches[0]) == 1


def test_a_damaged_part_is_named_and_left_alone(tmp_path, batches):
    small(tmp_path, seeds=[0, 1])
    (part,) = tmp_path.rglob("seeds-*.json")
    part.write_text("[{")
    with pytest.raises(ValueError, match="cannot be read as part of a sweep"):
        small(tmp_path, seeds=[0, 1])
    assert part.read_text() == "[{"


def test_a_folder_that_other_processes_do_not_share_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("epf_jax.running.sweep_folder.PATIENCE", 0.0)
    monkeypatch.setattr("epf_jax.running.sweep_folder.Parts.write", lambda *_: None)
    with pytest.raises(RuntimeError, match=r"lacks the seeds \[0, 1\].*shared by all processes"):
        small(tmp_path, seeds=range(2))


def test_a_progress_bar_counts_cells(tmp_path, capsys):
    small(tmp_path, progress=True)
    assert "5/5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"models": {}}, TypeError, "models: expected a dict"),
        ({"models": {"ar1": AR1}}, TypeError, r"models\['ar1'\]: expected a model and the theta"),
        ({"models": {"ar1": ("ar1", {})}}, TypeError, r"models\['ar1'\]: model: expected an epf.StateSpaceModel"),
        ({"models": {"ar1": (AR1, {"a": 1.0})}}, ValueError, r"models\['ar1'\]: theta: expected the prior's structure"),
        ({"methods": [sir]}, TypeError, "methods: expected a dict"),
        ({"methods": {"sir": sir(AR1)}}, TypeError, r"methods\['sir'\]: expected a function of a model"),
        ({"methods": {"sir": lambda: None}}, TypeError, r"methods\['sir'\]: it will be called as"),
        ({"seeds": 3}, TypeError, "seeds: expected whole numbers such as range"),
        ({"seeds": [0, 0.5]}, ValueError, r"seeds\[1\]: expected a whole number"),
        ({"seeds": [1, 1]}, ValueError, "seeds: expected at least one, each once"),
        ({"seeds": []}, ValueError, "seeds: expected at least one"),
        ({"num_steps": 0}, ValueError, "num_steps: expected a positive whole number"),
        ({"batch": 0}, ValueError, "batch: expected a positive whole number"),
        ({"folder": None}, TypeError, "folder: expected a path"),
        ({"folder": __file__}, ValueError, "folder: cannot write to"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path, changes, kind, words):
    with pytest.raises(kind, match=words):
        small(**{"folder": tmp_path, **changes})
    assert not list(tmp_path.iterdir())


def test_a_fingerprint_tells_constants_and_wiring_apart_and_no_more():
    def one(x):
        return jax.lax.fori_loop(0, 3, lambda i, v: jax.jit(lambda a, b: a - b)(v, np.arange(3.0) * x), x * np.ones(3))

    def other_constant(x):
        return jax.lax.fori_loop(
            0, 3, lambda i, v: jax.jit(lambda a, b: a - b)(v, np.arange(1.0, 4) * x), x * np.ones(3)
        )

    def other_wiring(x):
        return jax.lax.fori_loop(0, 3, lambda i, v: jax.jit(lambda a, b: b - a)(v, np.arange(3.0) * x), x * np.ones(3))

    def sum_first(x):
        total, product = x + 1.0, x * 2.0
        return total - product

    def product_first(x):
        product, total = x * 2.0, x + 1.0
        return total - product

    assert fingerprint(one, 1.0) == fingerprint(one, 2.0)
    assert fingerprint(sum_first, 1.0) == fingerprint(product_first, 1.0)
    assert len({fingerprint(f, 1.0) for f in (one, other_constant, other_wiring)}) == 3


def example(*arguments):
    """The example, started with options; its programs are cached, which needs the order of sets to stay the same."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"), "PYTHONHASHSEED": "0"}
    size = ["--methods", "sir", "--seeds", "2", "--steps", "10", "--particles", "32", "--batch", "1"]
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "sweep_on_many_machines.py"), *size, *arguments]
    environment = {**os.environ, "PYTHONPATH": path, **cache}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = ["--coordinator", address, "--num-processes", "2", "--folder", str(tmp_path / "two")]
    pair = [example(*together, "--process-id", str(i)) for i in range(2)]
    written = [process.communicate(timeout=300)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], written
    assert "1/1" in written[0]  # the cells of process 0: half of them
    alone = example("--folder", str(tmp_path / "one"))
    said = alone.communicate(timeout=300)[0]
    assert alone.returncode == 0, said
    two, one = (read(tmp_path / name / "table.csv") for name in ("two", "one"))
    assert len(one) == 2
    assert [row["status"] for row in one] == ["ok"] * 2
    for column in one[0].keys() - {"seconds", "date"}:
        assert [row[column] for row in two] == [row[column] for row in one], column
    settings = [
        sorted(json.dumps(json.loads(p.read_text())) for p in (tmp_path / name).rglob("settings.json"))
        for name in ("one", "two")
    ]
    assert settings[0] == settings[1]

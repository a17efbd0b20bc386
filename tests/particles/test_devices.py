"""One filter on many devices, and many filters on many devices: eight simulated ones, in a process of their own."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epf_jax as epf
from epf_jax import exact

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIN = epf.models.sinusoid()


@pytest.fixture(scope="module")
def told():
    return asked()


@pytest.fixture(scope="module")
def told_more():
    return asked("--all")


def asked(*options):
    command = [sys.executable, str(ROOT / "tests" / "eight_devices.py"), *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


def environment():
    ours = {"PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache")}
    return {**os.environ, **ours, "JAX_PLATFORMS": "cpu"}  # where there is a GPU, too: the devices are simulated ones


def test_systematic_resampling_across_devices_is_that_of_one_device(told):
    one, across = (np.array(told["ancestors"][name]["ancestors"]) for name in ("one", "across"))
    # The sums of the weights round otherwise: a particle's last offspring may become its neighbour's.
    assert np.mean(one == across) > 0.99
    assert np.max(np.abs(one - across)) <= 1
    assert told["ancestors"]["across"]["fits"]


def test_islands_keep_to_themselves_and_keep_the_total_weight(told):
    islands = told["ancestors"]["islands"]
    assert islands["fits"]
    np.testing.assert_array_equal(np.array(islands["ancestors"]) // 50, np.arange(400) // 50)
    assert abs(islands["weight"] - 1.0) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "across", "islands"])
def test_evidence_and_posterior_are_exact_within_monte_carlo_error(told_more, name):
    model = epf.models.ar1(observation_noise=1.0)
    _, y = epf.simulate(jax.random.key(4), model, {"phi": 0.8}, 8)
    posterior = exact.kalman(model, y, {"phi": jnp.linspace(-3.0, 3.0, 401)})
    last = np.array(told_more["posteriors"][name]["last"])
    ratio = np.exp(last[:, 0] - float(posterior.log_evidence[-1]))
    errors = last.std(axis=0, ddof=1) / np.sqrt(len(last))
    # Twelve keys: four standard errors each, the evidence as a ratio, whose mean is one.
    assert abs(ratio.mean() - 1.0) < 4 * ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert abs(last[:, 1].mean() - float(posterior.mean["phi"][-1])) < 4 * errors[1]
    assert abs(last[:, 2].mean() - float(posterior.sd["phi"][-1])) < 4 * errors[2]


def test_every_device_holds_its_share_of_the_particles(told):
    assert told["posteriors"]["across"]["rows per device"] == [50] * 8


@pytest.mark.slow
def test_every_island_holds_its_share_of_the_particles(told_more):
    assert told_more["posteriors"]["islands"]["rows per device"] == [50] * 8
    assert told_more["posteriors"]["one"]["rows per device"] == [400]


@pytest.mark.slow
def test_no_device_gathers_more_than_a_number_from_each(told_more):
    assert told_more["traffic"] == {"across": 8, "islands": 8}


@pytest.mark.slow
def test_steps_across_devices_are_the_run(told_more):
    assert told_more["stepping"]


@pytest.mark.slow
def test_steps_on_islands_are_the_run(told_more):
    assert told_more["stepping on islands"]


@pytest.mark.slow
def test_gradients_pass_from_device_to_device(told_more):
    one, across = told_more["gradient"]
    assert abs(one - across) < 1e-3 * abs(one)  # the same ancestors; sums in another order


@pytest.mark.slow
def test_runs_over_keys_and_series_are_the_same_on_any_mesh(told_more):
    assert told_more["replicates"]["same"] == [True, True]
    np.testing.assert_allclose(told_more["replicates"]["one of them"], told_more["replicates"]["alone"], rtol=1e-5)


def test_wrong_meshes_are_refused_by_name():
    mesh = jax.make_mesh((1,), ("particles",))
    with pytest.raises(TypeError, match=r"mesh: expected a mesh of one axis, .* got 8"):
        epf.bootstrap_filter(SIN, 64, resample=epf.across_devices(8))
    with pytest.raises(TypeError, match="mesh: expected a mesh of one axis"):
        epf.bootstrap_filter(SIN, 64, resample=epf.islands(jax.make_mesh((1, 1), ("a", "b"))))
    with pytest.raises(ValueError, match="exchange_below: expected a share"):
        epf.bootstrap_filter(SIN, 64, resample=epf.islands(mesh, 2.0))
    with pytest.raises(TypeError, match="scheme: islands resample by a plain scheme"):
        epf.bootstrap_filter(SIN, 64, resample=epf.islands(mesh, scheme=epf.when_ess_below(0.5)))
    spread = epf.bootstrap_filter(SIN, 64, resample=epf.across_devices(mesh))
    with pytest.raises(ValueError, match="filter_: its particles are already spread over the devices of a mesh"):
        epf.replicate(jax.random.split(jax.random.key(0), 2), spread, jnp.zeros(3))
    with pytest.raises(TypeError, match=r"mesh: expected a jax.sharding.Mesh"):
        epf.replicate(jax.random.split(jax.random.key(0), 2), epf.bootstrap_filter(SIN, 8), jnp.zeros(3), mesh=2)


def test_a_mesh_that_does_not_divide_the_particles_is_refused(told):
    assert told["refusal"] == (
        "num_particles: 100 particles cannot be divided over the 8 devices of the mesh; take 104."
    )


def test_wrong_batches_are_refused_by_name():
    filter_, keys = epf.bootstrap_filter(SIN, 8), jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"y: the series have unequal lengths, 3, 5\. Use epf\.panel"):
        epf.replicate(keys, filter_, [np.zeros(3), np.zeros(5)])
    with pytest.raises(ValueError, match=r"hyper\['noise'\]: expected one entry for each of the 2 keys"):
        epf.replicate(keys, lambda h: filter_, jnp.zeros(3), hyper={"noise": jnp.ones(3)})
    with pytest.raises(TypeError, match="filter_: with hyper, give a function"):
        epf.replicate(keys, filter_, jnp.zeros(3), hyper={"noise": jnp.ones(2)})
    with pytest.raises(TypeError, match="keys: expected B keys"):
        epf.replicate(jax.random.key(0), filter_, jnp.zeros(3))


@pytest.mark.slow
def test_one_filter_runs_across_two_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    script = [
        sys.executable,
        str(ROOT / "examples" / "filter_on_many_machines.py"),
        "--particles",
        "200",
        "--steps",
        "5",
    ]
    ranks = [["--coordinator", f"localhost:{port}", "--num-processes", "2", "--process-id", str(i)] for i in (0, 1)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    started = [subprocess.Popen(script + rank, **pipes) for rank in ranks]
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended[0][1][-2000:] + ended[1][1][-2000:]
    alone = subprocess.run(script, capture_output=True, text=True, check=True, env=environment()).stdout
    numbers = [np.array(re.findall(r"-?\d+\.\d+", said), float) for said in (ended[0][0], alone)]
    assert "on 2 devices" in ended[0][0]
    # theta, its sd and the log-evidence: the same ancestors but for rounding. One flipped ancestor of 200 moves a mean by
    # about sd / 200 = .001, and 5 steps may flip a few.
    np.testing.assert_allclose(numbers[0], numbers[1], atol=0.02)

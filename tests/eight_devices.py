"""What tests/particles/test_devices.py asks of a process with eight devices, told as JSON: run by a fixture, in a process of its own."""

import json
import re
import sys

import jax

jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import epf_jax as epf  # noqa: E402
from epf_jax.particles.resampling import select  # noqa: E402
from epf_jax.particles.weights import reweight, uniform_log_weights  # noqa: E402
from epf_jax.running.run import run_jitted  # noqa: E402

N, T, RUNS = 400, 8, 12
MESH = jax.make_mesh((8,), ("particles",))
MODEL = epf.models.ar1(observation_noise=1.0)
_, Y = epf.simulate(jax.random.key(4), MODEL, {"phi": 0.8}, T)


def filters():
    """The same filter on one device, across eight, and on eight islands."""
    schemes = {
        "one": epf.systematic,
        "across": epf.across_devices(MESH),
        "islands": epf.islands(MESH, exchange_below=0.9),
    }
    build = epf.storvik_filter
    return {name: build(MODEL, N, proposal=epf.bootstrap(), resample=scheme) for name, scheme in schemes.items()}


def ancestors():
    """The ancestors that each scheme names for uneven weights, and whether the particles are theirs."""
    weighing = reweight(uniform_log_weights(N), 3.0 * jax.random.normal(jax.random.key(3), (N,)))
    particles = (jnp.arange(N), jnp.arange(2.0 * N).reshape(N, 2))
    found = {}
    for name, scheme in (("one", epf.systematic), ("across", epf.across_devices(MESH)), ("islands", epf.islands(MESH))):
        chosen = jax.jit(lambda key, scheme=scheme: select(key, scheme, weighing, particles))(jax.random.key(5))
        fits = np.array_equal(chosen.particles[0], chosen.ancestors)
        fits &= np.array_equal(chosen.particles[1], np.asarray(particles[1])[np.asarray(chosen.ancestors)])
        total = float(jnp.exp(jax.nn.logsumexp(chosen.log_weights + chosen.log_increment)))
        found[name] = {"ancestors": np.asarray(chosen.ancestors).tolist(), "fits": bool(fits), "weight": total}
    return found


def posteriors(built, num_runs):
    """Evidence, mean and sd of phi after the last step, for several keys."""
    found = {}
    for name, filter_ in built.items():
        rows = [epf.run(jax.random.key(seed), filter_, Y, levels=(0.5,)) for seed in range(num_runs)]
        last = [[r.log_evidence[-1], r.theta.mean["phi"][-1], r.theta.sd["phi"][-1]] for r in rows]
        found[name] = {
            "last": np.asarray(last).tolist(),
            "rows per device": [shard.data.shape[0] for shard in rows[-1].final.x.addressable_shards],
        }
    return found


def traffic(filter_):
    """Numbers in the largest array that devices exchange otherwise than round the ring."""
    program = run_jitted.lower(
        filter_, (0.5,), False, None, False, jax.random.key(0), None, Y, np.arange(1, T + 1)
    ).compile()
    gathered = re.findall(r"= \(?\w+\[([\d,]*)\][^=]*? (?:all-gather|all-to-all|all-reduce)", program.as_text())
    return max((int(np.prod([int(n) for n in shape.split(",") if n])) for shape in gathered), default=0)


def stepping(filter_):
    """Whether steps taken one by one give the run's last state, to rounding."""
    key_init, key_steps = jax.random.split(jax.random.key(2))
    state = filter_.init(key_init)
    for t in range(T):
        state, _ = filter_.step(jax.random.fold_in(key_steps, t + 1), state, Y[t])
    final = epf.run(jax.random.key(2), filter_, Y, levels=(0.5,)).final
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(final), strict=True)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in leaves)


def gradient():
    """The gradient of the evidence with particles across devices, and on one device."""

    def evidence(noise, scheme):
        filter_ = epf.bootstrap_filter(epf.models.ar1(observation_noise=noise), 64, theta={"phi": 0.8}, resample=scheme)
        return epf.run(jax.random.key(1), filter_, Y, levels=()).log_evidence[-1]

    schemes = (epf.systematic, epf.across_devices(MESH))
    return [float(jax.grad(evidence)(1.0, epf.stop_gradient_resampling(scheme))) for scheme in schemes]


def replicates():
    """Runs over keys, series and hyper-parameters, dealt over eight devices, over a mesh of three, and on one."""
    keys = jax.random.split(jax.random.key(1), 10)
    series = jnp.stack([Y + 0.1 * i for i in range(10)])
    hyper = {"noise": jnp.linspace(0.5, 1.5, 10)}

    def filter_of(h):
        return epf.bootstrap_filter(epf.models.ar1(observation_noise=h["noise"]), 40, theta={"phi": 0.8})

    found = []
    for mesh in (None, jax.make_mesh((3,), ("runs",)), jax.make_mesh((1,), ("runs",))):
        results = epf.replicate(keys, filter_of, series, hyper=hyper, levels=(0.5,), mesh=mesh)
        found.append([np.asarray(results.log_evidence), np.asarray(results.x.mean), np.asarray(results.ess)])
    alone = epf.run(keys[7], filter_of({"noise": hyper["noise"][7]}), series[7], levels=(0.5,))
    return {
        "same": [all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True)) for other in found[1:]],
        "one of them": found[0][0][7].tolist(),
        "alone": np.asarray(alone.log_evidence).tolist(),
    }


def refusal():
    """What a mesh that does not divide the particles is told."""
    try:
        epf.bootstrap_filter(MODEL, 100, resample=epf.across_devices(MESH))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    built = filters()
    told = {
        "ancestors": ancestors(),
        "posteriors": posteriors({"across": built["across"]}, 1),
        "refusal": refusal(),
    }
    if "--all" in sys.argv:
        told["stepping"] = stepping(built["across"])
        told["replicates"] = replicates()
        told["posteriors"] = posteriors(built, RUNS)
        told["traffic"] = {name: traffic(built[name]) for name in ("across", "islands")}
        told["stepping on islands"] = stepping(built["islands"])
        told["gradient"] = gradient()
    print(json.dumps(told))

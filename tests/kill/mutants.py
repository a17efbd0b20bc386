"""Wrong algorithms, planted one at a time in a copy of the library: do the quick tests notice?

    python tests/kill/mutants.py                 all of them
    python tests/kill/mutants.py theta tempered  those whose names hold one of these words

A mutant is a name, a file, the text that it replaces (which stands there exactly once) and what takes its place, and
the quick tests that are to kill it. One that does not apply is an error: the code has changed, write it anew.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEP, UNBIASED = "tests/kill/test_parameter_filter.py", "tests/kill/test_unbiased.py"
PATHS, NESTED, OFFLINE = (f"tests/kill/test_{name}.py" for name in ("whole_paths", "nested", "offline"))
NUMBERS, SERIES = (f"tests/kill/test_{name}.py" for name in ("random_numbers", "series"))
EM, GRADIENTS = "tests/kill/test_averages_of_online_em.py", "tests/kill/test_unbiased_gradients.py"
WEIGHTS, SWEEPS = "tests/particles/test_weights_and_resampling.py", "tests/particles/test_conditional_smc.py"
DECOMPOSED = "tests/statistics/test_decomposed.py"
SAMPLERS, STATISTICS = "tests/samplers/test_samplers.py", "tests/statistics/test_every_statistic.py"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong algorithm."""

    name: str
    path: str
    old: str
    new: str
    tests: str
    which: str = ""  # of these tests, by pytest's -k

    def applied(self, text):
        """The file's text with the mutation, or an error where it does not apply."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: does not apply, {self.path} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


BOX, GATHER = "filters/extended_parameter.py", "particles/resampling.py"
MUTANTS = [
    # the parameter filter
    Mutant(
        "theta not resampled",
        BOX,
        "(x_prev, x, theta, S), log_weights =",
        "(x_prev, x, _, S), log_weights =",
        STEP,
        "bootstrap",
    ),
    Mutant(
        "S not resampled",
        BOX,
        "(x_prev, x, theta, S), log_weights =",
        "(x_prev, x, theta, _), log_weights =",
        STEP,
        "bootstrap",
    ),
    Mutant(
        "x_prev not resampled",
        BOX,
        "(x_prev, x, theta, S), log_weights =",
        "(_, x, theta, S), log_weights =",
        STEP,
        "bootstrap",
    ),
    Mutant(
        "theta not looked ahead",
        BOX,
        "(x_prev, theta, S), log_weights = sel",
        "(x_prev, _, S), log_weights = sel",
        STEP,
        "adapted",
    ),
    Mutant(
        "x_prev not looked ahead",
        BOX,
        "(x_prev, theta, S), log_weights = sel",
        "(_, theta, S), log_weights = sel",
        STEP,
        "adapted",
    ),
    Mutant(
        "key of x for theta",
        BOX,
        "redraw(keys[4], statistic, model",
        "redraw(keys[1], statistic, model",
        NUMBERS,
        "epf",
    ),
    Mutant(
        "key of x for resampling",
        BOX,
        "select(keys[0], resample, weighings[-1], (x_prev, x,",
        "select(keys[1], resample, weighings[-1], (x_prev, x,",
        NUMBERS,
        "bootstrap",
    ),
    Mutant(
        "weight at x_prev",
        BOX,
        "proposal.log_weight(model, th, x_prev, x, y, u))(theta, x_prev, x)\n            weighings",
        "proposal.log_weight(model, th, x_prev, x, y, u))(theta, x_prev, x_prev)\n            weighings",
        STEP,
        "guided",
    ),
    Mutant(
        "evidence of the last weighing alone",
        "filters/filter.py",
        "[w.log_increment for w in weighings]",
        "[weighings[-1].log_increment]",
        PATHS,
        "liu",
    ),
    Mutant(
        "statistic of the step before",
        "statistics/statistic.py",
        "(keys, S, theta, x_prev, x, y, u)",
        "(keys, S, theta, x, x, y, u)",
        STEP,
        "adapted",
    ),
    Mutant(
        "theta drawn before the update",
        BOX,
        "model.parameters, S, theta, state) if moves",
        "model.parameters, state.S, theta, state) if moves",
        STEP,
        "adapted",
    ),
    Mutant(
        "evidence not added up",
        BOX,
        "state.log_evidence + info.log_increment, state.t + 1), info",
        "info.log_increment, state.t + 1), info",
        UNBIASED,
        "storvik or sir",
    ),
    Mutant(
        "values at a stale box's nodes",
        "statistics/nodal_box.py",
        "evaluate(path, *box, t)",
        "evaluate(path, S.middle, S.half, t)",
        STEP,
        "nodes",
    ),
    Mutant(
        "coefficients drawn without their noise",
        "statistics/regressions.py",
        "solve_upper(L, white + noise[::-1])",
        "solve_upper(L, white)",
        DECOMPOSED,
        "conjugate",
    ),
    Mutant(
        "rows of a regression without what nodal parameters move",
        "statistics/decomposed.py",
        "terms(numbers.at(put(self.coordinates.centre, own, list(z_node))), *step)",
        "terms(numbers.c, *step)",
        DECOMPOSED,
        "nodes_is_that",
    ),
    # weights, resampling
    Mutant(
        "weights not normalised",
        "particles/weights.py",
        "log_weights=safe - log_sum",
        "log_weights=safe - shift",
        STEP,
        "adapted",
    ),
    Mutant(
        "old weights forgotten",
        "particles/weights.py",
        "where(good, log_weights + log_factors, -jnp.inf)",
        "where(good, log_factors, -jnp.inf)",
        STEP,
        "adapted",
    ),
    Mutant(
        "weights kept after resampling",
        GATHER,
        "=where(resampled, uniform_log_weights(n), log_weights)",
        "=log_weights",
        UNBIASED,
        "sir or epf",
    ),
    Mutant(
        "weights lost without resampling",
        GATHER,
        "=where(resampled, uniform_log_weights(n), log_weights)",
        "=uniform_log_weights(n)",
        STEP,
        "adapted",
    ),
    Mutant(
        "independent ancestors shifted", GATHER, "spacings[:-1] / spacings[-1]", "spacings[1:] / spacings[-1]", WEIGHTS
    ),
    Mutant("residual by all weights", GATHER, "jnp.log(left_over)", "log_weights", WEIGHTS),
    Mutant(
        "soft resampling uncorrected",
        "particles/gradients.py",
        "(particles, log_weights - log_q)",
        "(particles, 0.0 * log_q)",
        WEIGHTS,
    ),
    # proposals
    Mutant(
        "guided without the transition",
        "particles/proposals.py",
        "return prior + likelihood -",
        "return likelihood -",
        STEP,
        "guided",
    ),
    Mutant(
        "guided q at x_prev",
        "particles/proposals.py",
        "log_prob(q(theta, x_prev, y, u), x)",
        "log_prob(q(theta, x_prev, y, u), x_prev)",
        STEP,
        "guided",
    ),
    Mutant(
        "observation's offset forgotten",
        "core/gaussian.py",
        "value - H @ mean - offset, 0.0",
        "value - H @ mean, 0.0",
        STEP,
        "adapted",
    ),
    # Liu and West
    Mutant(
        "look-ahead not divided out",
        "filters/liu_west.py",
        "reweight(log_weights, w - g)",
        "reweight(log_weights, w)",
        PATHS,
        "liu",
    ),
    Mutant(
        "kernel not shrunk",
        "filters/liu_west.py",
        "m = rho * z + (1 - rho) * (jnp.exp(log_weights) @ z)",
        "m = z",
        PATHS,
        "liu",
    ),
    Mutant("kernel too wide", "filters/liu_west.py", "jnp.sqrt(1 - rho**2)", "jnp.sqrt(1 - rho)", PATHS, "liu"),
    Mutant(
        "look-ahead not selected",
        "filters/liu_west.py",
        "(x_prev, m, g), log_weights =",
        "(x_prev, m, _), log_weights =",
        PATHS,
        "liu",
    ),
    # samplers
    Mutant(
        "Metropolis tempered",
        "samplers/random_walk.py",
        "ratio = jnp.exp(log_p_new -",
        "ratio = jnp.exp(0.9 * log_p_new - 0.9 *",
        SAMPLERS,
        "skewed",
    ),
    Mutant(
        "walk carries no density",
        "samplers/random_walk.py",
        "where(accept, log_p_new, log_p))",
        "log_p)",
        SAMPLERS,
        "skewed",
    ),
    Mutant(
        "slice level at the mean",
        "samplers/slice_sampler.py",
        "level = log_density(start) - jax.random.exponential(key_level, dtype=start.dtype)",
        "level = log_density(start) - 1.0",
        SAMPLERS,
        "skewed",
    ),
    Mutant(
        "slice never steps out",
        "samplers/slice_sampler.py",
        "0, max_steps_out - 1, step_out",
        "0, 0, step_out",
        SAMPLERS,
        "skewed",
    ),
    # resample-move, practical
    Mutant(
        "resample-move a step late",
        "filters/resample_move.py",
        "ancestors=before.S.ancestors.at[t].set",
        "ancestors=before.S.ancestors.at[t - 1].set",
        PATHS,
        "resample_move",
    ),
    Mutant(
        "resample-move's y a step late",
        "filters/resample_move.py",
        "y, u = recall(memory, t - 1)",
        "y, u = recall(memory, t)",
        PATHS,
        "resample_move",
    ),
    Mutant(
        "resample-move without x_0",
        "filters/resample_move.py",
        "return total + sum(",
        "return total + 0 * sum(",
        PATHS,
        "resample_move",
    ),
    Mutant(
        "resample-move of its own row",
        "filters/resample_move.py",
        "row = ancestors[t, row]",
        "row = row",
        PATHS,
        "resample_move",
    ),
    Mutant(
        "practical counts a step late",
        "filters/practical.py",
        "theta, state.log_weights, t - L)",
        "theta, state.log_weights, t - L - 1)",
        PATHS,
        "practical",
    ),
    Mutant(
        "practical never forgets",
        "filters/practical.py",
        "return jax.lax.scan(turn, window.S, rows)[0]",
        "return jax.lax.scan(turn, window.S, jax.tree.map(lambda r: r[1:], rows))[0]",
        PATHS,
        "practical",
    ),
    Mutant(
        "practical evidence without look-ahead",
        "filters/practical.py",
        "        w += jax.vmap(lambda th, x_prev: proposal.look_ahead",
        "        w = w + 0 * jax.vmap(lambda th, x_prev: proposal.look_ahead",
        PATHS,
        "practical",
    ),
    # conditional SMC
    Mutant(
        "old path's ancestor by itself",
        "particles/conditional_smc.py",
        "jnp.where(joins.collapsed, own, joined)",
        "0 * own + joined[0] * 0",
        SWEEPS,
    ),
    Mutant(
        "ancestors without the transition",
        "particles/conditional_smc.py",
        "independent_ancestors(key_old, joins.log_weights, 1)",
        "independent_ancestors(key_old, log_weights, 1)",
        SWEEPS,
    ),
    Mutant(
        "path weighed at the wrong ancestors",
        "particles/conditional_smc.py",
        "log_weight(model, theta, x_prev, x, y, u))(cloud[ancestors], x)",
        "log_weight(model, theta, x_prev, x, y, u))(cloud[ancestors], cloud[ancestors])",
        SWEEPS,
    ),
    # SMC^2, nodes
    Mutant(
        "exchange uncorrected",
        "filters/smc2.py",
        "reweight(log_weights, evidence_new - log_evidence)",
        "reweight(log_weights, 0.0 * evidence_new)",
        NESTED,
        "exchange",
    ),
    Mutant(
        "moves without the prior",
        "filters/smc2.py",
        "jax.vmap(coordinates.log_prior)(z) + log_evidence",
        "log_evidence",
        NESTED,
        "ibis",
    ),
    Mutant(
        "filters not moved with theta",
        "filters/smc2.py",
        "(z_new, filters_new, evidence_new)",
        "(z_new, filters, evidence_new)",
        NESTED,
        "ibis",
    ),
    Mutant(
        "SMC^2 theta not selected",
        "filters/smc2.py",
        "theta, filters, log_evidence = selection.particles",
        "_, filters, log_evidence = selection.particles",
        NESTED,
        "ibis",
    ),
    Mutant(
        "memory a step late",
        "filters/smc2.py",
        "memory = remember(memory, state.t - since, ",
        "memory = remember(memory, t - since, ",
        NESTED,
        "ibis",
    ),
    Mutant(
        "window's past forgotten",
        "filters/window.py",
        "(filters, log_evidence), fresh)",
        "(filters, 0.0 * log_evidence), fresh)",
        NESTED,
        "window",
    ),
    Mutant(
        "window's law of another time",
        "filters/window.py",
        "size.between(theta, anchor.filters, shares)",
        "size.between(theta, fresh[0], shares)",
        NESTED,
        "window",
    ),
    Mutant(
        "mass of a stale box",
        "filters/node_filter.py",
        "new, new_weights = _weigh(",
        "_, new_weights = _weigh(",
        NESTED,
        "nodes",
    ),
    Mutant(
        "nodes without the prior",
        "filters/node_filter.py",
        "log_p = log_likelihood + jax.vmap(coordinates.log_prior)(z)",
        "log_p = log_likelihood",
        NESTED,
        "nodes",
    ),
    Mutant(
        "nodes' cells uncounted",
        "filters/node_filter.py",
        "log_cell = jnp.sum(",
        "log_cell = 0 * jnp.sum(",
        NESTED,
        "nodes",
    ),
    # chains
    Mutant(
        "PMMH without the prior",
        "offline/pmmh.py",
        "coordinates.log_prior(z) - coordinates.log_prior(state.z)",
        "0.0",
        OFFLINE,
        "pmmh",
    ),
    Mutant(
        "PMMH tempered",
        "offline/pmmh.py",
        "log_ratio = log_prior_ratio + new.log_likelihood - state.log_likelihood",
        "log_ratio = 0.9 * (log_prior_ratio + new.log_likelihood - state.log_likelihood)",
        OFFLINE,
        "pmmh",
    ),
    Mutant(
        "chains adapt for ever",
        "offline/chain_loop.py",
        "jnp.where(i < num_warmup, (i + 10.0) ** (-2 / 3), 0.0)",
        "(i + 10.0) ** (-2 / 3)",
        OFFLINE,
        "population",
    ),
    Mutant(
        "Gibbs without the prior",
        "offline/particle_gibbs.py",
        "return coordinates.log_prior(z) + first",
        "return first",
        OFFLINE,
        "gibbs",
    ),
    Mutant(
        "Gibbs paths of the old theta",
        "offline/particle_gibbs.py",
        "num_particles, theta, state.x, y, rows)",
        "num_particles, coordinates.to_theta(state.z), state.x, y, rows)",
        OFFLINE,
        "gibbs",
    ),
    # online EM
    Mutant(
        "no backward moves",
        "filters/online_em.py",
        "j = jnp.where(log_u < density(candidate) - density(j), candidate, j)",
        "j = j",
        EM,
    ),
    Mutant(
        "backward weights doubled",
        "filters/online_em.py",
        "return state.log_weights[j] + log_prob(",
        "return 2 * state.log_weights[j] + log_prob(",
        EM,
    ),
    Mutant(
        "averages not discounted", "filters/online_em.py", "(1.0 - gamma) * S[j] + gamma * by", "S[j] + gamma * by", EM
    ),
    # gradients
    Mutant(
        "gradient without the weights",
        "particles/gradients.py",
        "log_weights = fixed + _only_gradient(jnp.where(earned > -jnp.inf, earned, 0.0))",
        "log_weights = fixed",
        GRADIENTS,
    ),
    Mutant("gradient without the score", "particles/gradients.py", "x, y, u) + score", "x, y, u)", GRADIENTS, "score"),
    # random numbers, series
    Mutant(
        "lattices share a shift",
        "particles/quasi_random.py",
        "jax.random.bits(key, (dim,), jnp.uint32)",
        "jax.random.bits(key, (1,), jnp.uint32)",
        NUMBERS,
        "lattice",
    ),
    Mutant(
        "lattice out of order",
        "filters/filter.py",
        "order = order_of(x, log_weights)",
        "order = jnp.arange(num_particles)",
        NUMBERS,
        "lattice",
    ),
    Mutant(
        "selection out of order",
        "particles/quasi_random.py",
        "order = order_of(jax.tree.leaves(place)[0], weighing.log_weights)",
        "order = jnp.arange(len(weighing.log_weights))",
        NUMBERS,
        "lattice",
    ),
    Mutant(
        "forecast a step early",
        "running/forecast.py",
        "num_steps, state.t + 1, model=model)",
        "num_steps, state.t, model=model)",
        SERIES,
    ),
    Mutant("panels read padding", "data/series.py", "self.lengths - 1]", "-1]", SERIES),
    Mutant(
        "forecast observes the old state", "particles/one_step_ahead.py", "num, theta, moved)", "num, theta, x)", SERIES
    ),
    # statistics
    Mutant(
        "Taylor's cross terms",
        "statistics/taylor.py",
        "[-0.5 * h.sum(axis=-1)",
        "[-0.4 * h.sum(axis=-1)",
        STEP,
        "adapted",
    ),
    Mutant(
        "Taylor without x_0's term",
        "statistics/taylor.py",
        "for s, p in zip((*started, *sums), (*initial, *steps), strict=True):\n                total",
        "for s, p in zip(sums, steps, strict=True):\n                total",
        "tests/statistics/test_statistics.py",
        "initial_state",
    ),
    Mutant(
        "nodes forget a step",
        "statistics/chebyshev.py",
        "values = S.values + log_ratios(",
        "values = 0.5 * S.values + log_ratios(",
        STATISTICS,
        "chebyshev",
    ),
]


def copy_of_library(folder):
    """A copy of what the quick tests need, which compiles with the same cache."""
    for name in ("epf_jax", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (ROOT / ".jax_cache").mkdir(exist_ok=True)
    (folder / ".jax_cache").symlink_to(ROOT / ".jax_cache")


def fate(mutant, folder):
    """'killed' or 'survived' by the quick tests that are named for it, in a copy of the library."""
    path = folder / "epf_jax" / mutant.path
    text = path.read_text()
    path.write_text(mutant.applied(text))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "--tb=line", *mutant.tests.split()]
        command += ["-k", mutant.which] if mutant.which else []
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    finally:
        path.write_text(text)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: its tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "killed" if done.returncode else "survived"


def fates(mutants):
    """(mutant, its fate, seconds), one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        copy_of_library(pathlib.Path(folder))
        for mutant in mutants:
            begin = time.monotonic()
            yield mutant, fate(mutant, pathlib.Path(folder)), time.monotonic() - begin


def main(words):
    """Run those whose names hold one of the words, and tell of each as soon as it is known."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survived = []
    for mutant, found, seconds in fates(chosen):
        print(f"{found:9} {seconds:5.0f} s  {mutant.name}", flush=True)
        survived += [mutant.name] if found == "survived" else []
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed; survived: {', '.join(survived) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])

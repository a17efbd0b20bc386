"""`python -m epf_jax.apps.demo`: learns theta of the paper's sinusoid and draws it beside the exact posterior."""

import argparse
import pathlib
import time

import jax
import jax.numpy as jnp

import epf_jax as epf
from epf_jax.plots import plot_diagnostics, plot_theta

TRUTH = {"theta": 0.7}


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration; `--help` lists its options."""
    parser = argparse.ArgumentParser(prog="python -m epf_jax.apps.demo", description=__doc__)
    parser.add_argument("--num-steps", type=_positive, default=1000, help="observations (default 1000)")
    parser.add_argument("--num-particles", type=_positive, default=1000, help="particles (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the pictures")
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: cannot write to {options.output}: {error}")
    key_data, key_filter = jax.random.split(jax.random.key(options.seed))

    print("Model: x_t = sin(theta x_{t-1}) + N(0, 1), y_t = x_t + N(0, 0.1^2), prior theta ~ N(0, 0.2^2)")
    model = epf.models.sinusoid()
    _, y = epf.simulate(key_data, model, TRUTH, options.num_steps)
    print(f"Data:  {options.num_steps} observations, made with theta = {TRUTH['theta']}")

    filter_ = epf.extended_parameter_filter(model, options.num_particles)
    start = time.perf_counter()
    results = epf.run(key_filter, filter_, y, progress=True)
    seconds = time.perf_counter() - start
    print(f"Extended parameter filter, {options.num_particles} particles: {seconds:.1f} s, compilation included")

    exact = _exact(model, y)
    mean, sd = results.theta.mean["theta"][-1], results.theta.sd["theta"][-1]
    exact_mean, exact_sd = exact.mean["theta"][-1], exact.sd["theta"][-1]
    print(f"\ntheta given {options.num_steps} observations\n               mean      sd")
    print(
        f"  filter    {mean:8.4f} {sd:7.4f}\n  exact     {exact_mean:8.4f} {exact_sd:7.4f}  (deterministic quadrature)"
    )
    print(f"  z = (filter mean - exact mean) / exact sd = {float((mean - exact_mean) / exact_sd):+.2f}")
    if abs(TRUTH["theta"] - float(exact_mean)) > 2 * float(exact_sd):
        print("  (the exact posterior itself is far from 0.7: the prior puts 0.7 at 3.5 standard deviations)")

    title = f"SIN: p(theta | y_1:t), extended parameter filter with {options.num_particles} particles"
    for name, figure in (
        ("theta.png", plot_theta(results, exact=exact, truth=TRUTH, title=title)),
        ("diagnostics.png", plot_diagnostics(results)),
    ):
        path = options.output / name
        figure.savefig(path, dpi=130)
        print("picture:", path)


def _exact(model, y):
    """The exact posterior at every t, with nodes within 8 noise standard deviations of each observation."""
    print("Exact posterior by quadrature ...", flush=True)
    nodes = epf.exact.nodes_around(y, half_width=0.8, num_nodes=25)
    return epf.exact.quadrature(model, y, {"theta": jnp.linspace(-1.0, 1.2, 111)}, nodes)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text}")
    return number


if __name__ == "__main__":
    main()

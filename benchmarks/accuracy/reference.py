"""The library's quadrature oracle against independent exact posteriors.

`python -m benchmarks.accuracy.reference FOLDER [MODEL ...]`: FOLDER holds sin.npz, cauchy.npz and star.npz: y, and
the exact mean and sd at the checkpoints. The grid of theta is refined around each checkpoint's own posterior until its
spacing is below half a posterior sd.
"""

import argparse
import pathlib

import jax
import numpy as np

import epf_jax as epf
from benchmarks.report import save, show
from epf_jax import exact

# model, parameters in the file's order, where theta may be, half-width and number of the state's nodes
CASES = {
    "sin": (epf.models.sinusoid, {"theta": (-0.6, 1.2)}, 0.8, 25),
    "star": (epf.models.star, {"gamma": (-1.5, 3.0), "c": (-2.5, 7.0)}, 0.8, 25),
    "cauchy": (epf.models.cauchy_ar1, {"a": (-0.6, 1.2)}, 80.0, 321),
}


def refined_posterior(model, y, ranges, half_width, num_nodes):
    """The posterior given y, on a grid of 7 standard deviations to either side of its mean."""
    nodes = exact.nodes_around(y, half_width, num_nodes)
    num = 29 if len(ranges) == 1 else 41
    axes = {name: np.linspace(*ends, num) for name, ends in ranges.items()}
    for _ in range(6):
        found = exact.quadrature(model, y, axes, nodes)
        spacing = {name: axis[1] - axis[0] for name, axis in axes.items()}
        sd = {name: found.sd[name][-1] for name in axes}
        if all(spacing[name] <= 0.51 * sd[name] for name in axes):
            return found
        reach = {name: max(7 * sd[name], 2 * spacing[name]) for name in axes}
        axes = {n: np.linspace(found.mean[n][-1] - reach[n], found.mean[n][-1] + reach[n], num) for n in axes}
    raise RuntimeError(f"the grid did not settle: spacing {spacing}, sd {sd}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="*", default=list(CASES), help=f"which of {', '.join(CASES)} (default: all)")
    options = parser.parse_args()
    rows = []
    with jax.enable_x64(True):
        for name in options.models:
            build, ranges, half_width, num_nodes = CASES[name]
            data = np.load(options.folder / f"{name}.npz")
            for i, y in enumerate(data["y"]):
                for j, t in enumerate(data["checkpoints"]):
                    found = refined_posterior(build(), y[: int(t)], ranges, half_width, num_nodes)
                    mean = np.array([found.mean[p][-1] for p in ranges])
                    sd = np.array([found.sd[p][-1] for p in ranges])
                    known_mean, known_sd = np.ravel(data["mean"][i, j]), np.ravel(data["sd"][i, j])
                    rows.append({
                        "model": name, "series": i, "t": int(t),
                        "sd": float(known_sd[0]),
                        "error of mean / sd": float(np.max(np.abs(mean - known_mean) / known_sd)),
                        "error of sd / sd": float(np.max(np.abs(sd / known_sd - 1.0))),
                    })  # fmt: skip
            show(f"quadrature against the reference, {name}", [row for row in rows if row["model"] == name])
    print("stored in", save("accuracy_reference", {"models": options.models}, rows))


if __name__ == "__main__":
    main()

"""The library's quadrature oracle against independent exact posteriors.

`python -m benchmarks.accuracy.reference FOLDER [MODEL ...]`: FOLDER holds sin.npz, cauchy.npz and star.npz: y, and
the exact mean and sd at the checkpoints.
"""

import argparse
import pathlib

import numpy as np

from benchmarks.report import save, show
from epf_jax.apps.reproduce.cases import CASES, solve

ORDER = {"sin": ("theta",), "cauchy": ("a",), "star": ("gamma", "c")}  # of the parameters in the files


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="*", default=list(CASES), help=f"which of {', '.join(CASES)} (default: all)")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        data = np.load(options.folder / f"{name}.npz")
        for i, y in enumerate(data["y"]):
            found = solve(CASES[name], y)
            for j, t in enumerate(data["checkpoints"]):
                mean = np.array([found.mean[p][int(t) - 1] for p in ORDER[name]])
                sd = np.array([found.sd[p][int(t) - 1] for p in ORDER[name]])
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

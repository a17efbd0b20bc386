"""Run the README's code with the epf_jax that is installed: `make smoke` does so with the wheel, then with the sdist."""

import sys

from pages import ROOT, run_page

import epf_jax as epf

assert not epf.__file__.startswith(f"{ROOT}/epf_jax"), f"{epf.__file__} is the clone, not the package"
names, num_blocks = run_page("README.md")
assert num_blocks >= 2
print(f"{sys.prefix}: epf_jax {epf.__version__}, theta {names['results'].theta.mean['theta'][-1]:.3f}")

"""The experiments of Erol et al. (2013), run again and judged: `epf reproduce`, or `reproduce(...)` from Python.

Each experiment is a file that lists its pieces of work (`units`) and turns their results into a section of the report
(`present`). Results are kept on disk by their settings (`store.py`), so a run can be interrupted and resumed.
"""

from epf_jax.reproduce import cauchy, density, gibbs, others, sinusoid, star, theorems
from epf_jax.reproduce.cases import DEMO, FULL, Size
from epf_jax.reproduce.claims import Experiment
from epf_jax.reproduce.run import reproduce
from epf_jax.reproduce.store import StoreError

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (density, gibbs, sinusoid, cauchy, star, others, theorems)
}

__all__ = ["DEMO", "EXPERIMENTS", "FULL", "Experiment", "Size", "StoreError", "reproduce"]

"""The experiments of Erol et al. (2013), run again and judged: `epf reproduce`, or `reproduce(...)` from Python.

Each experiment is a file that lists its pieces of work (`units`) and turns their results into a section of the report
(`present`). Results are kept on disk by their settings (`store.py`), so a run can be interrupted and resumed.
"""

from epf_jax.apps.reproduce import density, gibbs, theorems
from epf_jax.apps.reproduce import on_cauchy as cauchy
from epf_jax.apps.reproduce import on_sinusoid as sinusoid
from epf_jax.apps.reproduce import on_star as star
from epf_jax.apps.reproduce.cases import DEMO, FULL, Size
from epf_jax.apps.reproduce.claims import Experiment
from epf_jax.apps.reproduce.experiments import reproduce
from epf_jax.apps.reproduce.store import StoreError

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (density, gibbs, sinusoid, cauchy, star, theorems)
}

__all__ = ["DEMO", "EXPERIMENTS", "FULL", "Experiment", "Size", "StoreError", "reproduce"]

"""Statistics: what a particle keeps of its path, and from which theta is redrawn."""

from epf_jax.statistics.assumed_density import assumed_density
from epf_jax.statistics.chebyshev import chebyshev
from epf_jax.statistics.conjugate import conjugate, why_not_conjugate
from epf_jax.statistics.conjugate_blocks import conjugate_blocks, conjugate_blocks_if_fitting
from epf_jax.statistics.decomposed import decomposed
from epf_jax.statistics.families import NotConjugateError
from epf_jax.statistics.frozen import frozen
from epf_jax.statistics.linear_means import linear_means, why_not_linear_means
from epf_jax.statistics.scale_mixture import scale_mixture
from epf_jax.statistics.separable import separable
from epf_jax.statistics.statistic import Statistic, from_log_target, statistic_of_path, with_sampler
from epf_jax.statistics.taking_apart import why_not_decomposed
from epf_jax.statistics.taylor import taylor, taylor_log_density

__all__ = [
    "NotConjugateError",
    "Statistic",
    "assumed_density",
    "chebyshev",
    "conjugate",
    "conjugate_blocks",
    "conjugate_blocks_if_fitting",
    "decomposed",
    "from_log_target",
    "frozen",
    "linear_means",
    "scale_mixture",
    "separable",
    "statistic_of_path",
    "taylor",
    "taylor_log_density",
    "why_not_conjugate",
    "why_not_decomposed",
    "why_not_linear_means",
    "with_sampler",
]

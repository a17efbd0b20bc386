"""The bootstrap filter (Gordon, Salmond and Smith 1993; Erol et al. 2013, Algorithm 1), with theta known or not.

With known theta there is nothing to learn. With unknown theta it is SIR on the augmented state (x, theta), whose values
of theta are drawn once and can only die out. Both are the parameter filter with a statistic that records nothing.
"""

from epf_jax.filters.extended_parameter import parameter_filter
from epf_jax.filters.filter import Filter, builds_filter, check_filter_arguments
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, as_theta, known
from epf_jax.particles.proposals import Proposal, at_known, bootstrap, check_proposal
from epf_jax.particles.resampling import Resampler, systematic
from epf_jax.statistics import frozen


@builds_filter
def bootstrap_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    theta: Theta | None = None,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """The bootstrap filter: states for a known theta, or SIR on the augmented state when none is given.

    Args:
        model: the state-space model.
        num_particles: N.
        theta: the parameters, with the prior's structure; unknown and drawn from the prior by default.
        proposal: how x_t is drawn; the transition by default.
        resample: the resampling scheme.

    With known theta, the state's theta and its summaries are the empty dict.
    """
    check_filter_arguments(model, num_particles, resample, learns=False)  # `parameter_filter` tells of slips
    proposal = bootstrap() if proposal is None else proposal
    if theta is not None:
        check_proposal(proposal, model)
        model, proposal = known(model, theta), at_known(proposal, model, as_theta(model, theta))
    return parameter_filter(model, num_particles, frozen(model), proposal=proposal, resample=resample)

"""The default proposal of filters, chosen for the model."""

from functools import lru_cache

from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.defensive_proposal import defensive, why_not_defensive
from epf_jax.particles.proposals import Proposal, bootstrap, fully_adapted, why_not_fully_adapted


@waits_for_inputs
@lru_cache(maxsize=256)  # one object for one model: what is built from it is compiled once
def default_proposal(model: StateSpaceModel) -> Proposal:
    """`fully_adapted` if the model allows it, `defensive` if its transition has heavy tails, else `bootstrap`."""
    if not why_not_fully_adapted(model):
        return fully_adapted(model)
    return bootstrap() if why_not_defensive(model) else defensive(model)

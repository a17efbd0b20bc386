"""No statistic: theta is drawn from the prior once and never again. SIR on the augmented state (x, theta)."""

from epf_jax.models.state_space import StateSpaceModel, check_is_model
from epf_jax.statistics.statistic import Statistic


def frozen(model: StateSpaceModel) -> Statistic:
    """The empty statistic. Its theta moves only by resampling, and degenerates: the baseline of the field."""
    check_is_model(model)
    coordinates = model.parameters

    def init(x_0=None):
        return ()

    def update(key, S, theta, x_prev, x, y, u):
        return S

    def log_density(S, theta):
        z = coordinates.to_vector(theta)
        return coordinates.log_prior(z) - coordinates.log_jacobian(z)

    return Statistic(init, update, log_density, None, lambda S: coordinates.log_prior, name="frozen")

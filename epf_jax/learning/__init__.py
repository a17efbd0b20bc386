"""The front door: routing by the model's structure, attempts, the certificate, `Learned`."""

from epf_jax.learning.forecaster import Forecaster
from epf_jax.learning.learn import learn
from epf_jax.learning.learned import Learned
from epf_jax.learning.saving import load, save

__all__ = ["Forecaster", "Learned", "learn", "load", "save"]

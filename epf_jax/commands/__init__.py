"""The commands of `epf`, one file each."""

from epf_jax.commands import compare, doctor, fit, reproduce, stream
from epf_jax.commands.shared import app

__all__ = ["app", "compare", "doctor", "fit", "reproduce", "stream"]

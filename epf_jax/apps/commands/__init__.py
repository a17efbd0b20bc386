"""The commands of `epf`, one file each."""

from epf_jax.apps.commands import epf_compare as compare
from epf_jax.apps.commands import epf_doctor as doctor
from epf_jax.apps.commands import epf_fit as fit
from epf_jax.apps.commands import epf_reproduce as reproduce
from epf_jax.apps.commands import epf_stream as stream
from epf_jax.apps.commands.options import app

__all__ = ["app", "compare", "doctor", "fit", "reproduce", "stream"]

"""`python -m epf_jax` is the command `epf`."""

from epf_jax.apps.cli import main

main()

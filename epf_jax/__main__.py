"""`python -m epf_jax` is the command `epf`."""

from epf_jax.cli import main

main()

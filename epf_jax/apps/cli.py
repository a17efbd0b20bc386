"""The command `epf`. Needs the extra `cli`: `pip install "epf_jax[cli]"`."""

import sys


def main() -> None:
    """Entry point of the command."""
    try:
        from epf_jax.apps.commands import app
    except ImportError as error:
        from epf_jax.core.checks import pip_install

        sys.exit(f"epf: {error}. The command needs more than the library does: {pip_install('cli')}.")
    app()

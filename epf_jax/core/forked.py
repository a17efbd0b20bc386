"""A child process that was forked after JAX had begun to compute waits for threads that it does not have."""

import os

_first: list[int] = []  # the process that computed first


def check_not_forked() -> None:
    """Refuse to compute in a child process that was forked after its parent had computed: it would hang."""
    if not _first:
        _first.append(os.getpid())
    if _first[0] != os.getpid():
        raise RuntimeError(
            "This process was forked from one that had run JAX, and would wait for ever. Start it anew: "
            "multiprocessing.get_context('spawn'); or fork before anything is computed."
        )

"""The accuracy tables of single filters, in turn: SIN, AR(1), evidence, STAR, vague priors, many parameters, proposals.

The others take long, and are run by themselves: league, agreement, calibration and fit by many processes, duel and
samplers on a machine that does nothing else, and gradients.
"""

import argparse

import jax

from benchmarks.accuracy import ar1, evidence, many, proposals, sinusoid, star, vague

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for main in (sinusoid.main, ar1.main, evidence.main, star.main):
        main()
        jax.clear_caches()  # all programs of all tables are more than a process can hold
    for main in (vague.main, many.main, proposals.main):
        main(store=True)
        jax.clear_caches()

"""The accuracy tables of single filters, in turn: SIN, AR(1), evidence, STAR, vague priors, many parameters, proposals.

The others take long, and are run by themselves: league, agreement, calibration and fit by many processes, duel and
samplers on a machine that does nothing else, gradients, and reference with a folder of exact posteriors.
"""

from benchmarks.accuracy import ar1, evidence, many, proposals, sinusoid, star, vague

if __name__ == "__main__":
    for table in (sinusoid, ar1, evidence, star):
        table.main()
    vague.main(store=True)
    many.main(store=True)
    proposals.main(store=True)

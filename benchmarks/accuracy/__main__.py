"""Every accuracy table in turn, but that of `fit`, which is best run by many processes: see there."""

from benchmarks.accuracy import ar1, evidence, sinusoid, star, vague

if __name__ == "__main__":
    for table in (sinusoid, ar1, evidence, star):
        table.main()
    vague.main(store=True)

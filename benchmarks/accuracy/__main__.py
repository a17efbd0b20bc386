"""Every accuracy table, in turn."""

from benchmarks.accuracy import ar1, evidence, sinusoid, star

if __name__ == "__main__":
    for table in (sinusoid, ar1, evidence, star):
        table.main()

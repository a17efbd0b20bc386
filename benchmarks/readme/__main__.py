"""`python -m benchmarks.readme`."""

from benchmarks.readme import README, written

README.write_text(written(README.read_text()))

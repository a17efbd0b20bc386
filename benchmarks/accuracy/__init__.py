"""Accuracy against exact posteriors: one script per table. `python -m benchmarks.accuracy` runs them all."""
